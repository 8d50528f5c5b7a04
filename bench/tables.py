"""The measurements as Markdown: tables for docs/explanation/benchmarks.md, and the targets with what was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from docs_page import replace_between
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
REFERENCE = "reference"
CAPACITY = "capacity"
Results = list[Result]
Rounds = dict[str, Results]  # by client
Parts = dict[str, dict[str, Rounds]]  # by table and load


# --- figures of some repetitions ----------------------------------------------------------------------------------

Figure = Callable[[Results, Rounds], str]  # of a client's repetitions, beside those of all clients


def middle(results: Results, name: str) -> float | None:
    """Median of a figure over the repetitions, if there are any."""
    values = [getattr(result, name) for result in results]
    return None if None in values or not values else median(values)


def ratio(mine: Results, of: Results, name: str) -> float:
    """Median over the repetitions of a figure against another client's of the same repetition."""
    return float(median(getattr(a, name) / getattr(b, name) for a, b in zip(mine, of, strict=True)))


def _number(name: str, form: str) -> Figure:
    def figure(results: Results, _: Rounds) -> str:
        value = middle(results, name)
        return "-" if value is None else format(value, form)

    return figure


def _ratio(name: str, form: str = ".2f", to: str = "reference") -> Figure:
    def figure(results: Results, rounds: Rounds) -> str:
        of = rounds.get(to, [])
        comparable = len(results) == len(of) and middle(results, name) is not None
        return format(ratio(results, of, name), form) if comparable else "-"

    return figure


def counted(verdicts: Iterable[str]) -> str:
    """How often each verdict came."""
    counts = Counter(verdicts)
    return (
        ", ".join(f"{verdict} {count}" for verdict, count in sorted(counts.items(), reverse=True))
        or "-"
    )


def chunks_text(count: int) -> str:
    """Return the size of an answer."""
    return "1 chunk" if count == 1 else f"{count} chunks"


def _verdicts(results: Results, _: Rounds) -> str:
    """How many runs had which verdict."""
    return counted(result.verdict for result in results if result.verdict)


COLUMNS: dict[str, Figure] = {
    "chunks per second": _number("rate", ",.0f"),
    "TTFT p99 error, ms": _number("ttft_p99_error", "+.2f"),
    "gap p99 error, ms": _number("gap_p99_error", "+.2f"),
    "of single requests, p99": _number("ttft_each_p99", ".2f"),
    "mean TTFT error, ms": _number("ttft_mean_error", "+.2f"),
    "exact chunks": _number("exact", ".2%"),
    "measurement": _verdicts,
    "CPU us per chunk, steady": _number("us_per_chunk", ".1f"),
    "CPU us per chunk, whole run": _number("us_per_chunk_whole", ".1f"),
    "ratio to C, steady": _ratio("us_per_chunk"),
    "ratio to C, whole run": _ratio("us_per_chunk_whole"),
    "ratio to plain, steady": _ratio("us_per_chunk", to="tailgauge"),
    "CPU us per request": _number("us_per_request", ".0f"),
    "ratio to C": _ratio("us_per_request", ".1f"),
    "client's CPU": _number("cpu_share", ".0%"),
    "bytes per chunk": _number("bytes_per_chunk", ".2f"),
    "writer's share of CPU": _number("writer_share", ".2%"),
    "to the first request, s": _number("first_request_s", ".2f"),
    "from the last chunk to the page, s": _number("page_s", ".2f"),
}


TABLES = {  # title, head of the first column, the others
    "herds": ("Herds", "users", (
        "TTFT p99 error, ms", "gap p99 error, ms", "exact chunks", "measurement", "CPU us per chunk, steady",
        "ratio to C, steady",
    )),
    "spread": ("Spread and Poisson phases", "streams", (
        "TTFT p99 error, ms", "of single requests, p99", "gap p99 error, ms", "CPU us per chunk, steady",
        "ratio to C, steady",
    )),
    "tls": ("TLS", "streams", (
        "TTFT p99 error, ms", "gap p99 error, ms", "CPU us per chunk, steady", "ratio to plain, steady",
    )),
    "short": ("Short answers", "answers of", (
        "TTFT p99 error, ms", "measurement", "client's CPU", "CPU us per request", "ratio to C",
    )),
    "minute": ("A minute", "streams", (
        "CPU us per chunk, whole run", "ratio to C, whole run", "bytes per chunk", "writer's share of CPU",
    )),
    "capacity": ("Honest capacity", "load", (
        "chunks per second",
    )),
    "mock": ("The mock of vLLM's study", "streams", (
        "mean TTFT error, ms",
    )),
    "start": ("Start and end", "users", ("to the first request, s", "from the last chunk to the page, s")),
}  # fmt: skip


def line(name: str, load: Load, result: Result) -> str:
    """One run, for the terminal."""
    size = f"{load.rate_per_s:5.0f}/s     " if load.rate_per_s else f"{load.streams:5} streams"
    cost = [
        f"{value:8.1f} us/{what}"
        for value, what in ((result.us_per_chunk, "chunk"), (result.us_per_request, "request"))
        if value is not None
    ]
    known = result.gap_p99_error is not None and load.chunks > 1
    gap = f"gap p99 {result.gap_p99_error:+.2f} ms" if known else ""
    return "  ".join((
        f"{size}{' herd' * load.batch}  {name:10}", *cost, f"TTFT p99 {result.ttft_p99_error:+.2f} ms", gap,
        f"server {result.server_cpu_share:.0%}", result.verdict or "", f"LOST {result.lost}" if result.lost else "",
    ))  # fmt: skip


def ratio_line(name: str, mine: Results, reference: Results) -> str:
    """The ratios of a single load."""
    steady, whole = (
        ratio(mine, reference, figure) for figure in ("us_per_chunk", "us_per_chunk_whole")
    )
    return f"{name} / reference: {steady:.2f} steady, {whole:.2f} whole run"


# --- the page -----------------------------------------------------------------------------------------------------


def page(parts: Parts, machine: str, minutes: float, missing: list[str]) -> str:
    """All tables, what is left out of them, and the targets."""
    clients = [
        results
        for loads in parts.values()
        for rounds in loads.values()
        for results in rounds.values()
    ]
    readers = {one.reader for results in clients for one in results if one.reader}
    text = [f"Measured on {machine}, in {minutes:.0f} minutes; medians of the repetitions."]
    text += [f"Readers of Tailgauge: {', '.join(sorted(readers))}."] if readers else []
    text += [f"Left out: {'; '.join(missing)}."] if missing else []
    text += [_reference_error(parts)]
    for part, loads in parts.items():
        title, first, columns = TABLES[part]
        clients_shown = set(NAMES) if part == CAPACITY else set(NAMES) - {REFERENCE}
        text += [f"### {title}", _loads(first, loads, columns, clients_shown)]
    return "\n\n".join((*text, "### Targets", _targets(parts))) + "\n"


def _reference_error(parts: Parts) -> str:
    """The largest error of the client in C, which has rows of its own for its capacity only."""
    errors = [
        abs(middle(rounds[REFERENCE], "ttft_p99_error") or 0.0)
        for loads in parts.values()
        for rounds in loads.values()
        if rounds.get(REFERENCE)
    ]
    return f"The C reference's TTFT p99 errors are at most {max(errors, default=0.0):.2f} ms."


def write(text: str) -> None:
    """Put the tables between their marks in docs/explanation/benchmarks.md."""
    replace_between(BEGIN, END, text, PAGE)


def table(heads: str, rows: list[str]) -> str:
    """`heads`: "a | b". The first two columns are words."""
    columns = heads.count("|") + 1
    return "\n".join((f"| {heads} |", "|---|---|" + "---:|" * (columns - 2), *rows))


def _loads(
    first: str, loads: dict[str, Rounds], columns: tuple[str, ...], clients_shown: set[str]
) -> str:
    """A table with a row for each of these clients of each load."""
    rows = []
    for load, rounds in loads.items():
        for name, results in rounds.items():
            if name not in clients_shown:
                continue
            cells = [COLUMNS[column](results, rounds) for column in columns]
            rows.append(f"| {load} | {NAMES[name]} | {' | '.join(cells)} |")
    return table(f"{first} | client | {' | '.join(columns)}", rows)


# --- targets ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure; a target whose figure was not measured is not shown."""

    what: str
    bound: float
    measured: float | None
    unit: str = ""
    at_least: bool = False

    @property
    def is_met(self) -> bool:
        """Whether what was measured keeps the bound."""
        assert self.measured is not None
        if self.at_least:
            return self.measured >= self.bound
        return self.measured <= self.bound

    def row(self) -> str:
        """The figure, and by how much it misses."""
        assert self.measured is not None
        side = "at least" if self.at_least else "at most"
        miss = abs(self.measured / self.bound - 1)
        bound = f"{side} {self.bound:g}{self.unit}"
        return f"| {self.what} | {bound} | {self.measured:.2f}{self.unit} | {miss:.0%} |"


def _targets(parts: Parts) -> str:
    every = [*_of_herds(parts.get("herds", {})), *_of_cost(parts)]
    measured = [target for target in every if target.measured is not None]
    missed = [target for target in measured if not target.is_met]
    text = f"{len(measured) - len(missed)} of {len(measured)} are met"
    if not missed:
        return text + "."
    rows = [target.row() for target in missed]
    return f"{text}; these are missed:\n\n" + table("figure | target | measured | by", rows)


def _of_herds(loads: dict[str, Rounds]) -> list[Target]:
    found = []
    for users, rounds in loads.items():
        many, mine = users == "2000", rounds["tailgauge"]
        herd, bound = (
            (f"herd of {users}, unless INVALID", 2.0) if many else (f"herd of {users}", 1.0)
        )
        ttfts = [abs(one.ttft_p99_error) for one in mine if not (many and one.ttft_invalid)]
        gaps = [abs(one.gap_p99_error or 0.0) for one in mine if not (many and one.gap_invalid)]
        found += [
            Target(f"TTFT p99 error, {herd}", bound, median(ttfts or [0.0]), " ms"),
            Target(f"gap p99 error, {herd}", bound, median(gaps or [0.0]), " ms"),
        ]
        if not many:
            valid = sum(one.verdict == "VALID" and one.mark != CLIENT for one in mine) / len(mine)
            found += [
                Target(f"exact chunks, {herd}", 0.99, middle(mine, "exact"), at_least=True),
                Target(f"VALID runs, {herd}", 0.5, valid, at_least=True),
            ]
    return found


def _of_cost(parts: Parts) -> list[Target]:
    def ours(part: str, load: str, figure: str, name: str = "tailgauge") -> float | None:
        return middle(parts.get(part, {}).get(load, {}).get(name, []), figure)

    def against(
        of: str, part: str, load: str, figure: str, name: str = "tailgauge"
    ) -> float | None:
        rounds = parts.get(part, {}).get(load, {})
        return (
            ratio(rounds[name], rounds[of], figure) if rounds.get(name) and rounds.get(of) else None
        )

    def capacity(load: str) -> float | None:
        rates = {
            name: middle(runs, "rate")
            for name, runs in parts.get("capacity", {}).get(load, {}).items()
        }
        c = rates.get("reference")
        return (rates["tailgauge"] or 0.0) / c if c else None

    def per_request(rate: int) -> float | None:
        return against("locust", "short", f"1 chunk, {rate}/s", "us_per_request")

    whole = against("reference", "minute", "500", "us_per_chunk_whole")
    eight = against("tailgauge", "start", "10", "first_request_s", "workers_8")
    return [
        Target("honest capacity, spread, ratio to C", 0.6, capacity("spread"), at_least=True),
        Target("honest capacity, herds, ratio to C", 0.45, capacity("herds"), at_least=True),
        Target("CPU per chunk, steady, 500 streams, ratio to C", 1.6, against("reference", "spread", "500", "us_per_chunk")),
        Target("changing events, ratio to constant ones", 1.15, against("tailgauge", "spread", "500", "us_per_chunk", "changing")),
        Target("TLS, ratio to plain", 1.25, against("tailgauge", "tls", "500", "us_per_chunk", "tls")),
        Target("whole run of a minute, ratio to C", 2.0, whole),
        Target("CPU per request at 400/s, ratio to Locust by hand", 1.5, per_request(400)),
        Target("CPU per request at 800/s, ratio to Locust by hand", 1.5, per_request(800)),
        Target("bytes per chunk", 8.0, ours("minute", "500", "bytes_per_chunk")),
        Target("writer's share of the worker's CPU", 0.1, ours("minute", "500", "writer_share")),
        Target("first request, OpenAI", 2.0, ours("start", "10", "first_request_s"), " s"),
        Target("first request, Anthropic", 3.3, ours("start", "10", "first_request_s", "anthropic"), " s"),
        Target("first request of 8 workers, ratio to one", 1.5, eight),
    ]  # fmt: skip
