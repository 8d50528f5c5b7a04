"""Fit by use case: each percentile of each kind of request against bounds on latency that others set.

A use case bounds the time to the first content and the whole time; MLPerf bounds the p99 of TTFT and TPOT. A bound is
decided as an objective is (slo.py), of everything offered. A use case is met at a percentile where
both its bounds pass, missed where one fails, else inconclusive; a kind of request without first content is decided by the
whole time alone. These are no objectives of a run: they change no exit code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailgauge_analysis.metrics.groups import SLOW, Group
from tailgauge_analysis.metrics.latency import OFFERED, Row
from tailgauge_analysis.metrics.slo import FAIL, INCONCLUSIVE, PASS, decide
from tailgauge_analysis.stats.quantiles import Quantile
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.text.quantile import quantile, value_text

PS = (0.5, 0.95, 0.99)
P99 = (0.99,)
LABELS = tuple(percentile(p) for p in PS)
ALL = "all"
FIRST, TOTALS = "ttft_sched", ("e2e_sched", "join_sched", "turnaround")

# Name, first content and whole time in ms.
USES = (
    ("code completion", 200, 2_000),
    ("real-time chat", 500, 5_000),
    ("summarisation", 3_000, 15_000),
    ("batch", 10_000, 60_000),
)
# MLPerf Inference v6 rules, 2026-07: model and scenario, p99 of TTFT and of TPOT in ms.
MLPERF = (
    ("Llama 2 70B, server", 2_000, 200), ("Llama 2 70B, interactive", 450, 40),
    ("Llama 3.1 8B, server", 2_000, 100), ("Llama 3.1 8B, interactive", 500, 30),
    ("Llama 3.1 405B, server", 6_000, 175), ("Llama 3.1 405B, interactive", 4_500, 80),
    ("DeepSeek-R1, server", 2_000, 80), ("DeepSeek-R1, interactive", 1_500, 15),
    ("GPT-OSS 120B, server", 3_000, 80), ("GPT-OSS 120B, interactive", 2_000, 20),
    ("Mixtral 8x7B, server", 2_000, 200),
)  # fmt: skip


def use_cases(whole: Sequence[Row], groups: Sequence[Group], missing: Json) -> Json | None:
    """`presets` of report.json, the segment of all requests first; None without a latency. `missing`: see metrics.pace."""
    segments = [_segment(*one) for one in _kinds(whole, groups)]
    segments = [one for one in segments if one["ttft"] or one["total"]]
    if not segments:
        return None
    return {
        "uses": [{"name": name, "ttft_ms": ttft, "total_ms": total} for name, ttft, total in USES],
        "segments": segments,
        "mlperf": _mlperf(whole) if missing["answers"] <= 0.01 * missing["of"] else None,
        "sentence": sentence(segments[0]),
    }


def _kinds(whole: Sequence[Row], groups: Sequence[Group]) -> Iterator[tuple[str, str, Sequence[Row]]]:
    yield ALL, ALL, whole
    if len(groups) > 1:
        yield from ((group.by, group.name, group.latency) for group in groups if group.by != SLOW)


def _segment(by: str, name: str, rows: Sequence[Row]) -> Json:
    first = _row(rows, FIRST)
    total = next((of for metric in TOTALS if (of := _row(rows, metric))), None)
    return {
        "by": by,
        "name": name,
        "ttft": [quantile(q) for q in _at(first)],
        "total": [quantile(q) for q in _at(total)],
        "outcomes": {
            use: dict(zip(LABELS, _outcomes(((first, ttft_ms), (total, total_ms)), PS), strict=False))
            for use, ttft_ms, total_ms in USES
        },
    }


def _row(rows: Sequence[Row], metric: str) -> Row | None:
    return next((row for row in rows if (row.metric.name, row.view) == (metric, OFFERED) and row.n), None)


def _at(row: Row | None, ps: Sequence[float] = PS) -> list[Quantile]:
    return [q for q in row.quantiles if q.p in ps] if row else []


def _outcomes(bounds: Sequence[tuple[Row | None, float]], ps: Sequence[float]) -> list[str]:
    """The outcome at each percentile, of the bounds on what was measured."""
    decided = []
    for row, max_ms in bounds:
        if row is not None:
            beyond = row.beyond(max_ms)
            decided.append([decide(beyond, q, max_ms)[0] for q in _at(row, ps)])
    return [
        FAIL if FAIL in at else INCONCLUSIVE if INCONCLUSIVE in at else PASS
        for at in zip(*decided, strict=True)
    ]


def _mlperf(whole: Sequence[Row]) -> Json | None:
    """The p99s and each rule's outcome; None without both."""
    ttft, tpot = _row(whole, FIRST), _row(whole, "tpot")
    if ttft is None or tpot is None:
        return None
    return {
        "ttft_p99": quantile(_at(ttft, P99)[0]), "tpot_p99": quantile(_at(tpot, P99)[0]),
        "rules": [
            {
                "name": name, "ttft_ms": ttft_ms, "tpot_ms": tpot_ms,
                "outcome": _outcomes(((ttft, ttft_ms), (tpot, tpot_ms)), P99)[0],
            }
            for name, ttft_ms, tpot_ms in MLPERF
        ],
    }  # fmt: skip


def sentence(whole: Json) -> str:
    """Which use cases the run fits, at p99 or, where that is inconclusive for all, at p95 or p50."""
    texts = ((PASS, "fits"), (FAIL, "too slow for"), (INCONCLUSIVE, "inconclusive for"))
    for label in reversed(LABELS):
        by = {name: outcomes[label] for name, outcomes in whole["outcomes"].items()}
        if set(by.values()) != {INCONCLUSIVE}:
            parts = [
                f"{text} {', '.join(name for name in by if by[name] == outcome)}"
                for outcome, text in texts
                if outcome in by.values()
            ]
            return f"{label} of everything offered: {'; '.join(parts)}."
    return "The run is too short to decide any use case."


def bounds(use: Json) -> str:
    """`TTFT 500 ms, whole 5 s`."""
    ttft, total = (
        f"{use[key] / 1000:g} s" if use[key] >= 1000 else f"{use[key]:g} ms"
        for key in ("ttft_ms", "total_ms")
    )
    return f"TTFT {ttft}, whole {total}"


def header(found: Json) -> list[str]:
    """Columns after the segment's name."""
    uses = (f"{use['name']} ({bounds(use)})" for use in found["uses"])
    return ["percentile", "TTFT (ms)", "whole (ms)", *uses]


def rows(found: Json) -> list[list[str]]:
    """A row per segment and percentile."""
    out = []
    for one in found["segments"]:
        name = one["name"] if one["by"] == one["name"] else f"{one['by']}: {one['name']}"
        for i, label in enumerate(LABELS):
            waits = [value_text(one[key][i]) if one[key] else "–" for key in ("ttft", "total")]
            out.append([name, label, *waits, *(one["outcomes"][use["name"]][label] for use in found["uses"])])
    return out
