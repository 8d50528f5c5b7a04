"""The matrix: each percentile of each kind of request, against each use.

Rule: rows of the latency table and of the groups in, outcomes out; nothing is estimated here. A bound is decided as an
objective is (slo.py): on the 95% interval, in the offered view. A use is met at a percentile where both its bounds pass,
missed where one fails, else open; where a kind of request has no first content of its own, the whole time alone says it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tailgauge_analysis.metrics.groups import SLOW, Group
from tailgauge_analysis.metrics.latency import OFFERED, Row
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS, decide
from tailgauge_analysis.sections.presets.bounds import MLPERF, USES, Served, Use
from tailgauge_analysis.stats.quantiles import Quantile
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import quantile

PS = (0.5, 0.95, 0.99)
ALL = "all"
FIRST, TOTALS = "ttft_sched", ("e2e_sched", "join_sched", "turnaround")


@dataclass(frozen=True, slots=True)
class Segment:
    """One kind of request; its time to the first content and its whole time at PS, empty where it has none."""

    by: str
    name: str
    first: tuple[Quantile, ...]
    total: tuple[Quantile, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """All segments, the whole first; and the p99 of TTFT and of TPOT, which MLPerf bounds."""

    segments: tuple[Segment, ...]
    ttft_p99: Quantile | None
    tpot_p99: Quantile | None


def matrix(whole: Sequence[Row], groups: Sequence[Group]) -> Matrix | None:
    """The segments of a run that have a latency; None without one."""
    segments = [segment for segment in _segments(whole, groups) if segment.first or segment.total]
    if not segments:
        return None
    return Matrix(tuple(segments), _p99(whole, FIRST), _p99(whole, "tpot"))


def _segments(whole: Sequence[Row], groups: Sequence[Group]) -> Iterator[Segment]:
    yield _segment(ALL, ALL, whole)
    if len(groups) > 1:
        for group in groups:
            if group.by != SLOW:
                yield _segment(group.by, group.name, group.latency)


def _segment(by: str, name: str, rows: Sequence[Row]) -> Segment:
    total = next((at for metric in TOTALS if (at := _at(rows, metric))), ())
    return Segment(by, name, _at(rows, FIRST), total)


def _at(rows: Sequence[Row], metric: str) -> tuple[Quantile, ...]:
    found = [row for row in rows if (row.metric.name, row.view) == (metric, OFFERED) and row.n]
    return tuple(q for q in found[0].quantiles if q.p in PS) if found else ()


def _p99(rows: Sequence[Row], metric: str) -> Quantile | None:
    return next((q for q in _at(rows, metric) if q.p == 0.99), None)


def judge(segment: Segment, use: Use) -> list[str]:
    """The outcome of a use at each of PS."""
    bounds = ((segment.first, use.ttft_ms), (segment.total, use.total_ms))
    decided = [[decide(q, max_ms)[0] for q in qs] for qs, max_ms in bounds if qs]
    return [_both(at) for at in zip(*decided, strict=True)]


def _both(outcomes: Sequence[str]) -> str:
    return FAIL if FAIL in outcomes else INCONCLUSIVE if INCONCLUSIVE in outcomes else PASS


def plainly(found: Matrix | None, beyond: str) -> Json | None:
    """The key `presets` of the report's contents, but for the alarms."""
    if found is None:
        return None
    labels = [percentile(p) for p in PS]
    segments = [
        {
            "by": one.by, "name": one.name,
            "ttft": [quantile(q, beyond) for q in one.first], "total": [quantile(q, beyond) for q in one.total],
            "outcomes": {use.name: dict(zip(labels, judge(one, use), strict=True)) for use in USES},
        }
        for one in found.segments
    ]  # fmt: skip
    return {
        "uses": [{"name": use.name, "ttft_ms": use.ttft_ms, "total_ms": use.total_ms} for use in USES],
        "segments": segments,
        "mlperf": _mlperf(found, beyond),
        "sentence": sentence(segments[0]),
    }


def _mlperf(found: Matrix, beyond: str) -> Json | None:
    """The p99s and each rule's outcome; None without both."""
    if found.ttft_p99 is None or found.tpot_p99 is None:
        return None
    ttft, tpot = found.ttft_p99, found.tpot_p99

    def outcome(served: Served) -> str:
        return _both((decide(ttft, served.ttft_ms)[0], decide(tpot, served.tpot_ms)[0]))

    return {
        "ttft_p99": quantile(ttft, beyond), "tpot_p99": quantile(tpot, beyond),
        "rules": [
            {"name": one.name, "ttft_ms": one.ttft_ms, "tpot_ms": one.tpot_ms, "outcome": outcome(one)} for one in MLPERF
        ],
    }  # fmt: skip


def sentence(whole: Json) -> str:
    """For which uses the whole run is fast enough, at p99 or, where that is open everywhere, at p95 or p50."""
    for label in ("p99", "p95", "p50"):
        by = {name: outcomes[label] for name, outcomes in whole["outcomes"].items()}
        if set(by.values()) == {INCONCLUSIVE}:
            continue
        words = ((PASS, "fast enough for"), (FAIL, "too slow for"), (INCONCLUSIVE, "open for"))
        said = [
            f"{text} {', '.join(name for name in by if by[name] == word)}"
            for word, text in words
            if word in by.values()
        ]
        return f"Of everything offered, the {label} is {'; '.join(said)}."
    return "The run is too short to hold any percentile against the bounds."
