"""What went wrong at which time of the run, for its first figure: failed calls as ticks, the rest as shaded times.

Failed calls are attempts, retried or not, at their end; calls that the client did not send are at their scheduled time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge.thresholds import STALL_NS, VALID, VISIBLE_STALL_NS
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import onset
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import count, figures
from tailgauge_analysis.text.picture import ORANGE, PURPLE, RED, Mark, Panel, PlotCurve
from tailgauge_analysis.verdict.stalls import bad_seconds_between

BROWN = "#8c6d46"
MOST_MARKS = 50  # of a kind
MOST_TEXTS = 2  # workers that are named
JOINED_S = 1.0  # times that are closer than that are one
TICKS = 700  # of a row: about one a pixel
ROW_HEIGHT = 0.16  # of the panel of requests per second
# Rows of ticks from top to bottom: their classes and colour.
ROWS = (
    ("429", (schema.RATE_LIMITED,), ORANGE),
    ("overload", (schema.OVERLOADED,), ORANGE),
    ("connect", (schema.CONNECT_ERROR,), RED),
    ("broken", (schema.TRUNCATED, schema.STREAM_ERROR, schema.ABORTED), RED),
    ("timeout", (schema.TIMEOUT,), RED),
    ("error", (schema.SERVER_ERROR, schema.CLIENT_ERROR, schema.PLUGIN_ERROR), RED),
    ("no text", (schema.EMPTY, schema.REFUSED, schema.FILTERED), RED),
    ("not sent", (schema.CLIENT_DROP,), PURPLE),
)


def failed_calls(run: Run) -> Panel | None:
    """Draw when calls failed, a row for each kind; None where none failed."""
    ends = _ends(run)
    curves: list[PlotCurve] = []
    rows: list[str] = []
    for name, classes, colour in ROWS:
        at_s = np.sort(ends.loc[ends["ended"].isin(classes), "at_s"].to_numpy(np.float64))
        if not len(at_s):
            continue
        x = _thinned(at_s)
        y = np.full(len(x), float(len(rows)))
        curves.append(PlotCurve(x, y, colour=colour, style="ticks", hover="skip"))
        rows.append(f"{name} ({count(len(at_s))})")
    if not rows:
        return None
    return Panel("", curves, rows=rows, height=ROW_HEIGHT * len(rows))


def _ends(run: Run) -> pd.DataFrame:
    """Return how and when, in seconds, the calls of the load ended that did."""
    calls = _times(run.frames.attempts, "ended_at_ns")
    requests = _times(run.frames.requests, "scheduled_at_ns")
    never_sent = requests["ended"].isin((schema.CLIENT_DROP, schema.PLUGIN_ERROR))
    return pd.concat([calls, requests[never_sent]]).dropna()


def _times(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    rows_of_load = rows[rows["stage"] != schema.PREFLIGHT]
    return pd.DataFrame({"ended": rows_of_load["ended"], "at_s": rows_of_load[column] / 1e9})


def _thinned(at_s: Floats) -> Floats:
    """Return these times without those that would be drawn at the same place."""
    width_s = max(float(at_s[-1]), 1.0) / TICKS
    _, begins = np.unique(at_s // width_s, return_index=True)
    return at_s[begins]


def marks(run: Run, end_s: float) -> list[Mark]:
    """Return when the target was gone or silent, rows were lost, and the client was stalled."""
    return [*_silences(run, end_s), *_losses(run, end_s), *_stalls(run, end_s)]


def _silences(run: Run, end_s: float) -> Iterator[Mark]:
    outage = run.result(onset.outage)
    if outage is not None and outage.text:
        from_s = outage.since_s or 0.0
        until_s = end_s
        if outage.until_s is not None:
            until_s = outage.until_s
        yield Mark(from_s, until_s, colour=RED, text=f"target gone{outage.text}")
    silence = run.evidence.stability.silence
    if silence is not None:
        text = f"target silent for {figures(silence.to_s - silence.from_s)} s"
        yield Mark(silence.from_s, silence.to_s, colour=RED, text=text)


def _losses(run: Run, end_s: float) -> Iterator[Mark]:
    """Yield when lost requests were due, and when their workers were lost."""
    bad = [loss for loss in run.evidence.conservation.workers if loss.is_bad]
    missing: list[Stretch] = []
    for loss in bad:
        missing += loss.missing
    yield from _shaded(missing, end_s, "rows lost", BROWN)
    for loss in bad[:MOST_TEXTS]:
        lost_at_s = loss.lost_at_s
        if loss.state == "lost" and lost_at_s is not None:
            text = f"worker {loss.worker} lost at {lost_at_s:,.0f} s"
            yield Mark(lost_at_s, lost_at_s, colour=BROWN, text=text)


def _stalls(run: Run, end_s: float) -> Iterator[Mark]:
    over_ns = VISIBLE_STALL_NS if run.verdict == VALID else STALL_NS
    spells = bad_seconds_between(run.frames, 0.0, end_s, over_ns).spells
    # The first second of a worker may have begun before the run.
    stretches = []
    for spell in spells:
        stretches.append(Stretch(max(0.0, spell.from_s), max(0.0, spell.to_s)))
    for loss in run.evidence.conservation.workers:
        stretches += [stretch for stretch in loss.silent if stretch.to_s is not None]
    stretches += run.record["master_stalled"]
    yield from _shaded(stretches, end_s, "client stalled", PURPLE)


def _shaded(stretches: Sequence[Stretch], end_s: float, name: str, colour: str) -> Iterator[Mark]:
    """Yield these times, those that overlap as one; the longest where they are many."""
    spans: list[tuple[float, float]] = []
    for stretch in sorted(stretches, key=lambda stretch: stretch.from_s):
        until_s = end_s
        if stretch.to_s is not None:
            until_s = stretch.to_s
        if spans and stretch.from_s <= spans[-1][1] + JOINED_S:
            from_s, last_s = spans.pop()
            spans.append((from_s, max(last_s, until_s)))
        else:
            spans.append((stretch.from_s, until_s))
    spans.sort(key=lambda span: span[0] - span[1])
    for number, (from_s, until_s) in enumerate(spans[:MOST_MARKS]):
        yield Mark(from_s, until_s, "" if number else name, colour)
