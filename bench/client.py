"""Cost and accuracy of `tailgauge run` beside a native client and other load generators: `make bench`, or

    .venv/bin/python bench/client.py [--quick] [--write] [--only PART...] [--peers FOLDER]
    .venv/bin/python bench/client.py --streams 500 --seconds 20 [--herd] [--clients reference tailgauge tls] [--chunks 1]

Clients are measured in turn within one run; a ratio is taken within a repetition, and the median over repetitions is
reported. The first form measures everything in docs/explanation/benchmarks.md, within 35 minutes (--quick: herds and spread
loads, within 3; --write: updates the page); the second form prints single loads as they are measured.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import clients
import peers
import tables
from measure import Result, median_of
from reference_server import Load, RigError

LADDER = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 95)  # thousands of chunks/s
A_STREAM = 200 / 4.18  # chunks/s of a stream: 200 in 0.2 s and 199 gaps of 20 ms
HERD: dict[str, Any] = {"at_once": True, "batch": True}


@dataclass(frozen=True, slots=True)
class Row:
    """A client, with what differs from the load of the others."""

    client: clients.Client
    load: dict[str, Any] = field(default_factory=dict)


ROWS = {
    "reference": Row(clients.reference),
    "tailgauge": Row(clients.tailgauge),
    "workers": Row(clients.tailgauge, {"workers": 2}),
    "changing": Row(clients.tailgauge, {"changing": True}),
    "tls": Row(clients.tailgauge, {"tls": True}),
    "anthropic": Row(clients.tailgauge, {"protocol": "anthropic"}),
    "workers_8": Row(clients.tailgauge, {"workers": 8}),
    "python_reader": Row(clients.tailgauge, {"reader": "python"}),
    "locust": Row(clients.locust),
}
BOTH = ("reference", "tailgauge")


class Bench:
    """Runs loads one at a time; `lock` keeps other benchmarks off the machine meanwhile."""

    def __init__(
        self,
        lock: Path | None,
        report: Callable[[str], None],
        rows: dict[str, Row],
        repeat: int | None = None,
    ) -> None:
        self.cores = clients.Cores.found()
        self._lock, self.report, self.rows, self._repeat = lock, report, rows, repeat

    def run(self, name: str, load: Load) -> Result:
        """One load through one client. Raises RigError."""
        row = self.rows[name]
        load = replace(load, **row.load)
        with self._alone(), tempfile.TemporaryDirectory() as folder:
            result = row.client(load, self.cores, Path(folder))
        self.report(tables.line(name, load, result))
        return result

    def rounds(self, names: tuple[str, ...], load: Load, repeat: int) -> dict[str, list[Result]]:
        """Every client in turn, repeated."""
        done: dict[str, list[Result]] = {name: [] for name in names}
        for _ in range(self._repeat or repeat):
            for name in names:
                done[name].append(self.run(name, load))
        return done

    def once(self, names: tuple[str, ...], load: Load) -> dict[str, list[Result]]:
        """Clients beside those that are compared; one that is not installed or fails on the load is left out."""
        done = {}
        for name in names:
            if name in self.rows:
                try:
                    done[name] = [self.run(name, load)]
                except RigError as error:
                    self.report(f"{name}, {load.streams} streams: {error}")
        return done

    def capacity(self, name: str, seconds: float, **more: Any) -> Result | None:
        """The run at the highest rung of the ladder whose figures were honest; None: not even the lowest."""
        best, low, high = None, -1, len(LADDER)
        while high - low > 1:
            rung = (low + high) // 2
            load = Load(round(LADDER[rung] * 1e3 / A_STREAM), seconds, **more)
            result = self._honest(name, load) or self._honest(name, load)  # one disturbance is tolerated
            if result is None:
                high = rung
            else:
                low, best = rung, result
        return best

    def _honest(self, name: str, load: Load) -> Result | None:
        try:
            result = self.run(name, load)
        except RigError as error:
            self.report(f"{name}, {load.streams} streams: {error}")
            return None
        return result if result.honest else None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        with self._lock.open("a") as file:  # children do not inherit it
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def herds(bench: Bench, figures: tables.Figures) -> None:
    """Users who start at once, answers of one length, an engine that makes the chunks of all streams at the same instants."""
    for users in (200, 500) if figures.quick else (200, 500, 1000, 2000):
        load = Load(users, 5.0, **HERD)
        figures.herds[users] = bench.rounds(BOTH, load, 1 if figures.quick else 5)
        if users in {200, 1000} and not figures.quick:
            names = ("workers", "python_reader", "locust", *peers.PEERS)
            figures.herds[users] |= bench.once(names, load)


def spread(bench: Bench, figures: tables.Figures) -> None:
    """Phases spread evenly, so that no two chunks meet; what changing events and TLS add."""
    load = Load(500, 5.0)
    if figures.quick:
        figures.spread[500] = bench.rounds((*BOTH, "changing"), load, 1)
        return
    figures.spread[50] = bench.rounds(BOTH, Load(50, 5.0), 1)
    figures.spread[500] = bench.rounds((*BOTH, "changing", "tls"), load, 3) | bench.once(("anthropic",), load)
    figures.spread[1000] = bench.rounds(BOTH, Load(1000, 5.0), 1)


def short(bench: Bench, figures: tables.Figures) -> None:
    """Short answers in an open loop: what a request costs."""
    for chunks, rate in ((1, 400),) if figures.quick else ((1, 400), (1, 800), (1, 3000), (5, 400)):
        load = Load(0, 3.0, chunks=chunks, ttft_ms=50.0, rate_per_s=rate)
        figures.short[chunks, rate] = bench.rounds((*BOTH, "locust"), load, 1 if figures.quick else 3)


def minute(bench: Bench, figures: tables.Figures) -> None:
    """A whole run, writing included."""
    figures.minute[500] = bench.rounds(BOTH, Load(500, 60.0), 1)


def capacity(bench: Bench, figures: tables.Figures) -> None:
    """The highest rate at which the figures are honest."""
    for name in BOTH:
        figures.capacity["spread", name] = bench.capacity(name, 4.0)
        figures.capacity["herds", name] = bench.capacity(name, 4.0, **HERD)


def mock(bench: Bench, figures: tables.Figures) -> None:
    """The mock of vLLM's study of its clients' overhead."""
    for streams in tables.VLLM_RUST:
        load = Load(streams, 5.0, chunks=100, ttft_ms=50.0, gap_ms=10.0, at_once=True)
        figures.mock[streams] = bench.rounds((*BOTH, "locust"), load, 1)


def start(bench: Bench, figures: tables.Figures) -> None:
    """From the command to the first request, from the end of the load to the page."""
    load = Load(10, 2.5, chunks=20, ttft_ms=50.0, at_once=True)
    figures.start = bench.rounds(("tailgauge", "anthropic", "workers_8"), load, 3)


PARTS = {part.__name__: part for part in (herds, spread, short, minute, capacity, mock, start)}
QUICK = ("herds", "spread", "short")


def everything(bench: Bench, parts: list[str], figures: tables.Figures) -> tables.Figures:
    """The tables of some parts, in the order of the page."""
    for name, part in PARTS.items():
        if name in parts:
            part(bench, figures)
    return figures


def singles(bench: Bench, arguments: argparse.Namespace) -> None:
    """The requested loads, and the medians of every field."""
    for streams in arguments.streams:
        ttft_ms = 200.0 if arguments.chunks > 1 else 50.0
        more: dict[str, Any] = HERD if arguments.herd else {}
        load = Load(streams, arguments.seconds, arguments.chunks, ttft_ms, **more)
        done = bench.rounds(tuple(arguments.clients), load, 1)
        for name, results in done.items():
            known = {key: value for key, value in asdict(median_of(results)).items() if value is not None}
            fields = (
                f"{key}={value}" if isinstance(value, str | bool) else f"{key}={value:.4g}"
                for key, value in known.items()
            )
            print(f"{streams} {name}: " + " ".join(fields))
        for name in done.keys() - {"reference"} if "reference" in done else ():
            print(tables.ratio_line(name, done[name], done["reference"]))


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Cost and accuracy of our client beside others.")
    parser.add_argument("--quick", action="store_true", help="a short form of the tables, within 3 minutes")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/explanation/benchmarks.md"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="only these tables")
    parser.add_argument("--peers", type=Path, default=Path(__file__).parents[1] / "build" / "peers",
                        help="folder of the peers' virtual environments (default: build/peers)")  # fmt: skip
    parser.add_argument("--streams", type=int, nargs="+", help="only these loads")
    parser.add_argument("--herd", action="store_true", help="with --streams: users who start at once")
    parser.add_argument("--seconds", type=float, default=10, help="steady seconds of a single load")
    parser.add_argument("--chunks", type=int, default=200, help="chunks of an answer of a single load")
    parser.add_argument("--repeat", type=int, help="repetitions (default: 5 of herds, 1 or 3 of the others)")
    parser.add_argument(
        "--clients", nargs="+", default=list(BOTH), help=f"of a single load: {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--lock", type=Path, help="hold this file's lock while a load runs, where others measure too"
    )
    arguments = parser.parse_args()
    found, missing = peers.installed(arguments.peers)
    rows = ROWS | {name: Row(client) for name, client in found.items()}
    if arguments.write and (arguments.only or arguments.quick or arguments.streams):
        parser.error("--write: the page has all tables")
    if unknown := set(arguments.clients) - rows.keys():
        parser.error(f"--clients: {', '.join(sorted(unknown))} not known, or not installed")
    began = time.monotonic()
    bench = Bench(
        arguments.lock, lambda text: print(text, file=sys.stderr, flush=True), rows, arguments.repeat
    )
    try:
        if arguments.streams:
            singles(bench, arguments)
            return
        figures = tables.Figures(clients.machine(), quick=arguments.quick, missing=missing)
        everything(bench, arguments.only or list(QUICK if arguments.quick else PARTS), figures)
    except RigError as error:
        sys.exit(f"client.py: {error}")
    text = tables.page(figures, (time.monotonic() - began) / 60)
    print(text)
    if arguments.write:
        tables.write(text)


if __name__ == "__main__":
    main()
