"""One trial: the simulated endpoint as a child, a real run against it, and the endpoint's log beside the run's rows.

Rule: the run is `tailgauge run` itself, one worker, in processes of its own. Endpoint and client keep to different
cores where there are two, because no real target shares the client's.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tailgauge.channel.subprocess import Child
from tailgauge.errors import Exit, TailgaugeError
from tailgauge.experiments.calibrate import plan
from tailgauge.experiments.calibrate.loopback_certificate import Authority
from tailgauge.experiments.calibrate.plan import Steps
from tailgauge.master.embedded_endpoint import START_S, fetch_server_log
from tailgauge.redaction import environment
from tailgauge.rows.run_folder import RunFolder

if TYPE_CHECKING:
    from tailgauge.experiments.calibrate.client_error import Level


def trial(
    steps: Steps, law: str, clock: str, authority: Authority | None, folder: Path, patience_s: float
) -> list[Level]:
    """The levels of one staircase. Raises TailgaugeError where no run came about, TimeoutError where it took too long."""
    folder.mkdir()
    serving, sending = _cores()
    line = ["endpoint", "--port=0", "--lifeline", *plan.endpoint_options(law)]
    if authority is not None:
        line += [f"--certfile={authority.certificate}", f"--keyfile={authority.key}"]
    endpoint = Child(line, folder / "endpoint.log", with_keys=False)
    try:
        url = endpoint.first_line(START_S).split()[-1]
        _keep_to(endpoint.process.pid, serving)
        trusted = str(authority.certificate) if authority else None
        path = folder / "calibrate.toml"
        path.write_text(plan.scenario(steps, url, trusted, clock), encoding="utf-8")
        run = _run(path, folder, patience_s, sending)
        complaints = fetch_server_log(url, run.path.name, run, trusted)
        if complaints:
            raise TailgaugeError(complaints[0])
    finally:
        endpoint.stop(3)
    # With it comes pandas, which no worker and no start waits for.
    from tailgauge.experiments.calibrate.client_error import Window, measure

    windows = [Window(*span) for span in steps.spans()]
    return measure(run.path, windows, plan.SLACK_MS[law])


def _run(path: Path, folder: Path, patience_s: float, cores: set[int]) -> RunFolder:
    """Run the scenario to its end; the folder of the run."""
    log = folder / "run.log"
    line = [sys.executable, "-m", "tailgauge", "run", str(path)]
    line += ["--workers=1", "--json", "--out", str(folder)]
    with log.open("wb") as errors, subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment(with_keys=False)
    ) as process:  # fmt: skip
        _keep_to(process.pid, cores)
        try:
            said, _ = process.communicate(timeout=patience_s)
        except BaseException as error:
            _end(process)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"it did not end within {patience_s:.0f} s") from error
            raise
    if process.returncode == Exit.INTERRUPTED:
        raise TailgaugeError("interrupted: no certificate was made")
    try:
        told: dict[str, Any] = json.loads(said)
        return RunFolder(Path(told["run_dir"]))
    except (ValueError, KeyError) as error:
        words = " | ".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-2:])
        raise TailgaugeError(
            f"a run of the calibration failed (exit code {process.returncode}): {words}"
        ) from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """At once, with its worker, which would go on writing into the folder: nothing of it is kept."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    process.kill()


def _cores() -> tuple[set[int], set[int]]:
    """One core for the endpoint, the others for the client; none named where there is one, or no way to say so."""
    free = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return ({free[0]}, set(free[1:])) if len(free) > 1 else (set(), set())


def _keep_to(pid: int, cores: set[int]) -> None:
    if cores:
        with contextlib.suppress(OSError):  # it has ended: what it says is read elsewhere
            os.sched_setaffinity(pid, cores)
