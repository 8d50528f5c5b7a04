"""A long run whose oldest worker is killed again and again: `make soak KILL_EVERY=10 MINUTES=60`, or

    .venv/bin/python bench/soak_with_kills.py [--minutes 60] [--every 10] [--keep DIR]

The load of soak.py on two workers that connect to the master as those of other machines do; a new one replaces each that
is killed. The endpoint's log has every call. Permitted: the master's private memory grows by 3 MB after the first kill,
workers of the same age differ by 3 MB, and as many calls of the log have no row as run.json states as lost.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow.parquet as pq
from soak import CHUNKS, EVERY_S, RATE, Row, Watched, conclude, run_line, serving, started

MB = 1e6 / (1 << 20)  # in the MiB of `Watched`
GROWN_MB = 3.0
AROUND_S = 30.0  # memory at a time is the median of this long
SETTLED_S = 120.0  # a worker's age from which on its memory is compared
END_S = 180.0
WORKERS = 2


class KilledWorkers:
    """The workers of a run, each on the loopback address with its own folder."""

    def __init__(self, master: str, folder: Path, environment: dict[str, str]) -> None:
        self._master = master
        self._folder = folder
        self._environment = environment
        self._living: list[subprocess.Popen[bytes]] = []
        self.watched: dict[str, Watched] = {}
        self._began_s: dict[str, float] = {}

    def start(self) -> None:
        """Start one more."""
        name = f"worker {len(self.watched)}"
        out = self._folder / name.replace(" ", "-")
        out.mkdir()
        line = [
            sys.executable,
            "-m",
            "tailgauge",
            "worker",
            f"--master={self._master}",
            f"--out={out}",
        ]
        with (out / "output.txt").open("w") as output:
            process = subprocess.Popen(line, stdout=output, stderr=output, env=self._environment)
        self._living.append(process)
        self.watched[name] = Watched(psutil.Process(process.pid))
        self._began_s[name] = time.monotonic()

    def kill_oldest(self) -> None:
        """Kill the one that has lived longest."""
        process = self._living.pop(0)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def look(self) -> None:
        """Take one sample of each that lives, at its age."""
        living = {process.pid for process in self._living if process.poll() is None}
        for name, watched in self.watched.items():
            if watched.process.pid in living:
                watched.look(time.monotonic() - self._began_s[name])

    def end(self) -> None:
        """Kill those that still live."""
        for process in self._living:
            if process.poll() is None:
                process.kill()
            process.wait()


def _at(watched: Watched, at_s: float) -> float | None:
    """Return the private memory around a time, in MiB; None where there are no samples."""
    samples = zip(watched.at_s, watched.mib, strict=True)
    near = [mib for second, mib in samples if abs(second - at_s) <= AROUND_S / 2]
    return median(near) if near else None


def soak(minutes: float, every: float, folder: Path) -> list[Row]:
    """Make the run, and return the table of what it shows."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "TAILGAUGE_TOKEN": secrets.token_hex(16)}
    with socket.create_server(("127.0.0.1", 0)) as probe:
        master_address = f"127.0.0.1:{probe.getsockname()[1]}"
    line = [*run_line(minutes, folder), f"--expect-workers={WORKERS}", f"--bind={master_address}"]
    calls = int(RATE * 60 * minutes)
    with (
        serving(2 * calls * (CHUNKS + 10)) as (_, url),
        (folder / "output.txt").open("w") as output,
    ):
        run = subprocess.Popen(
            [*line, f"--target={url}"], stdout=output, stderr=output, env=environment
        )
        workers = KilledWorkers(master_address, folder, environment)
        master = Watched(psutil.Process(run.pid))
        try:
            for _ in range(WORKERS):
                workers.start()
            _watch(run, master, workers, 60 * minutes, 60 * every, folder)
            code = run.wait(END_S)
            (path,) = folder.glob("runs/*")
            log = folder / "log.parquet"
            urllib.request.urlretrieve(f"{url}/tailgauge/server-log?run={path.name}", log)  # noqa: S310 - of this machine
        finally:
            run.kill()
            workers.end()
    return [*_of_memory(master, workers, every), *_of_rows(path, log, code)]


def _watch(
    run: subprocess.Popen[bytes],
    master: Watched,
    workers: KilledWorkers,
    seconds: float,
    every_s: float,
    folder: Path,
) -> None:
    start_s = started(run, folder)
    kills = 0
    for tick in range(1, int((seconds - EVERY_S) / EVERY_S) + 1):
        time.sleep(max(0.0, start_s + tick * EVERY_S - time.monotonic()))
        if run.poll() is not None:
            raise SystemExit(f"the run ended early: {(folder / 'output.txt').read_text()[-2000:]}")
        at_s = time.monotonic() - start_s
        master.look(at_s)
        workers.look()
        if at_s >= (kills + 1) * every_s and at_s < seconds - 60:
            kills += 1
            workers.kill_oldest()
            workers.start()
            print(
                f"{at_s / 60:4.0f} min  kill {kills}, master {master.mib[-1]:.1f} MiB", flush=True
            )


def _of_memory(master: Watched, workers: KilledWorkers, every: float) -> list[Row]:
    first = _at(master, 60 * every - AROUND_S)
    last = _at(master, master.at_s[-1] - AROUND_S)
    assert first is not None
    assert last is not None
    what = f"master: private memory at minute {every:g} and in the end"
    permitted = f"at most +{GROWN_MB:g} MB"
    grown = (last - first) / MB
    found = f"{first:.1f}, {last:.1f} MiB: {grown:+.1f} MB"
    rows = [Row(what, found, permitted, grown <= GROWN_MB)]
    age_s = SETTLED_S
    while True:
        memory = [_at(watched, age_s) for watched in workers.watched.values()]
        known = [mib for mib in memory if mib is not None]
        if len(known) < 2:
            return rows
        apart = (max(known) - min(known)) / MB
        found = f"{min(known):.1f} to {max(known):.1f} MiB: {apart:.1f} MB"
        what = f"{len(known)} workers at an age of {age_s / 60:g} min"
        rows.append(Row(what, found, f"at most {GROWN_MB:g} MB apart", apart <= GROWN_MB))
        age_s += SETTLED_S


def _of_rows(run: Path, log: Path, code: int) -> list[Row]:
    facts: dict[str, Any] = json.loads((run / "run.json").read_text())
    calls = pq.read_table(log, columns=["request_id"]).column(0).to_pylist()
    answered = {number for number in calls if number is not None and number >= 0}
    recorded: list[int] = []
    for path in (run / "requests").glob("part-*"):
        recorded += pq.read_table(path, columns=["request_id"]).column(0).to_pylist()
    unseen = answered - set(recorded)
    lost = facts["conservation"]["lost"]
    sent_again = len(calls) - len(set(calls))
    return [
        Row("calls of the endpoint's log without a row", f"{len(unseen):,}", f"at most the {lost:,} stated as lost", len(unseen) <= lost),
        Row("calls of the log that were sent again", f"{sent_again:,}", "0", sent_again == 0),
        Row("rows that stand in two parts", f"{len(recorded) - len(set(recorded)):,}", "0", len(recorded) == len(set(recorded))),
        Row("exit code", f"{code}, {facts['state']}", "3 where rows are lost", code == (3 if lost else 0)),
    ]  # fmt: skip


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run")
    parser.add_argument("--every", type=float, default=10.0, help="minutes between two kills")
    parser.add_argument("--keep", type=Path, help="folder in which the run stays (default: none)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = soak(arguments.minutes, arguments.every, arguments.keep or Path(folder))
    conclude(rows)


if __name__ == "__main__":
    main()
