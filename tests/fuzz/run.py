"""Check what reads the bytes of others with inputs that are drawn: `make fuzz MINUTES=10 SEED=7`.

Each target has a process of its own, so that one that dies is a failure and not the end. A failing input is made smaller
and kept in tests/fuzz/corpus, which `make test` repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz import session

RESULT = "result: "
HANGS_S = 500.0  # beyond its time: code that no signal reaches


def main() -> int:
    """Return 1 where a rule was broken."""
    options = arguments()
    if options.replay:
        return replay_file(options.replay)
    if options.child:
        child(options)
        return 0
    names = options.target or session.NAMES
    seconds = None if options.inputs is not None else options.minutes * 60 / len(names)
    print(f"seed {options.seed}", flush=True)
    results = [target_result(name, options, seconds) for name in names]
    return 1 if any(result["failures"] for result in results) else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of all targets together")
    parser.add_argument("--inputs", type=int, help="of each target, instead of minutes")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--target", action="append", choices=session.NAMES)
    parser.add_argument(
        "--replay",
        type=lambda name: Path(name).resolve(),
        help="check this file of the corpus only",
    )
    parser.add_argument(
        "--keep-nothing", action="store_true", help="print failing inputs, write no file"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--current", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def replay_file(path: Path) -> int:
    """Check one kept input; the folder names the target."""
    target: Any = session.importlib.import_module(f"fuzz.targets.{path.parent.name}")
    with session.bounded():
        target.check(session.load(path))
    print(f"{path}: every rule holds")
    return 0


def child(options: argparse.Namespace) -> None:
    """Check one target and print its result."""
    checked = session.Session(
        options.child, keeps=not options.keep_nothing, current=options.current
    )
    checked.replay()
    began = time.monotonic()
    before = checked.inputs
    checked.mutate(options.seed, inputs=options.inputs, seconds=options.seconds)
    facts = {
        "replayed": before,
        "inputs": checked.inputs - before,
        "seconds": time.monotonic() - began,
        "failed": checked.failed,
        "failures": [asdict(failure) for failure in checked.failures.values()],
    }
    print(RESULT + json.dumps(facts), flush=True)
    os._exit(0)  # greenlets and threads of the product end with the process


def target_result(name: str, options: argparse.Namespace, seconds: float | None) -> dict[str, Any]:
    """The result of a target, printed."""
    with tempfile.TemporaryDirectory(prefix="tailgauge-fuzz-") as folder:
        current = Path(folder) / "current"
        line = [
            sys.executable,
            __file__,
            "--child",
            name,
            "--seed",
            str(options.seed),
            "--current",
            str(current),
        ]
        line += (
            ["--inputs", str(options.inputs)] if seconds is None else ["--seconds", str(seconds)]
        )
        line += ["--keep-nothing"] if options.keep_nothing else []
        done = ended(line, folder, HANGS_S + (seconds or 0.0))
        *_, last = done.stdout.splitlines() or [""]
        if last.startswith(RESULT):
            result: dict[str, Any] = json.loads(last.removeprefix(RESULT))
        else:
            result = died(name, done, current, keeps=not options.keep_nothing)
    rate = result["inputs"] / max(result["seconds"], 1e-9)
    counts = f"{result['inputs']:,} inputs, {rate:,.0f}/s, {result['replayed']:,} of the corpus"
    print(
        f"{name:20} {counts}, {len(result['failures'])} failures ({result['failed']:,} inputs)",
        flush=True,
    )
    for failure in result["failures"]:
        print(f"  {failure['place']}\n    {failure['text']}")
        if options.keep_nothing:
            print(f"    input: {failure['file']}", flush=True)
        else:
            print(
                f"    repeat with: {sys.executable} {__file__} --replay {failure['file']}",
                flush=True,
            )
    return result


def ended(line: list[str], folder: str, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """The process of a target once it has ended; one that no signal reached in time is killed."""
    try:
        return subprocess.run(
            line, capture_output=True, text=True, check=False, cwd=folder, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(
            line, -signal.SIGKILL, "", f"it did not end within {timeout_s:,.0f} s"
        )


def died(
    name: str, done: subprocess.CompletedProcess[str], current: Path, *, keeps: bool
) -> dict[str, Any]:
    """The result of a process that ended before its time: the input that it was at is the failure."""
    data = current.read_bytes() if current.exists() else b""
    file = str(session.keep(name, data)) if keeps else repr(data)
    text = done.stderr[-3000:]
    failure = {"place": f"the process ended with {done.returncode}", "text": text, "file": file}
    return {"replayed": 0, "inputs": 0, "seconds": 0.0, "failed": 1, "failures": [failure]}


if __name__ == "__main__":
    sys.exit(main())
