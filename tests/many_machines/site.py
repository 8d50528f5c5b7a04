"""One run over many hosts as a test conducts it: endpoint, master, workers, each on its own host with its own folder.

Rule: the workers have no folder in common with the master: each sees an empty one instead, so that rows arrive
over the wire or not at all. Whatever a test needs to know afterwards is in files.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
from many_machines.network import Host, Network, end
from run_folders.run_data import RunData
from starting.command import QUICK
from starting.programs import TAILGAUGE

PROBE = Path(__file__).parent / "scripts" / "probe.py"
PORT = 5557
SERVED = 8000
LOST_S = 5.0  # a worker of which nothing is heard is noticed within this
SILENCE_S = (
    20.0  # and one that stays away is given up within so long of the end, see winding_up.RETURN_S
)
ENDPOINT = tuple(one for one in QUICK if one.startswith("--set=simulated."))
TRAFFIC = tuple(one for one in QUICK if one not in ENDPOINT)


class SiteError(AssertionError):
    """What should have happened did not, with what the processes said."""


class Served:
    """A simulated endpoint on a host of its own. Its log of what came is kept over a restart."""

    def __init__(self, host: Host, folder: Path, sets: Sequence[str] = ENDPOINT) -> None:
        self.host, self._folder, self._sets = host, folder, sets
        self._kept: list[Any] = []
        self.process = self._start()

    @property
    def url(self) -> str:
        """What workers call."""
        return f"http://{self.host.address('traffic')}:{SERVED}"

    def _start(self) -> subprocess.Popen[str]:
        line = [
            TAILGAUGE,
            "endpoint",
            "--host=0.0.0.0",
            f"--port={SERVED}",
            "--lifeline",
            *self._sets,
        ]
        process = self.host.start(line, self._folder)
        until(
            lambda: "listening" in self.host.output(cwd=self._folder),
            30,
            "the endpoint did not start",
        )
        return process

    def server_log(self, run_id: str) -> Any:
        """What it says of a run, in pandas; over all its lives."""
        file = self._folder / f"truth-{len(self._kept)}-{run_id}.parquet"
        url = f"http://127.0.0.1:{SERVED}/tailgauge/server-log?run={run_id}"
        code = f"import urllib.request; urllib.request.urlretrieve({url!r}, {str(file)!r})"
        asked = self.host.start([sys.executable, "-c", code], self._folder)
        assert asked.wait(60) == 0, self.host.output(cwd=self._folder)
        every = pd.concat([*self._kept, pq.read_table(file).to_pandas()], ignore_index=True)
        return every[every.client_request_id.str.startswith(f"{run_id}/")]

    def die(self, run_id: str, how: int = signal.SIGKILL) -> None:
        """Killed, or ended by another signal. Nothing reaches it between the last look into its log and its death, so that the log is complete."""
        self.host.cut("traffic")
        self._kept = [self.server_log(run_id)]
        self.process.send_signal(how)
        self.process.wait(10)
        self.host.mend("traffic")

    def back(self) -> None:
        """The same program on the same port, which has forgotten everything."""
        self.process = self._start()


class Remote:
    """A worker on a host of its own, whose monotonic clock may be `ahead_s` of the master's (the kernel sees to that)."""

    def __init__(
        self,
        host: Host,
        folder: Path,
        master: Path,
        address: str,
        env: Mapping[str, str],
        mounts: Sequence[Sequence[str | Path]] = (),
        after: str = "",
        ahead_s: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        self.host, self.out, self._folder = host, folder / host.name, folder
        self.out.mkdir(exist_ok=True)
        hidden = ("-t", "tmpfs", "-o", "size=64k", "none", master)
        shifted = (
            ["unshare", "--time", f"--monotonic={ahead_s}", "--fork", "--kill-child"]
            if ahead_s
            else []
        )
        line = [*shifted, TAILGAUGE, "worker", f"--master={address}", f"--out={self.out}", *options]
        self.process = host.start(line, folder, env, (hidden, *mounts), after)
        self._number = len(host.processes) - 1
        self._waits = bool(shifted or after)  # the process that we started waits for the worker
        self._pid = 0

    @property
    def pid(self) -> int:
        """Of the worker itself; to be asked first while it lives."""
        if not self._pid:
            pid = self.process.pid
            children = (
                Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                if self._waits
                else [str(pid)]
            )
            self._pid = int(children[0])
        return self._pid

    def number(self, run: RunData) -> int:
        """What the run calls it."""
        (found,) = [w["worker"] for w in run.facts["workers"] if w["pid"] == self.pid]
        return int(found)

    def signal(self, number: int) -> None:
        """To the worker alone."""
        os.kill(self.pid, number)

    @property
    def output(self) -> str:
        """Its output."""
        return self.host.output(self._number, self._folder)

    def code(self, timeout_s: float) -> int:
        """Its exit code, once it has ended; SiteError where it does not."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise SiteError(
                f"{self.host.name} did not end within {timeout_s:.0f} s; it said: {self.output}"
            ) from None

    def folders(self) -> list[Path]:
        """Run folders that it still keeps."""
        return sorted(self.out.glob("runs/*"))


class Site:
    """A network with an endpoint; `run` starts a master and its workers, and everything ends with the network."""

    def __init__(self, network: Network, folder: Path, endpoint: Served) -> None:
        self.network, self.folder, self.endpoint = network, folder, endpoint
        self.master = network.host("master")
        self.token = secrets.token_hex(16)
        self.out = folder / "master-out"
        self.out.mkdir()
        self.workers: list[Remote] = []
        self._masters: list[subprocess.Popen[str]] = []
        self._began = 0.0

    def run(self, seconds: float, *arguments: str, **how: Any) -> RunData:
        """Begin a run, and return once it has started."""
        self.begin(seconds, *arguments, **how)
        return self.started()

    def begin(
        self,
        seconds: float,
        *arguments: str,
        workers: int = 2,
        rate: float = 60,
        bind: str = "",
        address: str = "",
        ahead_s: Sequence[int] = (),
        first: Mapping[str, Any] | None = None,
        scenario: Sequence[str] = ("streaming", *TRAFFIC),
        options: Sequence[str] = (),
    ) -> None:
        """Start the master of a run and its workers, each on its host.

        `bind`: where the master listens; `address`: where the workers find it, if not there; `ahead_s`: their clocks;
        `first`: how the first of them is started; `scenario`: which, with its settings; `options`: of the workers.
        """
        bind = bind or f"{self.master.address('control')}:{PORT}"
        self.address = address or bind
        line = [
            TAILGAUGE, "run", *scenario, f"--target={self.endpoint.url}", f"--expect-workers={workers}", f"--bind={bind}",
            f"--rate={rate}", f"--duration={seconds}", "--set=stages.warmup_s=1", f"--out={self.out}", *arguments,
        ]  # fmt: skip
        self.process = self.master.start(line, self.folder, {"TAILGAUGE_TOKEN": self.token})
        self._masters.append(self.process)
        self._master_number = len(self.master.processes) - 1
        for number in range(workers):
            how = first if first and not number else {"ahead_s": ahead_s[number] if ahead_s else 0}
            self.worker(**{"options": options, **how})

    def worker(self, *, token: str = "", **how: Any) -> Remote:
        """One more worker, on the next host."""
        host = self.network.host(f"w{len(self.workers)}")
        env = {"TAILGAUGE_TOKEN": token or self.token}
        self.workers.append(Remote(host, self.folder, self.out, self.address, env, **how))
        return self.workers[-1]

    def started(self, timeout_s: float = 90) -> RunData:
        """The run, as soon as its clock runs."""
        found: list[RunData] = []

        def look() -> bool:
            if self.process.poll() is not None:
                raise SiteError(f"the run did not begin: {self.output}")
            for path in self.out.glob("runs/*/run.json"):
                start = json.loads(path.read_text())["start_at_ns"]
                if start and time.monotonic_ns() > start:
                    self._began = start / 1e9
                    found.append(RunData(path.parent))
            return bool(found)

        until(
            look,
            timeout_s,
            "the run did not start",
            lambda: self.output + "".join(w.output for w in self.workers),
        )
        assert all(worker.pid for worker in self.workers if worker.process.poll() is None)
        return found[0]

    def at(self, second: float) -> None:
        """Wait for a second of the run."""
        time.sleep(max(0.0, self._began + second - time.monotonic()))

    @property
    def now(self) -> float:
        """Seconds into the run."""
        return time.monotonic() - self._began

    def interrupt(self) -> None:
        """Ctrl-C to the master."""
        self.process.send_signal(signal.SIGINT)

    def ended(self, timeout_s: float = 60) -> int:
        """The master's exit code; SiteError where it does not end."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise SiteError(
                f"the run did not end within {timeout_s:.0f} s: {self.output}"
            ) from None

    @property
    def output(self) -> str:
        """The master's output."""
        return self.master.output(self._master_number, self.folder)

    def clear(self) -> None:
        """End what is left of the run; the endpoint stays."""
        for process in (*self._masters, *(w.process for w in self.workers)):
            end(process)


def until(done: Any, timeout_s: float, complaint: str, output: Any = lambda: "") -> None:
    """Wait until `done()`; SiteError with what was said where that takes too long."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise SiteError(f"{complaint}: {output()}")
        time.sleep(0.05)
