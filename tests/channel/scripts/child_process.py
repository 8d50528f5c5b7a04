"""Script: copies of this process that end by themselves, with their lifeline, by a signal, and with an error."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tailgauge.channel.child_process import Copy

logs = Path(tempfile.mkdtemp())
copies: list[Copy] = []


def reads_to_the_end() -> int:
    text = b""
    while part := os.read(0, 100):
        text += part
    print("to nowhere", flush=True)
    print(text.decode(), file=sys.stderr)
    return 7


def fails() -> int:
    raise OSError("no such thing")


def copy(work) -> Copy:
    copies.append(Copy(f"worker {len(copies)}", work, logs / str(len(copies)), copies))
    return copies[-1]


def ends(one: Copy) -> int | None:
    until = time.monotonic() + 20
    while one.running() and time.monotonic() < until:
        time.sleep(0.01)
    return one.process.returncode


def leaked() -> int:
    """How many descriptors stay open where the system has no process left."""
    before = psutil.Process().num_fds()
    fork = os.fork
    os.fork = out_of_processes
    with contextlib.suppress(BlockingIOError):
        copy(fails)
    os.fork = fork
    return psutil.Process().num_fds() - before


def out_of_processes() -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def main() -> dict[str, object]:
    first, second, third, fourth = (copy(work) for work in (*[reads_to_the_end] * 3, fails))
    failed = ends(fourth)
    seen = psutil.Process(second.process.pid)
    facts = {
        "name": seen.name(),
        "session": os.getsid(second.process.pid) == second.process.pid,
        "failed": [failed, fourth.log_tail()],
    }
    first.write("abc")
    first.cut()
    facts["cut"] = [ends(first), first.log_tail(), second.running(), third.running()]
    os.kill(second.process.pid, signal.SIGKILL)
    facts["killed"] = [ends(second), second.log_tail(), third.running()]
    second.write("too late")
    third.stop(20)
    facts["stopped"] = third.process.returncode
    facts["leaked"] = leaked()
    return facts


if __name__ == "__main__":
    print(json.dumps(main()))
