"""The measurements as Markdown: tables for docs/explanation/benchmarks.md, and the targets with what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from measure import Result
from reference_server import Load

from tailgauge_analysis.stats.quantiles import CLIENT

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- client: begin -->", "<!-- client: end -->"
NAMES = {
    "reference": "C reference",
    "tailgauge": "Tailgauge",
    "workers": "Tailgauge, 2 workers",
    "workers_8": "Tailgauge, 8 workers",
    "changing": "Tailgauge, changing events",
    "tls": "Tailgauge, TLS",
    "anthropic": "Tailgauge, Anthropic",
    "python_reader": "Tailgauge, reader in Python",
    "locust": "Locust, by hand",
    "guidellm": "GuideLLM",
    "aiperf": "AIPerf",
}
# Mean TTFT error in ms of vLLM's Rust client on 4 cores, by streams, as its project published it.
VLLM_RUST = {1: 2.6, 10: 2.7, 100: 3.5, 500: 19.9, 1000: 28.1}
Rounds = dict[str, list[Result]]


@dataclass(slots=True)
class Figures:
    """Everything that was measured."""

    machine: str
    quick: bool
    missing: list[str] = field(default_factory=list)  # peers that are left out, and why
    herds: dict[int, Rounds] = field(default_factory=dict)  # by users
    spread: dict[int, Rounds] = field(default_factory=dict)  # by streams
    short: dict[tuple[int, int], Rounds] = field(default_factory=dict)  # by chunks of an answer, requests/s
    minute: dict[int, Rounds] = field(default_factory=dict)
    capacity: dict[tuple[str, str], Result | None] = field(default_factory=dict)  # by kind of load, client
    mock: dict[int, Rounds] = field(default_factory=dict)
    start: Rounds = field(default_factory=dict)


# --- figures of some repetitions ----------------------------------------------------------------------------------

Results = list[Result]
Figure = Callable[[Results, Results], str]  # of a client's repetitions, beside the native client's


def middle(results: Results, name: str) -> float | None:
    """Median of a figure over the repetitions."""
    values = [getattr(result, name) for result in results]
    return None if None in values else median(values)


def ratio(mine: Results, of: Results, name: str) -> float:
    """Median over the repetitions of a figure against another client's of the same repetition."""
    return float(median(getattr(a, name) / getattr(b, name) for a, b in zip(mine, of, strict=True)))


def _number(name: str, form: str) -> Figure:
    def figure(results: Results, _: Results) -> str:
        value = middle(results, name)
        return "-" if value is None else format(value, form)

    return figure


def _to_c(name: str, form: str = ".2f") -> Figure:
    def figure(results: Results, of: Results) -> str:
        comparable = len(results) == len(of) and getattr(results[0], name) is not None
        return format(ratio(results, of, name), form) if comparable else "-"

    return figure


def _verdicts(results: Results, _: Results) -> str:
    """How many runs had which verdict."""
    counts = Counter(result.verdict for result in results if result.verdict)
    return ", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items(), reverse=True)) or "-"


def _marks(results: Results, _: Results) -> str:
    """Which marks the report sets on p99 of TTFT or of gaps, and in how many runs."""
    counts = Counter(result.mark for result in results if result.mark)
    return ", ".join(f"{mark} {count}" for mark, count in counts.items()) or "-"


COLUMNS: dict[str, Figure] = {
    "chunks per second": _number("rate", ",.0f"),
    "TTFT p50 error, ms": _number("ttft_p50_error", "+.2f"),
    "TTFT p99 error, ms": _number("ttft_p99_error", "+.2f"),
    "gap p99 error, ms": _number("gap_p99_error", "+.2f"),
    "of single requests, p99": _number("ttft_each_p99", ".2f"),
    "of single gaps, p99": _number("gap_each_p99", ".2f"),
    "mean TTFT error, ms": _number("ttft_mean_error", "+.2f"),
    "mean TTFT, ms": _number("ttft_mean", ".2f"),
    "exact chunks": _number("exact", ".2%"),
    "measurement": _verdicts,
    "marked": _marks,
    "CPU us per chunk, steady": _number("us_per_chunk", ".1f"),
    "whole run": _number("us_per_chunk_whole", ".1f"),
    "all processes": _number("us_per_chunk_tree", ".1f"),
    "ratio to C, steady": _to_c("us_per_chunk"),
    "ratio to C, whole run": _to_c("us_per_chunk_whole"),
    "CPU us per request": _number("us_per_request", ".0f"),
    "ratio to C": _to_c("us_per_request", ".1f"),
    "client's CPU": _number("cpu_share", ".0%"),
    "server's CPU": _number("server_cpu_share", ".0%"),
    "server late, p99, ms": _number("server_late_p99", ".2f"),
    "bytes per chunk": _number("bytes_per_chunk", ".2f"),
    "writer's share of CPU": _number("writer_share", ".2%"),
    "to the first request, s": _number("first_request_s", ".2f"),
    "from the last chunk to the page, s": _number("page_s", ".2f"),
}


def line(name: str, load: Load, result: Result) -> str:
    """One run, for the terminal."""
    size = f"{load.rate_per_s:5.0f}/s     " if load.rate_per_s else f"{load.streams:5} streams"
    cost = [
        f"{value:8.1f} us/{what}"
        for value, what in ((result.us_per_chunk, "chunk"), (result.us_per_request, "request"))
        if value is not None
    ]
    gap = (
        "" if result.gap_p99_error is None or load.chunks == 1 else f"gap p99 {result.gap_p99_error:+.2f} ms"
    )
    return "  ".join((
        f"{size}{' herd' * load.batch}  {name:10}", *cost, f"TTFT p99 {result.ttft_p99_error:+.2f} ms", gap,
        f"server {result.server_cpu_share:.0%}", result.verdict or "", f"LOST {result.lost}" if result.lost else "",
    ))  # fmt: skip


def ratio_line(name: str, mine: Results, reference: Results) -> str:
    """The ratios of a single load."""
    steady, whole = (ratio(mine, reference, figure) for figure in ("us_per_chunk", "us_per_chunk_whole"))
    return f"{name} / reference: {steady:.2f} steady, {whole:.2f} whole run"


# --- the page -----------------------------------------------------------------------------------------------------


def page(figures: Figures, minutes: float) -> str:
    """All tables."""
    loads = (*figures.herds.values(), *figures.spread.values())
    readers = {one.reader for rounds in loads for one in rounds.get("tailgauge", []) if one.reader}
    parts = [
        f"Measured on {figures.machine}, in {minutes:.0f} minutes; medians of the repetitions."
        + f" Reader of Tailgauge: {', '.join(sorted(readers))}." * bool(readers)
    ]
    parts += [part(figures) for part in (_herds, _spread, _short, _minute, _capacity, _mock, _start)]
    if not figures.quick:
        parts += ["### Targets", _targets(figures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(text: str) -> None:
    """Put the tables between their marks in docs/explanation/benchmarks.md."""
    old = PAGE.read_text(encoding="utf-8")
    before, mark, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{PAGE}: the marks {BEGIN} and {END} are not there")
    PAGE.write_text(f"{before}{BEGIN}\n{text}{END}{after}", encoding="utf-8")


def _table(heads: str, rows: list[str]) -> str:
    """`heads`: "a | b". The first two columns are words."""
    columns = heads.count("|") + 1
    return "\n".join((f"| {heads} |", "|---|---|" + "---:|" * (columns - 2), *rows))


def _loads(first: str, loads: dict[str, Rounds], columns: tuple[str, ...]) -> str:
    """A table with a row for each client of each load."""
    rows = []
    for load, rounds in loads.items():
        for name, results in rounds.items():
            cells = [COLUMNS[column](results, rounds.get("reference", [])) for column in columns]
            rows.append(f"| {load} | {NAMES[name]} | {' | '.join(cells)} |")
    return _table(f"{first} | client | {' | '.join(columns)}", rows)


def _herds(figures: Figures) -> str:
    if not figures.herds:
        return ""
    columns = (
        "TTFT p50 error, ms", "TTFT p99 error, ms", "gap p99 error, ms", "exact chunks", "measurement", "marked",
        "CPU us per chunk, steady", "all processes", "server late, p99, ms",
    )  # fmt: skip
    table = _loads("users", {str(users): rounds for users, rounds in figures.herds.items()}, columns)
    left_out = f"\n\nLeft out: {'; '.join(figures.missing)}." if figures.missing else ""
    return f"### Herds\n\n{table}{left_out}"


def _spread(figures: Figures) -> str:
    if not figures.spread:
        return ""
    columns = (
        "CPU us per chunk, steady", "whole run", "all processes", "ratio to C, steady", "ratio to C, whole run", "TTFT p99 error, ms",
        "of single requests, p99", "gap p99 error, ms", "of single gaps, p99", "exact chunks",
    )  # fmt: skip
    loads = {str(streams): rounds for streams, rounds in figures.spread.items()}
    return f"### Spread phases\n\n{_loads('streams', loads, columns)}"


def _short(figures: Figures) -> str:
    if not figures.short:
        return ""
    loads = {
        f"{chunks} chunk{'s' * (chunks > 1)}, {rate:,}/s": rounds
        for (chunks, rate), rounds in figures.short.items()
    }
    columns = (
        "CPU us per request",
        "ratio to C",
        "TTFT p50 error, ms",
        "TTFT p99 error, ms",
        "measurement",
        "client's CPU",
    )
    return f"### Short answers\n\n{_loads('answers of', loads, columns)}"


def _minute(figures: Figures) -> str:
    if not figures.minute:
        return ""
    columns = (
        "CPU us per chunk, steady", "whole run", "all processes", "ratio to C, whole run", "bytes per chunk", "writer's share of CPU",
    )  # fmt: skip
    loads = {f"{streams} streams": rounds for streams, rounds in figures.minute.items()}
    return f"### A minute\n\n{_loads('load', loads, columns)}"


def _capacity(figures: Figures) -> str:
    if not figures.capacity:
        return ""
    columns = ("chunks per second", "client's CPU", "TTFT p99 error, ms", "gap p99 error, ms", "server's CPU")
    rows = []
    for (load, name), result in figures.capacity.items():
        cells = [COLUMNS[column]([result], []) for column in columns] if result else ["-"] * len(columns)
        rows.append(f"| {load} | {NAMES[name]} | {' | '.join(cells)} |")
    return f"### Honest capacity\n\n{_table('load | client | ' + ' | '.join(columns), rows)}"


def _mock(figures: Figures) -> str:
    if not figures.mock:
        return ""
    columns = ("mean TTFT, ms", "mean TTFT error, ms", "TTFT p99 error, ms", "gap p99 error, ms")
    rows = []
    for streams, rounds in figures.mock.items():
        rows.append(
            f"| {streams} | vLLM's Rust client, 4 cores, as published | - | {VLLM_RUST[streams]:+.1f} | - | - |"
        )
        for name, results in rounds.items():
            cells = [COLUMNS[column](results, []) for column in columns]
            rows.append(f"| {streams} | {NAMES[name]} | {' | '.join(cells)} |")
    return f"### The mock of vLLM's study\n\n{_table('streams | client | ' + ' | '.join(columns), rows)}"


def _start(figures: Figures) -> str:
    if not figures.start:
        return ""
    columns = ("to the first request, s", "from the last chunk to the page, s")
    return f"### Start and end\n\n{_loads('load', {'10 users': figures.start}, columns)}"


# --- targets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure; `measured` is None where the figure was not measured."""

    what: str
    bound: float
    measured: float | None
    unit: str = ""
    at_least: bool = False

    def row(self) -> str:
        """The figure, and by how much it misses."""
        side = "at least" if self.at_least else "at most"
        if self.measured is None:
            return f"| {side} | {self.what} | {self.bound:g}{self.unit} | - | not measured |"
        met = self.measured >= self.bound if self.at_least else self.measured <= self.bound
        found = "met" if met else f"missed by {abs(self.measured / self.bound - 1):.0%}"
        return (
            f"| {side} | {self.what} | {self.bound:g}{self.unit} | {self.measured:.2f}{self.unit} | {found} |"
        )


def _targets(figures: Figures) -> str:
    targets = [*_of_herds(figures), *_of_cost(figures), *_of_start(figures)]
    return _table(" | figure | target | measured | ", [target.row() for target in targets])


def _of_herds(figures: Figures) -> list[Target]:
    found = []
    for users, rounds in figures.herds.items():
        many, mine = users == 2000, rounds["tailgauge"]
        for what in ("ttft", "gap"):
            errors = [
                abs(getattr(one, f"{what}_p99_error"))
                for one in mine
                if not (many and one.verdict == "INVALID")
            ]
            name = (
                f"{'TTFT' if what == 'ttft' else what} p99 error, herd of {users}{', unless INVALID' * many}"
            )
            found.append(Target(name, 2.0 if many else 1.0, median(errors or [0.0]), " ms"))
        if not many:
            valid = sum(one.verdict == "VALID" and one.mark != CLIENT for one in mine) / len(mine)
            found.append(Target(f"exact chunks, herd of {users}", 0.99, middle(mine, "exact"), at_least=True))
            found.append(Target(f"VALID runs, herd of {users}", 0.5, valid, at_least=True))
    return found


def _of_cost(figures: Figures) -> list[Target]:
    found = []
    for load, bound in (("spread", 0.6), ("herds", 0.45)):
        runs = [
            figures.capacity[load, name]
            for name in ("tailgauge", "reference")
            if (load, name) in figures.capacity
        ]
        mine, c = [run.rate or 0.0 if run else 0.0 for run in runs] or [0.0, 0.0]
        share = mine / c if c else float("inf") if mine else None
        found.append(Target(f"honest capacity, {load}, ratio to C", bound, share, at_least=True))
    five = figures.spread.get(500, {})

    def against(mine: str, of: str, rounds: Rounds, figure: str) -> float | None:
        return ratio(rounds[mine], rounds[of], figure) if mine in rounds and of in rounds else None

    found += [
        Target(
            "CPU per chunk, steady, 500 streams, ratio to C",
            1.6,
            against("tailgauge", "reference", five, "us_per_chunk"),
        ),
        Target(
            "changing events, ratio to constant ones",
            1.15,
            against("changing", "tailgauge", five, "us_per_chunk"),
        ),
        Target("TLS, ratio to plain", 1.25, against("tls", "tailgauge", five, "us_per_chunk")),
    ]
    whole = figures.minute.get(500, {})
    found.append(
        Target(
            "whole run of a minute, ratio to C",
            2.0,
            against("tailgauge", "reference", whole, "us_per_chunk_whole"),
        )
    )
    for rate in (400, 800):
        share = against("tailgauge", "locust", figures.short.get((1, rate), {}), "us_per_request")
        found.append(Target(f"CPU per request at {rate}/s, ratio to Locust by hand", 1.5, share))
    ours = whole.get("tailgauge", [])
    found.append(Target("bytes per chunk", 6.0, middle(ours, "bytes_per_chunk") if ours else None))
    found.append(
        Target("writer's share of the worker's CPU", 0.1, middle(ours, "writer_share") if ours else None)
    )
    return found


def _of_start(figures: Figures) -> list[Target]:
    def first(name: str) -> float | None:
        return middle(figures.start[name], "first_request_s") if name in figures.start else None

    one, eight = first("tailgauge"), first("workers_8")
    return [
        Target("first request, OpenAI", 2.0, one, " s"),
        Target("first request, Anthropic", 3.3, first("anthropic"), " s"),
        Target("first request of 8 workers, ratio to one", 1.5, eight / one if one and eight else None),
    ]
