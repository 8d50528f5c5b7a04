"""What every test may ask for: the checkout, and commands that cannot outlive their time.

Rule: nothing here imports the harness. Locust patches the process it is imported into, so whatever needs it
runs in a process of its own, through `command` or with `pytestmark = pytest.mark.gevent`.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import secrets
import signal
import subprocess
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from patched_file import MARK, PatchedFile, is_patched

pytest_plugins = ["starting.fixtures", "run_folders.fixtures"]

FULL = os.environ.get("TAILGAUGE_FULL") == "1"  # with more repetitions
EVERY = FULL or os.environ.get("TAILGAUGE_EVERY") == "1"  # also what takes seconds
# `2/4`: the second of four parts of the files, by a hash of their paths.
PART, PARTS = (int(number) for number in os.environ.get("TAILGAUGE_PART", "1/1").split("/"))
# Folders whose tests measure no time, but for those that are marked `timed`.
UNTIMED = (
    "analysis/",
    "dry_run/",
    "experiments/",
    "fuzz/",
    "patterns/",
    "plan/",
    "project/test_report_texts.py",
    "prompts/",
    "schedule/",
    "simulator/behaviours/",
    "simulator/core/",
    "simulator/engine/",
    "simulator/protocols/",
    "torture/",
    "wire/test_bad_ends.py",
    "wire/test_oracle.py",
    "wire/test_sdk_names.py",
)
LONG = (
    "tests/docs",
    "tests/end_to_end",
    "tests/hostile",
    "tests/many_machines",
    "tests/real_engine",
    "tests/simulator/http",
    "tests/analysis/report/test_browser",
    "tests/analysis/report/test_speed",
)
TESTS = Path(__file__).parent
Command = Callable[..., subprocess.CompletedProcess[str]]

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the commands do
# A background job of a shell ignores it, and so would its commands.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all is collected: none of it is garbage


def pytest_configure(config: pytest.Config) -> None:
    """Tests that measure no time take a core only where it would be idle."""
    if config.option.markexpr == "untimed":
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except (AttributeError, OSError):  # another system, or not allowed
            os.nice(19)


def pytest_runtest_setup() -> None:
    """Beside other work on the machine, idle cores are rare: once no test measures time, take others too."""
    timed_tests_run = os.environ.get("TAILGAUGE_TIMED_TESTS_RUN")  # a file, as long as they do
    if timed_tests_run and not Path(timed_tests_run).exists():
        with contextlib.suppress(AttributeError, OSError):  # only root may
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread what is of another part, or holds none of the tests that `make pytest` asks for: reading all takes half a minute."""
    if TESTS not in collection_path.parents or collection_path.is_dir():
        return None
    name = collection_path.relative_to(TESTS).as_posix()
    if zlib.crc32(name.encode()) % PARTS != PART - 1:
        return True
    stage = config.option.markexpr
    text = collection_path.read_text(encoding="utf-8")
    is_untimed = name.startswith(UNTIMED)
    if stage in {"alone", "alone and not patient", "patient"}:
        is_wanted = "mark.alone" in text or "mark.patient" in text
    elif stage == "untimed":
        is_wanted = is_untimed
    elif "not untimed" in stage:
        is_wanted = not is_untimed or "mark.timed" in text
    else:
        is_wanted = True
    return None if is_wanted else True


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | PatchedFile | None:
    """Run files that need a process patched by gevent in one of their own."""
    text = module_path.read_text(encoding="utf-8")
    if not is_patched() and MARK in text:
        return PatchedFile.from_parent(parent, path=module_path)
    if "import hypothesis" in text or "from hypothesis" in text:
        _set_up_hypothesis()
    return None


@functools.cache
def _set_up_hypothesis() -> None:
    """Draw the same examples each time, and fail no test by the clock of a busy machine."""
    from hypothesis import settings  # it takes 0.3 s, and most processes need none

    settings.register_profile(
        "tailgauge", derandomize=True, deadline=None, database=None, max_examples=60
    )
    settings.load_profile("tailgauge")


def pytest_collection_finish() -> None:
    """What stands now stands to the end: it is searched for garbage no more."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Nor does the interpreter's end search what the tests have made."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Add the marks that follow from others; tests that wait for whole runs come first, so that no core is idle at the end."""
    for item in items:
        if not EVERY and _is_slow(item):
            item.add_marker(pytest.mark.skip(reason="it takes seconds: make verify runs it"))
        marks = {mark.name for mark in item.iter_markers()}
        if "patient" in marks or (FULL and "alone_at_full_size" in marks):
            item.add_marker("alone")
            marks.add("alone")
        name = item.nodeid.removeprefix("tests/")
        if name.startswith(UNTIMED) and not marks & {"alone", "timed"}:
            item.add_marker("untimed")
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


def _is_slow(item: pytest.Item) -> bool:
    """Whether a mark says so, of all cases of the test or of those whose names begin like its arguments."""
    case = item.name.partition("[")[2]
    marks = item.iter_markers("slow")
    return any(not mark.args or case.startswith(mark.args) for mark in marks)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def full_size() -> bool:
    """Whether `make verify` asked for longer runs and more repetitions."""
    return FULL


class Fuzz(NamedTuple):
    """The seed of a test that draws its cases, their numbers, and whether it repeats a single one."""

    seed: int
    numbers: Sequence[int]
    repeats_one: bool


@pytest.fixture
def fuzz(full_size: bool) -> Callable[[int, int], Fuzz]:
    """For so many cases in the short and the full form; `TAILGAUGE_FUZZ=SEED` or `SEED-NUMBER` repeats them or one."""

    def draw(few: int, many: int) -> Fuzz:
        given, _, only = os.environ.get("TAILGAUGE_FUZZ", "").partition("-")
        seed = int(given or (secrets.randbits(32) if full_size else 19))
        print(f"seed {seed}: repeat with TAILGAUGE_FUZZ={seed}")
        return Fuzz(seed, [int(only)] if only else range(many if full_size else few), bool(only))

    return draw


@pytest.fixture(scope="session")
def command() -> Command:
    """Run a command to its end, or kill it and all its children: `command([...], timeout_s=60)`."""
    from starting.command import run_command  # with pandas, which most processes do not need

    return run_command
