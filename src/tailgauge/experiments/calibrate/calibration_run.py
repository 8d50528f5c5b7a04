"""One calibration run: the simulated endpoint as a child, a real run against it, and the endpoint's log beside the run's rows.

The run is `tailgauge run` itself with one worker, in separate processes. Endpoint and client use different cores if there
are two, because no real target shares the client's. For TLS the endpoint has a self-signed certificate, made by the
`openssl` command; its key is deleted with its folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tailgauge.channel.child_process import Child
from tailgauge.errors import Exit, TailgaugeError
from tailgauge.experiments.calibrate import plan
from tailgauge.experiments.calibrate.measure import StepError, measure
from tailgauge.experiments.calibrate.plan import Steps
from tailgauge.experiments.runners import kill
from tailgauge.master.embedded_endpoint import START_S, fetch_server_log
from tailgauge.rows.run_folder import RunFolder

_DAYS = "2"


@dataclass(frozen=True, slots=True)
class Authority:
    """PEM files: the certificate, to serve with and to trust, and its key."""

    certificate: Path
    key: Path


def authority(folder: Path) -> Authority | str:
    """Make one for 127.0.0.1; or why that is not possible."""
    command = shutil.which("openssl")
    if command is None:
        return "the command openssl, which makes the endpoint's certificate, was not found"
    files = Authority(folder / "endpoint.pem", folder / "endpoint-key.pem")
    done = subprocess.run(
        [command, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", str(files.key), "-out", str(files.certificate), "-days", _DAYS, "-subj", "/CN=tailgauge calibrate",
         "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "keyUsage=critical,digitalSignature,keyCertSign"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        return f"openssl did not make a certificate: {message[:200]}"
    return files


def calibration_run(
    steps: Steps, model: str, clock: str, authority: Authority | None, folder: Path, patience_s: float
) -> list[StepError]:
    """The client's error at each step. Raises TailgaugeError if no run came about, TimeoutError if it took too long."""
    folder.mkdir()
    serving, sending = _cores()
    line = ["endpoint", "--port=0", "--lifeline", *plan.endpoint_options(model)]
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
    return measure(run.path, steps.windows(), plan.SLACK_MS[model])


def _run(path: Path, folder: Path, patience_s: float, cores: set[int]) -> RunFolder:
    """Run the scenario to its end; the folder of the run."""
    line = ["run", str(path), "--workers=1", "--json", f"--out={folder}"]
    run = Child(line, folder / "run.log", with_keys=False)
    _keep_to(run.process.pid, cores)
    try:
        output, _ = run.process.communicate(timeout=patience_s)
    except BaseException as error:
        kill(run.process)  # its worker too, which would keep writing into the folder
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"it did not end within {patience_s:.0f} s") from error
        raise
    if run.process.returncode == Exit.INTERRUPTED:
        raise TailgaugeError("interrupted: no certificate was made")
    code = run.process.returncode
    try:
        done = RunFolder(Path(json.loads(output)["run_dir"]))
    except (ValueError, KeyError):
        code = code or Exit.INTERNAL
    if code in {Exit.USAGE, Exit.TARGET, Exit.INTERNAL}:
        raise TailgaugeError(f"a run of the calibration failed (exit code {code}): {run.log_tail()}")
    return done


def _cores() -> tuple[set[int], set[int]]:
    """One core for the endpoint, the others for the client; empty if there is only one, or no affinity."""
    free = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return ({free[0]}, set(free[1:])) if len(free) > 1 else (set(), set())


def _keep_to(pid: int, cores: set[int]) -> None:
    if cores:
        with contextlib.suppress(OSError):  # it has ended; its output is read elsewhere
            os.sched_setaffinity(pid, cores)
