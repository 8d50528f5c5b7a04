"""`tailgauge runs`: what lies below runs/ and reports/, and its removal. An experiment and its runs are one row."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from tailgauge.cli import options
from tailgauge.cli.options import Age
from tailgauge.errors import Exit, UsageError
from tailgauge.live import screen
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.text_file import LARGEST_JSON, json_tree, read_text, refusal
from tailgauge.sanitize import plain

_RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-([a-z0-9_-]+)-([0-9a-f]{4})")
_RESULTS = {
    Exit.OK: "PASS",
    Exit.FAILED: "FAIL",
    Exit.INCONCLUSIVE: "INCONCLUSIVE",
    Exit.INVALID: "INVALID",
    Exit.TARGET: "NO ANSWER",
    Exit.INTERRUPTED: "INTERRUPTED",
}
_RESULTS_OF_STATES = {
    "complete": "no report",
    "running": "interrupted",
    "unusable": "NO ANSWER",
}
_COMPLETED = "COMPLETED"  # exit code 0 as well: no objective decided
_IDLE_S = 60.0  # a run whose folder did not change for so long is no longer being recorded
_HEADER = ("run", "time (UTC)", "length", "scenario", "target", "result", "note")
_GAP = "  "
_NARROWEST = 8  # columns of a scenario or target that is cut


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option("--all", "with_steps", is_flag=True, help="Also list each run of an experiment.")
@click.option("--older-than", type=Age(), help="Select runs older than this, such as 24h.")
@click.option(
    "--clean", is_flag=True, help="Delete the listed runs and their reports, after confirmation."
)
@click.option("--yes", is_flag=True, help="With --clean, delete without confirmation.")
@options.out("Folder that contains runs/ and reports/")
def runs(
    names: tuple[str, ...],
    *,
    with_steps: bool,
    older_than: float | None,
    clean: bool,
    yes: bool,
    out: Path,
) -> None:
    """List or delete runs and experiments.

    RUN is the name of a run, the start of its name, or one word of its name (hyphens separate words), such as quickstart or
    0a1b. The list has one row for each experiment. Deleting an experiment deletes all its runs. Runs in progress are not
    deleted.
    """
    if not out.is_dir():
        raise UsageError(f"--out {out}: no such folder")
    stored = find_runs(out, names, older_than or 0.0)
    # A name that no run has, whatever its age, is a mistake.
    for name in names:
        if not find_runs(out, [name], 0.0):
            raise UsageError(_no_run(name, names))
    if not stored:
        screen.show("no runs found")
        return
    listed = []
    for run in stored:
        listed.append(run)
        if with_steps:
            listed += run.steps
    screen.show("\n".join(_table([run.row() for run in listed], screen.columns())))
    screen.show(f"{len(stored)} listed, {size_text(sum(run.whole_size for run in stored))}")
    ended = [run for run in stored if not run.is_running]
    if not clean or not ended:
        return
    size = size_text(sum(run.whole_size for run in ended))
    if not yes and not _confirm(
        f"Delete {len(ended)} of {len(stored)} runs and their reports, {size}?"
    ):
        return
    for run in ended:
        _delete(run)
    screen.show(f"deleted {len(ended)} runs, {size}")


def _delete(run: StoredRun) -> None:
    """Delete the folders of a run and of its steps; UsageError where one cannot be deleted."""
    import shutil

    for folder in run.whole:
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise UsageError(f"{folder}: cannot be deleted: {error.strerror}") from error


def _no_run(name: str, names: Sequence[str]) -> str:
    """Return the message about a name that no run has. It may be a command, as other programs have it."""
    word = plain(name, 80)
    runs = [run for run in names if run != name] or ["RUN"]
    if name in {"delete", "remove", "rm", "clean", "prune"}:
        line = shlex.join(["tailgauge", "runs", *runs, "--clean"])
        return f"no run has {word!r} in its name; to delete runs: {line}"
    if name in {"show", "open", "report"}:
        return f"no run has {word!r} in its name; to make the report of a run: {shlex.join(['tailgauge', 'report', *runs])}"
    return f"no run has {word!r} in its name; `tailgauge runs` lists all"


def _confirm(question: str) -> bool:
    """Ask on the terminal; UsageError where the input ends without an answer."""
    try:
        return click.confirm(question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        screen.show()
        raise UsageError("--clean: no terminal to confirm the deletion on: add --yes") from None


def find_runs(out: Path, names: Sequence[str], older_than_s: float) -> list[StoredRun]:
    """Return the runs below `out`, the newest last, experiments with their steps within; those that one of `names` means."""
    folders: dict[str, list[Path]] = {}
    for path in (*out.glob("runs/*"), *out.glob("reports/*")):
        # A link may lead out of the folder: what is behind it is not ours to delete.
        if _RUN_ID.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            folders.setdefault(path.name, []).append(path)
    stored = {run_id: StoredRun(run_id, tuple(folders[run_id])) for run_id in sorted(folders)}
    steps = {step for run in stored.values() for step in run.step_ids}
    for run in stored.values():
        run.steps = [stored[step] for step in run.step_ids if step in stored]
    matches = []
    for run_id, run in stored.items():
        is_old = time.time() - run.began_s >= older_than_s
        if run_id not in steps and is_old and (not names or run.is_named(names)):
            matches.append(run)
    return matches


@dataclass(slots=True)
class StoredRun:
    """A run's folder and its report; an experiment has a report only, and `steps`."""

    run_id: str
    folders: Sequence[Path]
    steps: list[StoredRun] = field(default_factory=list)
    facts: dict[str, Any] = field(init=False)
    size: int = field(init=False)
    is_recorded: bool = field(init=False)

    def __post_init__(self) -> None:
        stats = {}
        for folder in self.folders:
            stats.update({path: path.stat() for path in folder.rglob("*") if refusal(path) is None})
        self.size = sum(stat.st_size for stat in stats.values())
        self.facts = {}
        for name in ("report.json", "run.json"):
            for folder in self.folders:
                if refusal(folder / name) is None:
                    self.facts |= _json(folder / name)
        run = next((folder for folder in self.folders if folder.parent.name == "runs"), Path())
        changed = max(
            (stat.st_mtime for path, stat in stats.items() if run in path.parents), default=0.0
        )
        alive = RunFolder(run).is_recorded or time.time() - changed < _IDLE_S
        self.is_recorded = self.facts.get("state") == "running" and alive

    @property
    def is_running(self) -> bool:
        """Whether it, or one of its steps, is being recorded."""
        return self.is_recorded or any(step.is_running for step in self.steps)

    @property
    def step_ids(self) -> list[str]:
        """The runs of an experiment."""
        rows = self.facts.get("runs")
        if not self.facts.get("kind") or not isinstance(rows, list):
            return []
        return [str(row.get("run_id")) for row in rows if isinstance(row, dict)]

    @property
    def names(self) -> list[str]:
        """Its name and those of its steps."""
        return [self.run_id, *(step.run_id for step in self.steps)]

    def is_named(self, names: Sequence[str]) -> bool:
        """Return whether one of `names` means it or one of its steps."""
        for run_name in self.names:
            if any(options.is_named(run_name, name) for name in names):
                return True
        return False

    @property
    def whole(self) -> list[Path]:
        """Its folders and those of its steps."""
        return [*self.folders, *(folder for step in self.steps for folder in step.folders)]

    @property
    def whole_size(self) -> int:
        """Bytes of all of them."""
        return self.size + sum(step.size for step in self.steps)

    @property
    def began_s(self) -> float:
        """When it began, as Unix time."""
        return self._began.timestamp()

    @property
    def _began(self) -> datetime:
        return datetime.strptime(self.run_id[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)

    def row(self) -> tuple[str, ...]:
        """Its cells, in the order of the header."""
        match = _RUN_ID.fullmatch(self.run_id)
        assert match is not None
        return (
            match[3],
            f"{self._began:%m-%d %H:%M}",
            self._length(),
            plain(match[2], 60),
            plain(_target(self.facts), 60),
            "running" if self.is_running else _result(self.facts),
            self._note(),
        )

    def _length(self) -> str:
        """Return the planned length of a run, or the load of an experiment's runs together."""
        if self.steps:
            lengths = [_seconds(step.facts) for step in self.steps]
            return _length_text(sum(seconds for seconds in lengths if seconds))
        return _length_text(_seconds(self.facts))

    def _note(self) -> str:
        notes = []
        run = self.facts.get("run")
        facts = run if isinstance(run, dict) else self.facts
        if facts.get("dry_run"):
            notes.append("dry run")
        if self.step_ids:
            notes.append(f"{len(self.step_ids)} runs")
        elif all(folder.parent.name == "reports" for folder in self.folders):
            notes.append("report only")
        return ", ".join(notes)


def _seconds(facts: Mapping[str, Any]) -> float | None:
    """Return how long requests arrived; where only the report is left, until the steady stage ended."""
    began = facts.get("start_at_ns")
    ended = facts.get("admission_end_at_ns")
    if isinstance(began, int) and isinstance(ended, int) and ended > began:
        return (ended - began) / 1e9
    run = facts.get("run")
    if not isinstance(run, dict):
        return None
    steady_to_s = run.get("steady_to_s")
    if not isinstance(steady_to_s, int | float):
        return None
    return float(steady_to_s)


def _length_text(seconds: float | None) -> str:
    if not seconds:
        return ""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _target(facts: Mapping[str, Any]) -> str:
    """Host and port of a target, or that it was simulated."""
    run = facts.get("run")
    target = facts.get("target")
    if not target and isinstance(run, dict):
        target = run.get("target")
    url = target or ""
    if isinstance(target, dict):
        if target.get("simulated"):
            return "simulated"
        url = target.get("url") or ""
    url = str(url)
    if url == "simulated":
        return url
    return url.partition("://")[2] or url


def _result(facts: Mapping[str, Any]) -> str:
    """Return the result of the last report, else the state of the run."""
    for report in (facts, facts.get("verdict")):
        if not isinstance(report, dict):
            continue
        code = report.get("exit_code")
        result = report.get("result")
        outcome = report.get("outcome")
        if isinstance(result, dict):
            outcome = result.get("outcome")
        if code == Exit.OK and outcome == _COMPLETED:
            return _COMPLETED
        if code in list(_RESULTS):
            return _RESULTS[Exit(code)]
    state = str(facts.get("state", ""))
    return _RESULTS_OF_STATES.get(state, state)


def _table(rows: Sequence[Sequence[str]], width: int) -> Iterable[str]:
    """Yield the rows under the header; targets, then scenarios, are cut where they do not fit."""
    cells = [_HEADER, *rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for place in (_HEADER.index("target"), _HEADER.index("scenario")):
        excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
        if excess > 0:
            widths[place] = max(_NARROWEST, widths[place] - excess)
    for row in cells:
        padded = [_cut(cell, size).ljust(size) for cell, size in zip(row, widths, strict=True)]
        yield _GAP.join(padded).rstrip()


def _cut(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    return f"{text[: width - 2]}.."


def _json(path: Path) -> dict[str, Any]:
    """Return the values of a file; none where it is not readable."""
    try:
        tree = json_tree(read_text(path, LARGEST_JSON), str)
    except (UsageError, ValueError):
        return {}
    if not isinstance(tree, dict):
        return {}
    return tree


def size_text(size: float) -> str:
    """Bytes as kB, MB or GB."""
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 10:
            return f"{size:.1f} {unit}"
        if size < 1000:
            return f"{size:.0f} {unit}"
    return f"{size / 1000:.1f} GB"
