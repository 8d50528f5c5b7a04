"""Client stalls: seconds in which a worker was stalled, and the figures with and without what that blurred.

A second of a worker is bad if its requests left more than 50 ms late, or if its event loop or its reads were that late
and timestamps taken meanwhile are ranges; lag does not affect exact kernel timestamps. What a bad second
takes out of a figure is little, and never a request:

- Latencies since scheduled, failures and drops keep every request. The client's delay is part of them; to leave out the
  seconds in which it was late would be coordinated omission.
- An exact kernel timestamp is right whatever the client did, so it stays too.
- A time since sent, or a chunk gap, that begins or ends with a range taken in a bad second measures the stall, not the
  chunk. The second set of figures leaves such times out. The headline keeps them, at the end of the range. Ranges of
  other seconds stay: those chunks did arrive together.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np

from tailgauge import thresholds
from tailgauge_analysis.load.chunks import blocks
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, row
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.formatting import clock, count, ms, percentile, share
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import cell, quantile

FIGURES = (("ttft_sent", OFFERED), ("chunk_gap", SUCCESSES))
PS = (0.5, 0.99)
_LAGS = ("loop_lag_max_ns", "receive_lag_max_ns", "dispatch_late_max_ns")
_CAUSES = ("event loop late", "reads late", "requests sent late")
MOST = 20  # spells in report.json
HEADER = (
    "figure, ms",
    *(f"{percentile(p)}, {which}" for p in PS for which in ("with", "without")),
    "n",
    "left out (of n)",
)


@dataclass(frozen=True, slots=True)
class Spell:
    """Consecutive bad seconds of a worker; `worst_ms` is the largest lag, `cause` which lag it was."""

    worker: int
    from_s: float
    to_s: float
    worst_ms: float
    cause: str


@dataclass(frozen=True, slots=True)
class BadSeconds:
    """Seconds of all workers in the steady stage, and those of them that are bad."""

    seconds: float
    bad: float
    spells: tuple[Spell, ...]

    @property
    def share(self) -> float:
        """Share of bad seconds."""
        return self.bad / self.seconds if self.seconds else 0.0


def bad_seconds(frames: Frames, stage: Steady) -> BadSeconds:
    """Find them."""
    seconds = bad = 0.0
    spells: list[Spell] = []
    health = frames.health.sort_values("at_ns")
    by_user = {w["worker"] for w in frames.run["workers"] if w["stamps"] == "user"}
    for worker in np.unique(health["worker"].to_numpy(np.int64)):
        rows = health[health["worker"] == worker]
        end_s = rows["at_ns"].to_numpy(np.float64) / 1e9
        begin_s = np.concatenate([end_s[:1] - 1, end_s[:-1]])
        middle = (begin_s + end_s) / 2
        inside = (middle > stage.from_s) & (middle <= stage.to_s)
        lags = rows[list(_LAGS)].to_numpy(np.float64)
        blurred = (
            np.diff(rows["chunk_intervals"].to_numpy(np.float64), prepend=0) != 0
        )  # NaN of older rows: perhaps
        if worker in by_user:
            blurred[:] = True
        stalled = inside & np.array(
            [thresholds.is_stall(*three, blurred=bool(b)) for three, b in zip(lags, blurred, strict=True)]
        )
        lasted = end_s - begin_s
        seconds += float(lasted[inside].sum())
        bad += float(lasted[stalled].sum())
        spells += [_spell(int(worker), begin_s, end_s, lags, some) for some in _stretches(stalled)]
    return BadSeconds(seconds, bad, tuple(spells))


def _stretches(mask: Mask) -> list[Ints]:
    """Indices of each unbroken stretch under the mask."""
    at = np.flatnonzero(mask)
    return [part for part in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1) if len(part)]


def _spell(worker: int, begin_s: Floats, end_s: Floats, lags: Floats, rows: Ints) -> Spell:
    worst = lags[rows]
    which = int(worst.max(axis=0).argmax())
    return Spell(
        worker, float(begin_s[rows[0]]), float(end_s[rows[-1]]), float(worst.max()) / 1e6, _CAUSES[which]
    )


def sharp(stage: Steady, found: BadSeconds) -> Steady:
    """The stage without the first chunks and gaps that bad seconds blurred; every request is still there."""
    requests = stage.requests.copy()
    worker = requests["worker"].to_numpy(np.int64)
    blurred = requests["first_is_interval"].to_numpy(np.bool_) & _within(
        found, worker, requests["first_at_ns"].to_numpy(np.float64)
    )
    requests["first_at_ns"] = requests["first_at_ns"].where(~blurred)
    lost = _blurred_gaps(stage, found)
    begin = np.cumsum(stage.gap_counts) - stage.gap_counts
    counts = stage.gap_counts.copy()
    some = counts > 0
    counts[some] -= np.add.reduceat(lost, begin[some], dtype=np.int64)
    return replace(stage, requests=requests, gaps_ns=stage.gaps_ns[~lost], gap_counts=counts)


def _within(found: BadSeconds, worker: Ints, at_ns: Floats) -> Mask:
    """Which of these moments lie in a bad second of their worker, or so near before it that it read them."""
    inside = np.zeros(len(at_ns), np.bool_)
    for spell in found.spells:
        from_ns, to_ns = spell.from_s * 1e9 - spell.worst_ms * 1e6, spell.to_s * 1e9
        inside |= (worker == spell.worker) & (at_ns > from_ns) & (at_ns <= to_ns)
    return inside


def _blurred_gaps(stage: Steady, found: BadSeconds) -> Mask:
    """Gaps in bad seconds that begin or end with a chunk which came in one read with the next: no time between them."""
    counts = stage.gap_counts
    lost = np.zeros(len(stage.gaps_ns), np.bool_)
    edges = np.concatenate([[0], np.cumsum(counts)])
    first = stage.requests["first_content_at_ns"].to_numpy(np.float64)
    ends_in = stage.requests["last_content_low_at_ns"].notna().to_numpy(np.bool_)
    workers = stage.requests["worker"].to_numpy(np.int64)
    for some in blocks(counts):
        here = slice(int(edges[some.start]), int(edges[min(some.stop, len(counts))]))
        gaps, sizes = stage.gaps_ns[here], counts[some]
        of = np.repeat(np.arange(some.start, some.start + len(sizes)), sizes)
        run = np.cumsum(gaps)
        before = np.repeat(np.concatenate([[0.0], run])[np.cumsum(sizes) - sizes], sizes)
        later_ns = first[of] + run - before  # when the chunk at the gap's end came
        together = gaps == 0
        is_last = np.concatenate([of[1:] != of[:-1], [True]]) if len(of) else np.zeros(0, np.bool_)
        next_together = np.where(is_last, ends_in[of], np.concatenate([together[1:], [False]]))
        lost[here] = (together | next_together) & _within(found, workers[of], later_ns)
    return lost


def to_json(stage: Steady, found: BadSeconds) -> Json | None:
    """The key `bad_seconds` of report.json; null if no worker left a health row."""
    if not found.seconds:
        return None
    longest = sorted(found.spells, key=lambda spell: spell.from_s - spell.to_s)[:MOST]
    clear = sharp(stage, found) if found.spells else stage
    return {
        "seconds": round(found.seconds, 3), "bad": round(found.bad, 3), "share": found.share,
        "spells": [asdict(spell) for spell in sorted(longest, key=lambda spell: spell.from_s)],
        "figures": [_figure(stage, clear, *figure) for figure in FIGURES] if found.spells else [],
    }  # fmt: skip


def _figure(stage: Steady, clear: Steady, name: str, view: str) -> Json:
    """A figure with everything, and without the times that bad seconds blurred."""
    metric = BY_NAME[name]
    every, without = (row(metric, one, view, PS) for one in (stage, clear))
    return {
        "metric": name, "title": metric.title, "view": view, "n": every.n, "left_out": every.n - without.n,
        "with": [quantile(q) for q in every.quantiles],
        "without": [quantile(q) for q in without.quantiles],
    }  # fmt: skip


def sentence(bad: Json) -> str:
    """How much of the stage was bad, and what that means for the figures."""
    worst = max(bad["spells"], key=lambda spell: spell["worst_ms"])
    return (
        f"Workers were stalled for more than 50 ms in {share(bad['share'])} of {count(bad['seconds'])} seconds. "
        f"Worst: worker {worst['worker']} at {clock(worst['from_s'])}, {worst['cause']} by {ms(worst['worst_ms'])} ms. "
        "Times since scheduled keep every request. The table shows the other figures with and without the times that "
        "stalls blurred."
    )


def rows(bad: Json) -> list[tuple[str, ...]]:
    """One row per figure."""
    return [
        (
            one["title"],
            *(cell(one[which][at]) for at in range(len(PS)) for which in ("with", "without")),
            count(one["n"]),
            f"{count(one['left_out'])} ({share(one['left_out'] / one['n'] if one['n'] else 0.0)})",
        )
        for one in bad["figures"]
    ]
