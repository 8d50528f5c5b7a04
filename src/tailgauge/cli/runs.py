"""`tailgauge runs`: what lies below runs/ and reports/, and its removal."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import click

from tailgauge.cli import options
from tailgauge.cli.options import Duration
from tailgauge.errors import Exit, UsageError
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.text_file import LARGEST_JSON, json_tree, read_text, refusal

_RUN_ID = re.compile(r"(\d{8}T\d{6}Z)-[a-z0-9_-]+-[0-9a-f]{4}")
_RESULTS = {
    Exit.OK: "PASS", Exit.FAILED: "FAIL", Exit.INCONCLUSIVE: "INCONCLUSIVE", Exit.INVALID: "INVALID",
    Exit.TARGET: "NO ANSWER", Exit.INTERRUPTED: "interrupted",
}  # fmt: skip
_COMPLETED = "COMPLETED"  # exit code 0 as well: no objective decided
_IDLE_S = 60.0  # a run whose folder did not change for so long is no longer being recorded


@click.command()
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option("--older-than", type=Duration(), help="Only runs older than this, as 24h.")
@click.option("--clean", is_flag=True, help="Delete these runs and their reports; asks first.")
@click.option("--yes", is_flag=True, help="Delete without the question.")
@options.out("runs/ and reports/")
@click.pass_context
def runs(
    context: click.Context, names: tuple[str, ...], older_than: float | None, clean: bool, yes: bool, out: Path
) -> None:  # fmt: skip
    """List and clean up runs.

    RUN is a run or a part of its name, for example quickstart. A run that is still recorded is not deleted.
    """
    found = find_runs(out, names, older_than or 0.0)
    if not found:
        click.echo("no runs found")
        return
    page = context.make_formatter()
    rows = [(run.run_id, f"{run.result:<12}  {size_text(run.size):>8}  {run.target}") for run in found]
    page.write_dl(rows, col_max=44)
    click.echo(page.getvalue(), nl=False)
    ended = [run for run in found if not run.is_running]
    if not clean or not ended:
        return
    import shutil

    size = size_text(sum(run.size for run in ended))
    if not yes and not click.confirm(f"Delete {len(ended)} of {len(found)} runs and their reports, {size}?"):
        return
    for run in ended:
        for folder in run.folders:
            try:
                shutil.rmtree(folder)
            except OSError as error:
                raise UsageError(f"{folder}: cannot be deleted: {error.strerror}") from error
    click.echo(f"deleted {len(ended)} runs, {size}")


def find_runs(out: Path, names: tuple[str, ...], older_than_s: float) -> list[StoredRun]:
    """The runs below `out` whose name has one of `names` in it, the newest last."""
    from datetime import UTC, datetime

    folders: dict[str, list[Path]] = {}
    for path in (*out.glob("runs/*"), *out.glob("reports/*")):
        match = _RUN_ID.fullmatch(path.name)
        if match is None or not path.is_dir() or path.is_symlink():
            continue
        began = datetime.strptime(match[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        if time.time() - began >= older_than_s and (not names or any(name in path.name for name in names)):
            folders.setdefault(path.name, []).append(path)
    return [StoredRun(run_id, tuple(folders[run_id])) for run_id in sorted(folders)]


class StoredRun:
    """A run's folder and its report; an experiment has a report only."""

    def __init__(self, run_id: str, folders: tuple[Path, ...]) -> None:
        self.run_id = run_id
        self.folders = folders
        stats = {
            path: path.stat() for folder in folders for path in folder.rglob("*") if refusal(path) is None
        }
        self.size = sum(one.st_size for one in stats.values())
        facts: dict[str, Any] = {}
        for name in ("report.json", "run.json"):
            facts |= next((_json(folder / name) for folder in folders if refusal(folder / name) is None), {})
        self.target = _target(facts.get("target"))
        run = next((folder for folder in folders if folder.parent.name == "runs"), Path())
        changed = max((one.st_mtime for path, one in stats.items() if run in path.parents), default=0.0)
        alive = RunFolder(run).is_recorded or time.time() - changed < _IDLE_S
        self.is_running = facts.get("state") == "running" and alive
        self.result = "running" if self.is_running else _result(facts)


def _target(target: Any) -> str:
    """Host and port of a target, or that it was simulated."""
    url = str(target.get("url") or "") if isinstance(target, dict) else str(target or "")
    if url == "simulated" or (isinstance(target, dict) and target.get("simulated")):
        return "simulated"
    return url.partition("://")[2] or url


def _result(facts: dict[str, Any]) -> str:
    """The result of the last report, else the state of the run."""
    verdict = facts.get("verdict")
    report = verdict if isinstance(verdict, dict) else facts
    code = report.get("exit_code")
    if code == Exit.OK and report.get("outcome") == _COMPLETED:
        return _COMPLETED
    if code in list(_RESULTS):
        return _RESULTS[Exit(code)]
    state = str(facts.get("state", ""))
    return {"complete": "no report", "running": "interrupted", "unusable": "NO ANSWER"}.get(state, state)


def _json(path: Path) -> dict[str, Any]:
    """The values of a file; none where it is not readable."""
    try:
        tree = json_tree(read_text(path, LARGEST_JSON), str)
    except (UsageError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def size_text(size: float) -> str:
    """Bytes as kB, MB or GB."""
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.0f} {unit}" if size >= 10 else f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} GB"
