"""Cost and accuracy of `tailgauge run` beside a native client and other load generators: `make bench`, or

    .venv/bin/python bench/client.py [--quick] [--write] [--only PART...] [--peers FOLDER]
    .venv/bin/python bench/client.py --streams 500 --seconds 20 [--herd] [--clients reference tailgauge tls] [--chunks 1]

Clients are measured in turn within one run; a ratio is taken within a repetition, and the median over repetitions is
reported. The first form measures everything in docs/explanation/benchmarks.md, within 40 minutes (--quick: one of each
load, within 3; --write: updates the page); the second form prints single loads as they are measured.
"""

from __future__ import annotations

import argparse
import fcntl
import sys
import tempfile
import time
from collections.abc import Iterator
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
QUICK_CHUNKS = 100
RANDOM = "about 500, Poisson"
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
Loads = dict[str, tables.Rounds]


class Bench:
    """Runs loads one at a time; `lock` keeps other benchmarks off the machine meanwhile."""

    def __init__(
        self,
        rows: dict[str, Row],
        *,
        quick: bool = False,
        repeat: int | None = None,
        lock: Path | None = None,
    ) -> None:
        self.cores = clients.Cores.found()
        self.rows, self.quick, self._repeat, self._lock = rows, quick, 1 if quick else repeat, lock
        self.failed: list[str] = []

    def report(self, text: str) -> None:
        """Print what happens."""
        print(text, file=sys.stderr, flush=True)

    def run(self, name: str, load: Load) -> Result:
        """One load through one client. Raises RigError."""
        row = self.rows[name]
        load = replace(load, **row.load)
        with self._alone(), tempfile.TemporaryDirectory() as folder:
            result = row.client(load, self.cores, Path(folder))
        self.report(tables.line(name, load, result))
        return result

    def rounds(self, names: tuple[str, ...], load: Load, repeat: int = 1) -> tables.Rounds:
        """Every client in turn, repeated."""
        done: tables.Rounds = {name: [] for name in names}
        for _ in range(self._repeat or repeat):
            for name in names:
                done[name].append(self.run(name, load))
        return done

    def once(self, names: tuple[str, ...], load: Load) -> tables.Rounds:
        """Clients beside those that are compared; one that is not installed or fails on the load is left out."""
        done = {}
        for name in names:
            if name in self.rows:
                try:
                    done[name] = [self.run(name, load)]
                except RigError as error:
                    self.report(f"{name}, {load.streams} streams: {error}")
                    self.failed.append(f"{name} failed with {load.streams} users")
        return done

    def capacity(self, name: str, seconds: float, **more: Any) -> list[Result]:
        """The run at the highest rung of the ladder whose figures were honest; none: not even the lowest."""
        best: list[Result] = []
        low, high = -1, len(LADDER)
        while high - low > 1:
            rung = (low + high) // 2
            load = Load(round(LADDER[rung] * 1e3 / A_STREAM), seconds, **more)
            if result := self._honest(name, load) or self._honest(
                name, load
            ):  # one disturbance is tolerated
                low, best = rung, [result]
            else:
                high = rung
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


def herds(bench: Bench) -> Loads:
    """Users who start at once, answers of one length, an engine that makes the chunks of all streams at the same instants."""
    done = {}
    for users in (500,) if bench.quick else (200, 500, 1000, 2000):
        load = Load(users, 5.0, **HERD)
        done[str(users)] = bench.rounds(BOTH, load, 5)
        if users in {200, 1000} and not bench.quick:
            done[str(users)] |= bench.once(
                ("workers", "python_reader", "locust", *peers.PEERS), load
            )
    return done


def spread(bench: Bench) -> Loads:
    """Phases spread evenly, so that no two chunks meet, or random ones; what changing events add."""
    few = Load(40, 15.0)  # they cost little, so that it takes long to see how much
    load = Load(500, 5.0)
    if bench.quick:
        few = Load(40, 4.0, QUICK_CHUNKS)
        load = Load(500, 3.0, QUICK_CHUNKS)
    random = replace(load, rate_per_s=500 / load.answer_s, poisson=True)
    if bench.quick:
        return {
            name: bench.rounds(BOTH, one)
            for name, one in (("40", few), ("500", load), (RANDOM, random))
        }
    five = bench.rounds((*BOTH, "changing"), load, 3) | bench.once(("anthropic",), load)
    return {
        "40": bench.rounds(BOTH, few, 3),
        "500": five,
        RANDOM: bench.rounds(BOTH, random, 3),
        "1000": bench.rounds(BOTH, Load(1000, 5.0)),
    }


def tls(bench: Bench) -> Loads:
    """What encryption adds."""
    load = Load(500, 3.0, QUICK_CHUNKS) if bench.quick else Load(500, 5.0)
    return {"500": bench.rounds(("tailgauge", "tls"), load, 3)}


def short(bench: Bench) -> Loads:
    """Short answers in an open loop: what a request costs."""
    done = {}
    for chunks, rate in ((1, 400),) if bench.quick else ((1, 400), (1, 800), (1, 3000), (5, 400)):
        load = Load(0, 3.0, chunks=chunks, ttft_ms=50.0, rate_per_s=rate)
        done[f"{tables.chunks_text(chunks)}, {rate}/s"] = bench.rounds(
            (*BOTH, "locust"), load, 5 if rate < 3000 else 3
        )
    return done


def minute(bench: Bench) -> Loads:
    """A whole run, writing included."""
    return {"500": bench.rounds(BOTH, Load(500, 60.0))}


def capacity(bench: Bench) -> Loads:
    """The highest rate at which the figures are honest."""
    return {
        load: {name: bench.capacity(name, 4.0, **more) for name in BOTH}
        for load, more in (("spread", {}), ("herds", HERD))
    }


def mock(bench: Bench) -> Loads:
    """The mock of vLLM's study of its clients' overhead."""
    mock_load = Load(0, 5.0, chunks=100, ttft_ms=50.0, gap_ms=10.0, at_once=True)
    names = (*BOTH, "locust")
    return {
        str(n): bench.rounds(names, replace(mock_load, streams=n)) for n in (1, 10, 100, 500, 1000)
    }


def start(bench: Bench) -> Loads:
    """From the command to the first request, from the end of the load to the page."""
    load = Load(10, 2.5, chunks=20, ttft_ms=50.0, at_once=True)
    return {"10": bench.rounds(("tailgauge", "anthropic", "workers_8"), load, 3)}


PARTS = {part.__name__: part for part in (herds, spread, tls, short, minute, capacity, mock, start)}
QUICK = ("herds", "spread", "tls", "short")


def singles(bench: Bench, arguments: argparse.Namespace) -> None:
    """The requested loads, and the medians of every field."""
    for streams in arguments.streams:
        ttft_ms = 200.0 if arguments.chunks > 1 else 50.0
        more: dict[str, Any] = HERD if arguments.herd else {}
        load = Load(streams, arguments.seconds, arguments.chunks, ttft_ms, **more)
        done = bench.rounds(tuple(arguments.clients), load)
        for name, results in done.items():
            known = {
                key: value for key, value in asdict(median_of(results)).items() if value is not None
            }
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
    parser.add_argument(
        "--quick", action="store_true", help="a short form of the tables, within 3 minutes"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/explanation/benchmarks.md"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="only these tables")
    parser.add_argument("--peers", type=Path, default=Path(__file__).parents[1] / "build" / "peers",
                        help="folder of the peers' virtual environments (default: build/peers)")  # fmt: skip
    parser.add_argument("--streams", type=int, nargs="+", help="only these loads")
    parser.add_argument(
        "--herd", action="store_true", help="with --streams: users who start at once"
    )
    parser.add_argument("--seconds", type=float, default=10, help="steady seconds of a single load")
    parser.add_argument(
        "--chunks", type=int, default=200, help="chunks of an answer of a single load"
    )
    parser.add_argument(
        "--repeat", type=int, help="repetitions (default: 5 of herds, 1 or 3 of the others)"
    )
    parser.add_argument(
        "--clients", nargs="+", default=list(BOTH), help=f"of a single load: {', '.join(ROWS)}"
    )
    parser.add_argument(
        "--lock",
        type=Path,
        help="hold this file's lock while a load runs, where others measure too",
    )
    arguments = parser.parse_args()
    found, missing = peers.installed(arguments.peers)
    rows = ROWS | {name: Row(client) for name, client in found.items()}
    if arguments.write and (arguments.only or arguments.quick or arguments.streams):
        parser.error("--write: the page has all tables")
    if unknown := set(arguments.clients) - rows.keys():
        parser.error(f"--clients: {', '.join(sorted(unknown))} not known, or not installed")
    began = time.monotonic()
    bench = Bench(rows, quick=arguments.quick, repeat=arguments.repeat, lock=arguments.lock)
    if arguments.streams:
        singles(bench, arguments)
        return
    parts: tables.Parts = {}
    wanted = arguments.only or (QUICK if arguments.quick else list(PARTS))
    for name in wanted:
        try:
            parts[name] = PARTS[name](bench)
        except RigError as error:
            bench.report(f"{name}: {error}")
            bench.failed.append(f"a run of {name} failed")
    text = tables.page(
        parts, clients.machine(), (time.monotonic() - began) / 60, missing + bench.failed
    )
    print(text)
    if arguments.write:
        tables.write(text)
    sys.exit(len(parts) < len(wanted))


if __name__ == "__main__":
    try:
        main()
    except RigError as error:
        sys.exit(f"client.py: {error}")
