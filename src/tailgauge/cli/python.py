"""`tailgauge.run`: a run from Python, in a process of its own, because Locust and gevent patch the one they are in.

The command line is in main.py; what is returned is the analysis' Run.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tailgauge import interpreter
from tailgauge.errors import Exit, LostError, TailgaugeError, UsageError
from tailgauge.redaction import environment
from tailgauge.scenario.packaged import find, read

if TYPE_CHECKING:  # pandas takes a second to load
    from tailgauge_analysis import Run

PATIENCE_S = 120.0  # after Ctrl-C: the drain of the run, and its report


def run(
    scenario: str | os.PathLike[str],
    *,
    duration: str | None = None,
    requests: int | None = None,
    workers: int = 1,
    dry_run: bool = False,
    overrides: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] = ".",
) -> Run:
    """Run a scenario as `tailgauge run` does, and return the recorded run.

    `scenario`: a file, or the name of a packaged scenario; `duration`: as "60s" or "5m"; `workers`: processes of a real
    run, a dry run has one; `overrides`: values by dotted key, as {"arrival.rate_per_s": 4}. The run folder and the report
    are written below `out`. A run that was recorded is returned whatever its outcome: look at `answer` and `verdict`.
    UsageError for wrong arguments or scenarios, TargetError where the target cannot be used, KeyboardInterrupt after
    Ctrl-C, when the run has ended in order.
    """
    if "experiment" in read(find(os.fspath(scenario))):
        command = shlex.join(["tailgauge", "run", os.fspath(scenario)])
        raise UsageError(
            f"{scenario}: an experiment makes several runs and one answer: use `{command}`"
        )
    arguments = ["run", "--json", f"--out={os.fspath(out)}"]
    if duration is not None:
        arguments.append(f"--duration={duration}")
    if requests is not None:
        arguments.append(f"--requests={requests}")
    if dry_run:
        arguments.append("--dry-run")
    else:
        arguments.append(f"--workers={workers}")
    for key, value in (overrides or {}).items():
        arguments.append(f"--set={key}={_toml(key, value)}")
    # Its name may begin with a dash.
    arguments += ["--", os.fspath(scenario)]
    output = _output(arguments)  # exit code, output and messages

    import tailgauge_analysis

    facts = _facts(*output)
    return tailgauge_analysis.load(facts["run_dir"])


def _toml(key: str, value: Any) -> str:
    if isinstance(value, bool | int | float | str):
        return json.dumps(value)
    is_list = isinstance(value, list)
    if is_list and all(isinstance(item, bool | int | float | str) for item in value):
        return json.dumps(value)
    expected = "a text, a number, true or false, or a list of these"
    raise UsageError(f"overrides[{key!r}]: expected {expected}")


def _output(arguments: list[str]) -> tuple[int, str, str]:
    """Return exit code, output and messages of the command."""
    child = subprocess.Popen(
        interpreter.tailgauge(*arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(with_keys=True),
        start_new_session=True,  # Ctrl-C reaches this process alone, which passes it on once
    )
    try:
        output, messages = child.communicate()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        try:
            child.communicate(timeout=PATIENCE_S)
        finally:
            if child.poll() is None:
                from tailgauge.experiments.runners import kill

                kill(child)
        raise
    return child.returncode, output, messages


def _facts(code: int, output: str, messages: str) -> dict[str, Any]:
    """Return what the command printed of its run; raise the error that it ended with where it has none."""
    from tailgauge.experiments.runners import ERRORS, was_recorded

    facts: dict[str, Any] = {}
    lines = output.splitlines()
    if lines:
        facts = json.loads(lines[-1])
    if code == Exit.INTERRUPTED:
        raise KeyboardInterrupt
    if "run_dir" in facts and was_recorded(facts):
        return facts
    lines = messages.strip().splitlines() or ["the run ended without a message"]
    message = lines[-1].removeprefix("tailgauge: ").removeprefix("Error: ")
    errors = {**ERRORS, Exit.INVALID: LostError}
    error = errors.get(code, TailgaugeError)
    raise error(message)
