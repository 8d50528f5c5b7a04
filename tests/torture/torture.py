"""Make one call of each distinct call site of a run fail, and check what becomes of the run: `make torture`.

A call site is a process role (master, worker, report), a function of the C library, and the kind of its file or peer. A
first run records the sites; then each site fails once in a run of its own, with each error that fits its function. Only
calls after the process is ready fail: the master's once run.json is there, a worker's once it has reported, the report's
once the folder is complete. The roles `master-before` and `worker-before` are the same processes before the run starts.

Left alone are writes to an eventfd, for which the kernel has no error, and the copy of a process between fork and exec.
A fault may have no effect on the results: then nothing has to name it. These are files that are not there anyway (a
module that is found elsewhere, a folder of plugins), what is only shown (a line on the terminal, a page of the live
view), and what is removed (a temporary file).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from run_folders.run_data import RunData, assert_conserved  # noqa: E402 - tests import each other by folder
from starting.command import QUICK, free_port  # noqa: E402
from starting.programs import TAILGAUGE  # noqa: E402

COMPILER = os.environ.get("CC", "cc")
HANG_S = 120.0  # a run takes 8 s; the bound leaves room for a busy machine
TRAFFIC = (
    "run", "streaming", "--workers=2", "--rate=20", "--duration=2.5s", "--set=stages.warmup_s=0", *QUICK,
    "--keep-answers=3", "--metrics", f"--plugin={HERE / 'faster_plugin.py'}", "--out=out",
)  # fmt: skip
_MADE = ("EMFILE", "ENFILE")
# Errors by function: those that the manual of the call names, and that a machine produces.
ERRORS = {
    "open for reading": ("EMFILE", "EACCES"),
    "open for writing": ("EMFILE", "ENOSPC"),
    "opendir": ("EMFILE", "EACCES"),
    "write": ("EIO", "ENOSPC"),
    "pwrite": ("EIO", "ENOSPC"),
    "writev": ("EIO", "ENOSPC"),
    "fsync": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO", "ENOSPC"),
    "rename": ("ENOSPC", "EACCES"),
    "mkdir": ("ENOSPC", "EACCES"),
    "unlink": ("EACCES",),
    "rmdir": ("EACCES",),
    "socket": _MADE,
    "socketpair": _MADE,
    "accept": _MADE,
    "epoll_create": _MADE,
    "eventfd": _MADE,
    "timerfd_create": _MADE,
    "pipe": _MADE,
    "connect": ("ECONNREFUSED", "ETIMEDOUT"),
    "fork": ("EAGAIN", "ENOMEM"),
    "posix_spawn": ("EAGAIN",),
    "pthread_create": ("EAGAIN",),
    "mmap": ("ENOMEM",),
}
PIPE = ("EPIPE",)  # a pipe knows no other error
# One of these texts names the cause.
CAUSES = {
    "EMFILE": ("descriptor", "Too many open files"),
    "ENFILE": ("descriptor", "Too many open files in system"),
    "EACCES": ("ermission", "a file of the program cannot be read"),
    "ENOSPC": ("no space is left", "No space left"),
    "EPIPE": ("roken pipe", "ended"),
    "EIO": ("the disk reports errors", "Input/output error"),
    "ECONNREFUSED": ("refused",),
    "ETIMEDOUT": ("timed out",),
    "EAGAIN": ("no process or thread can be started", "Failed to launch worker thread"),
    "ENOMEM": ("memory",),
}
USUAL = {0, 3, 5}  # 3: INVALID, for the machine is busy; what is lost is looked at separately
NOT_BEGUN = {2, 4}  # this machine, or the target, could not be used
GROUPS = {"descriptors": ("EMFILE", "ENFILE"), "space": ("ENOSPC", "EIO")}


@dataclass(frozen=True, order=True)
class Fault:
    """A site (or a group of them) whose first call, or every call, fails with an error. No site: nothing fails."""

    site: str = ""
    error: str = ""
    always: bool = False

    @property
    def function(self) -> str:
        """The function of the site."""
        names = [name for name in ERRORS if self.site.partition(" ")[2].startswith(name)]
        return max(names, key=len, default="")

    def command(self) -> str:
        """What repeats it."""
        arguments = [
            ".venv/bin/python",
            "tests/torture/torture.py",
            "--site",
            self.site,
            "--error",
            self.error,
        ]
        return shlex.join([*arguments, *(["--always"] * self.always)])


@dataclass
class Torture:
    """One run with a fault, and what it left."""

    fault: Fault
    folder: Path
    code: int | None = None  # None: it hung
    wall_s: float = 0.0
    violations: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[str]:
        """The sites whose calls failed."""
        path = self.folder / "failed"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def sites(self) -> set[str]:
        """The sites that were reached."""
        path = self.folder / "sites"
        return set(path.read_text().splitlines()) if path.exists() else set()

    def text(self, name: str) -> str:
        """A text that the run left in its folder."""
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""


def build(folder: Path) -> Path:
    """Compile the library."""
    library = folder / "failing_calls.so"
    flags = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")
    subprocess.run(
        [COMPILER, *flags, "-o", library, HERE / "failing_calls.c", "-ldl", "-pthread"], check=True
    )
    return library


def missing() -> str | None:
    """What is not there of what a torture needs."""
    if sys.platform != "linux":
        return "Linux"
    return None if shutil.which(COMPILER) else f"a C compiler ({COMPILER})"


# --- one run ----------------------------------------------------------------------------------------------------


def torture(fault: Fault, folder: Path, library: Path) -> Torture:
    """Make one run with a fault, and check it."""
    done = Torture(fault, folder)
    (folder / "tmp").mkdir(parents=True)
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "TORTURE_DIR": str(folder),
        "TORTURE_PROGRAM": str(ROOT),
        "TORTURE_SITE": fault.site,
        "TORTURE_ERRNO": str(getattr(errno, fault.error, 0)),
        "TORTURE_ALWAYS": str(int(fault.always)),
        "TMPDIR": str(folder / "tmp"),
    }
    began = time.monotonic()
    with (folder / "stdout").open("wb") as output, (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            [TAILGAUGE, *TRAFFIC, f"--web={free_port()}"], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
    over = threading.Event()
    viewer = threading.Thread(target=_view, args=(folder / "stderr", over))
    viewer.start()
    try:
        done.code = process.wait(HANG_S)
    except subprocess.TimeoutExpired:
        done.violations.append(f"it hung for {HANG_S:.0f} s")
    finally:
        over.set()
        viewer.join()
        done.wall_s = time.monotonic() - began
        _end(process.pid, folder)
        process.wait()
    done.violations += violations(done)
    return done


def _view(errors: Path, over: threading.Event) -> None:
    """Look at the live page and at /metrics, as a browser and Prometheus do."""
    while not over.wait(0.3):
        match = re.search(
            r"live view on (http://\S+)/tailgauge", errors.read_text(errors="replace")
        )
        if match is None:
            continue
        for page in ("tailgauge/live.json", "metrics"):
            with contextlib.suppress(OSError, ValueError):
                urllib.request.urlopen(f"{match[1]}/{page}", timeout=2).read()


def _end(master: int, folder: Path) -> None:
    """Kill what is left of a run: the processes whose environment names its folder."""
    mark = f"TORTURE_DIR={folder}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0") or int(path.parent.name) == master:
                os.kill(int(path.parent.name), signal.SIGKILL)


# --- what must hold ---------------------------------------------------------------------------------------------


def violations(done: Torture) -> list[str]:
    """What a run did wrong."""
    found = list(_tracebacks(done))
    folders = sorted((done.folder / "out" / "runs").glob("*"))
    if len(folders) != 1:
        return [*found, f"{len(folders)} run folders"]
    run = RunData(folders[0])
    try:
        facts = run.facts
    except (OSError, ValueError) as error:
        return [*found, f"run.json: {error!r}"]
    lost = _stated_losses(facts)
    if facts["start_at_ns"] is None and _is_final(facts):
        if done.code not in NOT_BEGUN:
            found.append(
                f"exit code {done.code} of a run that did not begin, expected {sorted(NOT_BEGUN)}"
            )
        return [*found, *_check_cause(done, facts)]
    found += _check_rows(run, facts, lost)
    found += _check_code(done, facts, lost)
    found += _check_later_report(done, run, facts, lost)
    found += _check_cause(done, facts)
    return found


def _tracebacks(done: Torture) -> Iterable[str]:
    """Texts that hold a traceback, or that a process was aborted."""
    logs = [*done.folder.glob("out/runs/*/*.log"), *(done.folder / "tmp").rglob("*.txt")]
    for path in (done.folder / "stdout", done.folder / "stderr", *logs):
        text = path.read_text(errors="replace")
        if "Traceback" in text or "Aborted" in text or "exception ignored" in text.lower():
            yield f"traceback in {path.relative_to(done.folder)}: {_last_error(text)}"


def _last_error(text: str) -> str:
    lines = [
        line
        for line in text.splitlines()
        if re.match(r"\w*(\.\w+)*(Error|Exception|Expired)\b", line)
    ]
    return (lines or text.splitlines() or [""])[-1][:200]


def _is_final(facts: dict[str, Any]) -> bool:
    return facts["state"] != "running"


def _stated_losses(facts: dict[str, Any]) -> dict[str, Any]:
    """What run.json says is missing: rows that could not be written, workers that are gone."""
    workers = facts["workers"]
    return {
        "attempts": sum((worker.get("unwritten") or {}).get("attempts", 0) for worker in workers),
        "rows": sum(sum((worker.get("unwritten") or {}).values()) for worker in workers),
        "workers": sum(worker["state"] == "lost" for worker in workers),
    }


def _check_rows(run: RunData, facts: dict[str, Any], lost: dict[str, Any]) -> Iterable[str]:
    """The rows beside the endpoint's own log: what it answered has a row or counts as lost, and nothing was sent twice."""
    if not list(run.path.glob("target/part-*.parquet")):
        if _is_final(facts) and not any("server log" in note for note in facts["notes"]):
            yield "there is no log of the endpoint, and no note on that"
        return
    log = run.table("target")
    if not log.client_request_id.is_unique:
        yield "a call was sent twice"
    try:
        attempts = run.table("attempts")
        known = set(zip(attempts.request_id, attempts.leg, attempts.attempt, strict=True))
    except ValueError:  # there are no parts
        known = set()
    answered = log[(log.status == 200) & log.ended_at_ns.notna()]
    keys = set(zip(answered.request_id, answered.leg, answered.attempt, strict=True))
    without_row = len(keys - known)
    if without_row > lost["attempts"] and not lost["workers"] and _is_final(facts):
        yield f"{without_row} answered calls have no row, {lost['attempts']} count as lost"
    if _is_final(facts) and not lost["rows"] and not lost["workers"]:
        try:
            if not any("could not be removed" in note for note in facts["notes"]):
                assert_conserved(run)
        except (AssertionError, ValueError) as error:
            yield f"the counts do not add up: {repr(error)[:150]}"


def _check_code(done: Torture, facts: dict[str, Any], lost: dict[str, Any]) -> Iterable[str]:
    """The exit code: 3 where rows are lost or the run failed, 70 where the report alone could not be made, else the usual."""
    reports = list(done.folder.glob("out/reports/*/report.json"))
    counts = facts["conservation"]
    cut = counts["not_reached"] + counts["lost"] + counts["client_drop"]
    fails = bool(lost["rows"] or lost["workers"] or facts["state"] in {"failed", "running"})
    if done.code is None:
        return
    if facts["state"] == "failed" and not (cut or lost["rows"] or lost["workers"]):
        yield "nothing is missing, but the run counts as failed"
    if fails:
        expected = {3}
    elif not reports:
        expected = {70}
    else:
        expected = USUAL
    if not fails and not reports and "report could not be made" not in " ".join(facts["notes"]):
        yield "there is no report, and run.json does not say why"
    if done.fault.site.startswith("report") and not fails:
        expected = expected | {70}  # the report was written, but not its result
    if done.code not in expected:
        yield f"exit code {done.code}, expected {sorted(expected)} (state {facts['state']})"


def _check_cause(done: Torture, facts: dict[str, Any]) -> Iterable[str]:
    """Plain words for the cause wherever the run did not end as usual."""
    if facts["state"] == "complete" and done.code in USUAL and not _differs(done):
        return  # the fault had no effect on the results
    texts = (
        done.text("stdout") + done.text("stderr") + json.dumps([facts["notes"], facts["workers"]])
    )
    folded = " ".join(texts.split())
    if done.failed and not any(cause in folded for cause in CAUSES[done.fault.error]):
        yield f"{done.fault.error} is named nowhere (state {facts['state']}, exit code {done.code})"


def _differs(done: Torture) -> bool:
    """Whether the report of the run is another one than a later report, which nothing disturbs."""
    made, later = (
        list(done.folder.glob(f"{where}/reports/*/report.json")) for where in ("out", "later")
    )
    if not (made and later):
        return True
    results = [json.loads(path.read_text()) for path in (*made, *later)]
    return any(
        results[0].get(key) != results[1].get(key) for key in ("result", "exit_code", "notes")
    )


def _check_later_report(
    done: Torture, run: RunData, facts: dict[str, Any], lost: dict[str, Any]
) -> Iterable[str]:
    """A report that is made later works, and says what is missing."""
    later = subprocess.run(
        [TAILGAUGE, "report", run.path, f"--plugin={HERE / 'faster_plugin.py'}", f"--out={done.folder / 'later'}"],
        capture_output=True, text=True, check=False, timeout=HANG_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    text = later.stdout + later.stderr
    if "Traceback" in text:
        yield f"traceback of a later report: {_last_error(text)}"
    if not list((done.folder / "later").glob("reports/*/report.json")):
        yield f"no later report: exit code {later.returncode}: {' '.join(text.split())[:200]}"
    elif (lost["rows"] or lost["workers"]) and later.returncode != 3:
        yield f"a later report exits {later.returncode} although rows are lost"
    elif later.returncode not in USUAL | {130}:
        yield f"a later report exits {later.returncode}"


# --- all runs ---------------------------------------------------------------------------------------------------


def faults_of(sites: Iterable[str]) -> list[Fault]:
    """Every fault of the recorded sites, and those of whole groups."""
    found = []
    for site in sorted(sites):
        errors = (
            PIPE if site.endswith(" pipe") and "write" in site else ERRORS[Fault(site).function]
        )
        found += [Fault(site, error) for error in errors]
    for group, errors in GROUPS.items():
        found += [Fault(group, error, always=True) for error in errors]
    return found


def record(folder: Path, library: Path) -> set[str]:
    """The sites of a run in which nothing fails. AssertionError where such a run is not in order."""
    done = torture(Fault(), folder, library)
    assert not done.violations, done.violations
    return done.sites


def torture_all(
    faults: Sequence[Fault],
    folder: Path,
    library: Path,
    at_once: int,
    show: Callable[[Torture], None],
) -> list[Torture]:
    """Make the runs, several at once."""

    def make(number: int) -> Torture:
        done = torture(faults[number], folder / str(number), library)
        show(done)
        return done

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(make, range(len(faults))))


def main() -> int:
    """Torture all sites, or those that are named; the exit code is 1 if something is violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", default="", help="this site only, or `descriptors`, `space`")
    parser.add_argument("--match", default="", help="sites that match this expression")
    parser.add_argument("--error", default="", help="with this error only")
    parser.add_argument(
        "--always", action="store_true", help="every call fails, not only the first"
    )
    parser.add_argument(
        "--draw", type=int, default=0, help="so many of the faults, drawn at random"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="runs at once")
    parser.add_argument("--keep", default="", help="leave the runs in this folder")
    options = parser.parse_args()
    lacking = missing()
    if lacking is not None:
        sys.exit(f"torture: it needs {lacking}")
    began = time.monotonic()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="torture-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    library = build(folder)
    if options.site and options.error:
        faults = [Fault(options.site, options.error, options.always)]
    else:
        sites = record(folder / "recorded", library)
        print(f"{len(sites)} call sites")
        for (role, function), number in sorted(
            Counter((s.split()[0], Fault(s).function) for s in sites).items()
        ):
            print(f"  {role:16}{function:20}{number:4}")
        faults = [fault for fault in faults_of(sites) if re.search(options.match, fault.site)]
        if options.error:
            faults = [fault for fault in faults if fault.error == options.error]
    if options.draw:
        faults = random.Random(options.seed).sample(faults, min(options.draw, len(faults)))

    def show(done: Torture) -> None:
        reached = "" if done.failed else "  (not reached)"
        print(
            f"{done.fault.error:13}{done.fault.site}: exit code {done.code}, {done.wall_s:.0f} s{reached}",
            flush=True,
        )
        for text in done.violations:
            print(f"    VIOLATION {text}\n      repeat it: {done.fault.command()}", flush=True)

    results = torture_all(faults, folder, library, options.jobs, show)
    reached = [done for done in results if done.failed]
    wrong = [done for done in results if done.violations]
    minutes = (time.monotonic() - began) / 60
    print(
        f"{len(faults)} faults, {len(reached)} reached, {len(wrong)} with violations, {minutes:.0f} minutes"
    )
    if not options.keep:
        shutil.rmtree(folder)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
