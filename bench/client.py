"""Cost and accuracy of our client beside a native one: `make bench`, or

    .venv/bin/python bench/client.py [--quick] [--write]
    .venv/bin/python bench/client.py --streams 500 --seconds 20 [--clients reference tailgauge tls] [--chunks 1]

Clients are measured in turn within one run; a ratio is taken within a repetition, and the median over repetitions is
reported. The first form measures everything in docs/explanation/benchmarks.md, within 20 minutes (--quick: within 3; --write: updates
the page); the second form prints single loads as they are measured.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import clients
import tables
from measure import Result, median_of
from reference_server import Load, RigError

SIZES = (50, 200, 500, 1000)
LONG_S = 60.0
LADDER = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 95)  # thousands of chunks/s
A_STREAM = 200 / 4.18  # chunks/s of a stream: 200 in 0.2 s and 199 gaps of 20 ms


@dataclass(frozen=True, slots=True)
class Row:
    """A client with its protocol."""

    client: clients.Client
    protocol: str = "openai"
    tls: bool = False


ROWS = {
    "reference": Row(clients.reference),
    "tailgauge": Row(clients.tailgauge),
    "anthropic": Row(clients.tailgauge, "anthropic"),
    "tls": Row(clients.tailgauge, tls=True),
    "user": Row(clients.with_options("--clock", "user")),
    "reading": Row(clients.python("reading")),
    "sdk": Row(clients.python("sdk")),
    "by_hand": Row(clients.python("by_hand")),
}


class Bench:
    """Runs loads one at a time; `lock` keeps other benchmarks off the machine meanwhile."""

    def __init__(self, lock: Path | None, report: Callable[[str], None]) -> None:
        self.cores = clients.Cores.found()
        self._lock, self.report = lock, report

    def run(self, name: str, load: Load) -> Result:
        """One load through one client. Raises RigError."""
        row = ROWS[name]
        load = replace(load, protocol=row.protocol, tls=row.tls)
        with self._alone(), tempfile.TemporaryDirectory() as folder:
            result = row.client(load, self.cores, Path(folder))
        self.report(tables.line(name, load.streams, result))
        return result

    def rounds(self, names: tuple[str, ...], load: Load, repeat: int) -> dict[str, list[Result]]:
        """Every client in turn, repeated."""
        done: dict[str, list[Result]] = {name: [] for name in names}
        for _ in range(repeat):
            for name in names:
                done[name].append(self.run(name, load))
        return done

    def capacity(self, name: str, seconds: float) -> Result | None:
        """The run at the highest rung of the ladder whose figures were honest; None: not even the lowest."""
        best, low, high = None, -1, len(LADDER)
        while high - low > 1:
            rung = (low + high) // 2
            load = Load(round(LADDER[rung] * 1e3 / A_STREAM), seconds)
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
        return result if result.honest and not result.lost else None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._lock is None:
            yield
            return
        with self._lock.open("a") as file:  # children do not inherit it
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def everything(bench: Bench, repeat: int, *, quick: bool) -> tables.Figures:
    """All tables."""
    seconds = 4.0 if quick else 5.0
    sizes = (50, 500) if quick else SIZES
    figures = tables.Figures(clients.machine(), repeat, quick=quick)
    for streams in sizes:
        names: tuple[str, ...] = (
            ("reference", "tailgauge") if quick or streams < 500 else ("reference", "tailgauge", "reading")
        )
        if streams == 500 and not quick:
            names += tuple(
                name for name in ROWS if name not in names and (name != "user" or clients.knows("--clock"))
            )
        figures.loads[streams] = bench.rounds(names, Load(streams, seconds), repeat)
    one = Load(20, seconds, chunks=1, ttft_ms=50.0)
    figures.requests = bench.rounds(("reference", "tailgauge"), one, repeat)
    if not quick:
        figures.long = bench.rounds(("reference", "tailgauge"), Load(500, LONG_S), 1)
        figures.capacity = {name: bench.capacity(name, seconds) for name in ("reference", "tailgauge")}
    return figures


def singles(bench: Bench, arguments: argparse.Namespace, repeat: int) -> None:
    """The requested loads, and the medians of every field."""
    for streams in arguments.streams:
        load = Load(streams, arguments.seconds, arguments.chunks, 200.0 if arguments.chunks > 1 else 50.0)
        done = bench.rounds(tuple(arguments.clients), load, repeat)
        for name, results in done.items():
            middle = asdict(median_of(results))
            print(
                f"{streams} {name}: " + " ".join(f"{k}={v:.4g}" for k, v in middle.items() if v is not None)
            )
        for name in done.keys() - {"reference"} if "reference" in done else ():
            print(tables.ratio_line(name, done[name], done["reference"]))


def main() -> None:
    """Measure, print, and write if asked to."""
    parser = argparse.ArgumentParser(description="Cost and accuracy of our client beside a native one.")
    parser.add_argument("--quick", action="store_true", help="a short form of the tables, within 3 minutes")
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/explanation/benchmarks.md"
    )
    parser.add_argument("--streams", type=int, nargs="+", help="only these loads")
    parser.add_argument("--seconds", type=float, default=10, help="steady seconds of a single load")
    parser.add_argument("--chunks", type=int, default=200, help="chunks of an answer of a single load")
    parser.add_argument("--repeat", type=int, help="repetitions (default: 3 of the full tables, else 1)")
    parser.add_argument("--clients", nargs="+", choices=ROWS, default=["reference", "tailgauge"])
    parser.add_argument(
        "--lock", type=Path, help="hold this file's lock while a load runs, where others measure too"
    )
    arguments = parser.parse_args()
    repeat = arguments.repeat or (1 if arguments.quick or arguments.streams else 3)
    began = time.monotonic()
    bench = Bench(arguments.lock, lambda text: print(text, file=sys.stderr, flush=True))
    try:
        if arguments.streams:
            singles(bench, arguments, repeat)
            return
        text = tables.page(everything(bench, repeat, quick=arguments.quick), (time.monotonic() - began) / 60)
    except RigError as error:
        sys.exit(f"client.py: {error}")
    print(text)
    if arguments.write:
        tables.write(text)


if __name__ == "__main__":
    main()
