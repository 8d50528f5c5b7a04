"""Runs to which several things happen at random: whatever it is, nothing is sent twice and each missing row is stated.

`make chaos` makes TAILGAUGE_ROUNDS (40) rounds and prints the seed; `TAILGAUGE_SEED=N make chaos` repeats them. What
happened in a round is shown where it fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import psutil
import pytest
from many_machines.accounting import planned, sent_once
from many_machines.site import Remote, Site
from run_folders.run_data import RunData, assert_conserved
from starting.command import run_command

from tailgauge.transport.connection import SPARE_DESCRIPTORS
from tailgauge_analysis.reading.frames import load

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("TAILGAUGE_SEED", "7"))
ROUNDS = int(os.environ.get("TAILGAUGE_ROUNDS", "40"))
SHORT = 1  # round in `make test`
SECONDS, RATE = 14, 30
DISK = "16m"
STAYS_FULL_S = 3600.0
FREE_BYTES = 5_000_000  # of address space, where it is taken: what a second or two use up
WORKER, MASTER, ENDPOINT = "worker", "master", "endpoint"
HARMS = (
    *((who, how) for how in ("kill", "stop", "end") for who in (WORKER, MASTER, ENDPOINT)),
    (WORKER, "fill disk"), (MASTER, "fill disk"), (WORKER, "take descriptors"), (WORKER, "take memory"),
)  # fmt: skip


@dataclass(frozen=True)
class Harm:
    """What happens to whom, from when on and for how long."""

    at_s: float
    who: str
    how: str
    worker: int
    for_s: float

    def __str__(self) -> str:
        lasts = (
            f" for {self.for_s:.1f} s"
            if self.how in {"stop", "fill disk"} or self.who == ENDPOINT
            else ""
        )
        return f"{self.at_s:.1f} s: {self.how} {self.who}{f' {self.worker}' if self.who == WORKER else ''}{lasts}"


def drawn(number: int) -> tuple[int, list[Harm]]:
    """Workers and harms of a round: each kind comes first in some round, and each process is harmed once at most."""
    random = Random(f"{SEED}/{number}")
    workers = random.choice((1, 2, 4))
    harms: dict[tuple[str, int], Harm] = {}
    kinds = [
        HARMS[(number + SEED) % len(HARMS)],
        *(random.choice(HARMS) for _ in range(random.choice((0, 0, 1, 2)))),
    ]
    for who, how in kinds:
        worker = random.randrange(workers) if who == WORKER and how != "fill disk" else 0
        for_s = 30 ** random.random()  # 1 to 30
        if how == "fill disk" and random.random() < 0.5:
            for_s = STAYS_FULL_S
        harms.setdefault(
            (who, worker), Harm(random.uniform(1, SECONDS - 2), who, how, worker, for_s)
        )
    return workers, sorted(harms.values(), key=lambda harm: harm.at_s)


class Round:
    """One run and what is done to it."""

    def __init__(self, site: Site, workers: int, harms: list[Harm]) -> None:
        self.site, self.harms = site, harms
        self._disk = site.folder / "w0"
        small = ("-t", "tmpfs", "-o", f"size={DISK}", "none")
        first = {"mounts": [(*small, self._disk)]} if self.did(WORKER, "fill disk") else None
        if self.did(MASTER, "fill disk"):
            subprocess.run(["mount", *small, site.out], check=True)
        self.run: RunData = site.run(SECONDS, workers=workers, rate=RATE, first=first)
        self.pids = [worker.pid for worker in site.workers]
        self._left: list[tuple[float, Callable[[], object]]] = [
            (harm.at_s, lambda harm=harm: self._do(harm))
            for harm in harms  # type: ignore[misc]
        ]

    def play(self) -> None:
        """Let it all happen; what was begun is ended."""
        while self._left:
            self._left.sort(key=lambda one: -one[0])
            at_s, act = self._left.pop()
            self.site.at(at_s)
            with contextlib.suppress(
                ProcessLookupError, psutil.NoSuchProcess
            ):  # it has ended meanwhile
                act()

    def _do(self, harm: Harm) -> None:
        if harm.who == ENDPOINT and harm.how != "stop":
            how = signal.SIGKILL if harm.how == "kill" else signal.SIGTERM
            self.site.endpoint.die(self.run.path.name, how)
            return self._later(harm, self.site.endpoint.back)
        if harm.how == "fill disk":
            return self._fill(harm)
        pid = self._pid(harm)
        process = psutil.Process(pid)
        if harm.how == "take descriptors":
            most = process.num_fds() + SPARE_DESCRIPTORS
            return resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most)) and None
        if harm.how == "take memory":
            most = process.memory_info().vms + FREE_BYTES
            return resource.prlimit(pid, resource.RLIMIT_AS, (most, most)) and None
        number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "end": signal.SIGTERM}[harm.how]
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            self._later(harm, lambda: os.kill(pid, signal.SIGCONT))
        return None

    def _pid(self, harm: Harm) -> int:
        if harm.who == WORKER:
            return self.pids[harm.worker]
        return (self.site.process if harm.who == MASTER else self.site.endpoint.process).pid

    def _fill(self, harm: Harm) -> None:
        """The worker alone sees its disk."""
        path = self.site.out / "filling"
        if harm.who == WORKER:
            path = Path(f"/proc/{self.pids[0]}/root{self._disk}/filling")
        with contextlib.suppress(OSError), path.open("wb") as file:  # no space left
            while True:
                file.write(b"\0" * 65_536)
                file.flush()
        if harm.for_s < STAYS_FULL_S:
            self._later(harm, lambda: path.unlink(missing_ok=True))

    def _later(self, harm: Harm, act: Callable[[], object]) -> None:
        self._left.append((harm.at_s + harm.for_s, act))

    def did(self, who: str, *how: str) -> bool:
        """Whether this was among it."""
        return any(harm.who == who and (not how or harm.how in how) for harm in self.harms)


@pytest.fixture
def kills(request: pytest.FixtureRequest, site: Site) -> Iterator[Round]:
    number = request.param
    workers, harms = drawn(number)
    print(f"TAILGAUGE_SEED={SEED}, round {number}, {workers} workers: {'; '.join(map(str, harms))}")
    made = Round(site, workers, harms)
    yield made
    if site.endpoint.process.poll() is not None:
        site.endpoint.back()
    if made.did(MASTER, "fill disk"):
        subprocess.run(["umount", "--lazy", site.out], check=True)


CHAOS = pytest.mark.skipif(os.environ.get("TAILGAUGE_CHAOS") != "1", reason="make chaos")


@pytest.mark.parametrize(
    "kills",
    [number if number < SHORT else pytest.param(number, marks=CHAOS) for number in range(ROUNDS)],
    indirect=True,
)
def test_whatever_happens_each_request_is_sent_once_and_each_missing_row_is_stated(kills, tmp_path):
    site, run = kills.site, kills.run
    kills.play()
    code = site.ended(120)
    facts = run.facts  # before another report adds the folders that the workers kept
    worker_codes = [worker.code(90) for worker in site.workers]

    log = site.endpoint.server_log(run.path.name)
    log, plan = log[log.request_id >= 0], planned(run)
    sent_once(run, log, plan)
    left = [folder for worker in site.workers for folder in worker.folders()]
    done = run_command(
        ["tailgauge", "report", run.path, *left, "--out", tmp_path / "all", "--json"]
    )
    assert "Traceback" not in done.stderr + site.output + "".join(
        worker.output for worker in site.workers
    )
    report = json.loads(Path(json.loads(done.stdout)["report"]["json"]).read_text())
    rows = load([run.path, *left]).requests
    rows = rows[rows.stage != "preflight"]
    assert rows.request_id.is_unique
    unseen = set(log.request_id) - set(rows.request_id)

    # A worker that was lost, or fails as one without a disk does, may have ended the run before.
    if kills.did(MASTER, "kill") and (code == -signal.SIGKILL or not kills.did(WORKER)):
        assert code == -signal.SIGKILL
        assert len(unseen) <= report["conservation"]["lost"]
        assert unseen == set() or kills.did(WORKER), (
            "workers outlive their master and keep their rows"
        )
    else:
        counts = stated(run, plan)
        assert len(unseen) <= counts["lost"]
        exits_rightly(kills, code, counts["lost"], facts)
    for number, (worker, ended) in enumerate(zip(site.workers, worker_codes, strict=True)):
        leaves_rightly(kills, number, worker, ended)
    if os.environ.get("TAILGAUGE_CHAOS") == "1":
        no_burst(plan, (rows.dispatched_at_ns.dropna() / 1e9).to_numpy())


def stated(run: RunData, plan: dict[int, int]) -> dict[str, int]:
    """The counts of run.json, held against the rows in the master's folder."""
    counts: dict[str, int] = run.facts["conservation"]
    parts = list((run.path / "requests").glob("part-*"))
    if parts:
        assert_conserved(run)
    rows = len(run.requests()) if parts else 0
    assert counts["scheduled"] == len(plan)
    assert len(plan) - rows == counts["lost"] + counts["not_reached"]
    stretches = sum(one["requests"] for worker in run.facts["workers"] for one in worker["missing"])
    assert counts["lost"] <= stretches, "it is stated when they were due"
    return counts


def exits_rightly(kills: Round, code: int, lost: int, facts: dict[str, Any]) -> None:
    if kills.did(MASTER, "end") and code == 130:  # in the run, or in its drain or report
        return
    assert code == facts["verdict"]["exit_code"], kills.site.output
    assert facts["state"] != "interrupted"
    if lost or facts["state"] == "failed":
        assert code in {3, 4}, facts["notes"]
    if code == 0:
        assert (facts["state"], lost) == ("complete", 0)
    if all(worker["state"] in {"lost", "failed"} for worker in facts["workers"]):
        assert facts["state"] != "complete"


def leaves_rightly(kills: Round, number: int, worker: Remote, code: int) -> None:
    did = {harm.how for harm in kills.harms if harm.who == WORKER and harm.worker == number}
    if "kill" in did and code == -signal.SIGKILL:
        return
    assert code in {0, 3, *([130] if "end" in did else [])}, worker.output


def no_burst(plan: dict[int, int], sent_s: np.ndarray) -> None:
    busiest = max(Counter(at // 1_000_000_000 for at in plan.values()).values())
    in_a_second = Counter(np.floor(sent_s).astype(int).tolist())
    assert max(in_a_second.values(), default=0) <= 2 * busiest, sorted(in_a_second.items())
