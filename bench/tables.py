"""The measurements as Markdown: tables for docs/explanation/benchmarks.md, with targets and results. Missed targets are listed with their
distance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from measure import Result, median_of

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- client: begin -->", "<!-- client: end -->"
NAMES = {
    "reference": "C reference",
    "tailgauge": "Tailgauge, kernel timestamps",
    "anthropic": "Tailgauge, kernel timestamps, Anthropic",
    "tls": "Tailgauge, kernel timestamps, TLS",
    "user": "Tailgauge, user clock",
    "reading": "Tailgauge's reading path alone",
    "sdk": "official SDK, typed stream",
    "by_hand": "geventhttpclient, by hand",
}
Rounds = dict[str, list[Result]]


@dataclass(slots=True)
class Figures:
    """Everything that was measured."""

    machine: str
    repeat: int
    quick: bool
    loads: dict[int, Rounds] = field(default_factory=dict)  # by streams
    requests: Rounds = field(default_factory=dict)  # answers of one chunk
    long: Rounds = field(default_factory=dict)
    capacity: dict[str, Result | None] = field(default_factory=dict)


def ratio(mine: list[Result], of: list[Result], figure: Callable[[Result], float]) -> float:
    """Median over the repetitions of a figure against another client's of the same repetition."""
    return median(figure(a) / figure(b) for a, b in zip(mine, of, strict=True))


def steady(result: Result) -> float:
    """CPU us per chunk."""
    return result.us_per_chunk


def whole(result: Result) -> float:
    """The same from the start to the last closed file."""
    return result.us_per_chunk_whole


def line(name: str, streams: int, result: Result) -> str:
    """One run, for the terminal."""
    return (
        f"{streams:5} streams  {name:10} {steady(result):6.1f} us/chunk ({whole(result):.1f} whole)  "
        f"{result.us_per_request:6.0f} us/request  TTFT p99 {result.ttft_p99_error:+.2f} ms  gap p99 {result.gap_p99_error:+.2f} ms  "
        f"{result.rate / 1e3:.1f}k/s  server {result.server_cpu_share:.0%}"
        + (f"  LOST {result.lost}" if result.lost else "")
    )


def ratio_line(name: str, mine: list[Result], reference: list[Result]) -> str:
    """The ratios of a single load."""
    return f"{name} / reference: {ratio(mine, reference, steady):.2f} steady, {ratio(mine, reference, whole):.2f} whole run"


def page(figures: Figures, minutes: float) -> str:
    """All tables."""
    parts = [
        f"Measured on {figures.machine}, in {minutes:.0f} minutes; {_repeated(figures.repeat)}.",
        _loads(figures),
        _cost_of_requests(figures),
    ]
    if figures.long:
        parts.append(_long(figures))
    if figures.capacity:
        parts.append(_capacity(figures))
    if not figures.quick:
        parts.append(_bars(figures))
    return "\n\n".join(parts) + "\n"


def write(text: str) -> None:
    """Put the tables between their marks in docs/explanation/benchmarks.md."""
    old = PAGE.read_text(encoding="utf-8")
    before, mark, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{PAGE}: the marks {BEGIN} and {END} are not there")
    PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def _repeated(times: int) -> str:
    return "each load once" if times == 1 else f"medians of {times} repetitions in turn"


def _table(head: str, rows: list[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join((head, "|---|---|" + "---:|" * (columns - 2), *rows))


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _number(value: float | None, places: int = 1) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _loads(figures: Figures) -> str:
    rows = []
    for streams, rounds in figures.loads.items():
        for name, results in rounds.items():
            mid, of = median_of(results), rounds["reference"]
            rows.append(
                f"| {streams} | {NAMES[name]} | {mid.rate:,.0f} | {mid.us_per_chunk:.1f} | {mid.us_per_chunk_whole:.1f} | {_number(mid.us_per_chunk_tree)} "
                f"| {ratio(results, of, steady):.2f} | {ratio(results, of, whole):.2f} | {mid.ttft_p99_error:+.2f} | {mid.ttft_each_p99:.2f} "
                f"| {mid.gap_p99_error:+.2f} | {mid.gap_each_p99:.2f} | {_share(mid.exact_first)} | {_share(mid.exact)} "
                f"| {_number(mid.bytes_per_chunk)} | {_share(mid.writer_share)} |"
            )
    head = (
        "| streams | client | chunks per second | CPU us per chunk, steady | whole run | all processes | ratio to C, steady | whole run "
        "| TTFT p99 error, ms | of single requests, p99 | gap p99 error, ms | of single gaps, p99 | exact first chunks | exact chunks "
        "| bytes per chunk | writer's share of CPU |"
    )
    return _table(head, rows)


def _cost_of_requests(figures: Figures) -> str:
    rows = [
        f"| answers of one chunk | {NAMES[name]} | {median_of(results).us_per_request:.0f} "
        f"| {ratio(results, figures.requests['reference'], lambda r: r.us_per_request):.1f} | {median_of(results).ttft_p99_error:+.2f} |"
        for name, results in figures.requests.items()
    ]
    return _table("| load | client | CPU us per request | ratio to C | TTFT p99 error, ms |", rows)


def _long(figures: Figures) -> str:
    rows = []
    for name, (result, *_) in figures.long.items():
        of = figures.long["reference"]
        rows.append(
            f"| 500 streams, a minute | {NAMES[name]} | {result.us_per_chunk:.1f} | {result.us_per_chunk_whole:.1f} | {_number(result.us_per_chunk_tree)} "
            f"| {ratio([result], of, whole):.2f} | {_number(result.bytes_per_chunk, 2)} | {_share(result.writer_share)} |"
        )
    head = "| load | client | CPU us per chunk, steady | whole run | all processes | ratio to C, whole run | bytes per chunk | writer's share of CPU |"
    return _table(head, rows)


def _capacity(figures: Figures) -> str:
    rows = []
    for name, result in figures.capacity.items():
        if result is None:
            rows.append(f"| honest capacity | {NAMES[name]} | below the lowest rung | - | - | - | - |")
            continue
        rows.append(
            f"| honest capacity | {NAMES[name]} | {result.rate:,.0f} | {result.cpu_share:.0%} | {result.ttft_p99_error:+.2f} "
            f"| {result.gap_p99_error:+.2f} | {result.server_cpu_share:.0%} |"
        )
    return _table(
        "| | client | chunks per second | client's CPU | TTFT p99 error, ms | gap p99 error, ms | server's CPU |",
        rows,
    )


def _bars(figures: Figures) -> str:
    """Targets and results."""
    loads, name = figures.loads, "tailgauge"
    found: list[tuple[str, float, float, str]] = []  # what, bar, measured, unit
    for streams in (500, 1000):
        of = loads[streams]
        found.append(
            (
                f"reading path, ratio to C, steady, {streams} streams",
                1.3,
                ratio(of["reading"], of["reference"], steady),
                "",
            )
        )
    found.append(
        (
            "whole run of a minute, ratio to C",
            2.2,
            ratio(figures.long[name], figures.long["reference"], whole),
            "",
        )
    )
    found.append(("CPU per request", 450, median_of(figures.requests[name]).us_per_request, " us"))
    found.append(
        ("TTFT p99 error, 1000 streams", 1.0, abs(median_of(loads[1000][name]).ttft_p99_error), " ms")
    )
    found.append(("gap p99 error, 500 streams", 1.0, abs(median_of(loads[500][name]).gap_p99_error), " ms"))
    found.append(("TLS against plain, steady", 1.2, ratio(loads[500]["tls"], loads[500][name], steady), ""))
    stored = figures.long[name][0]
    found.append(("bytes per chunk", 6.0, stored.bytes_per_chunk or 0.0, ""))
    found.append(("writer's share of the worker's CPU", 0.1, stored.writer_share or 0.0, ""))
    rows = [
        f"| at most | {what} | {bar:g}{unit} | {value:.2f}{unit} | {'met' if value <= bar else f'missed by {value / bar - 1:.0%}'} |"
        for what, bar, value, unit in found
    ]
    best = figures.capacity.get(name)
    rate = best.rate if best else 0.0
    rows.append(
        f"| at least | honest capacity, chunks per second | 40,000 | {rate:,.0f} | {'met' if rate >= 40_000 else f'missed by {1 - rate / 40_000:.0%}'} |"
    )
    return _table("| | figure | target | measured | |", rows)
