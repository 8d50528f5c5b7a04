"""`tailgauge baseline`: adds earlier runs to a baseline, lists and drops them.

What a baseline is: comparing/baseline.py of the analysis; how it judges a run: comparing/history.py.
"""

from __future__ import annotations

from pathlib import Path

import click

from tailgauge.cli import options
from tailgauge.cli.options import Commands, Whole
from tailgauge.errors import NotComparableError, UsageError
from tailgauge.live import screen


@click.group(cls=Commands)
def baseline() -> None:
    """Manage baselines of earlier runs.

    A baseline is a folder, or an s3:// URL, with one small JSON file per run. `tailgauge compare --baseline` compares a
    new run with these runs.
    """


@baseline.command(epilog=options.BASELINE)
@click.argument("folder", metavar="DIR")
@click.argument("run_dirs", nargs=-1, required=True, type=options.RUN_DIR, metavar="RUN_DIR...")
@options.allow()
def add(folder: str, run_dirs: tuple[Path, ...], allow: tuple[str, ...]) -> None:
    """Add runs to a baseline.

    RUN_DIR is the path of a run folder, the start of its name, or one word of its name; only one folder may match. All runs
    of a baseline must have the same scenario, target, model, kind of machine and version of Tailgauge. INVALID runs are refused.
    """
    from tailgauge_analysis.comparing.baseline import load, save
    from tailgauge_analysis.comparing.history import refused
    from tailgauge_analysis.comparing.run_summary import summarize

    for argument in run_dirs:
        run_dir = options.named_run(argument, Path())
        run = summarize(run_dir)
        runs = load(folder, may_be_new=True)
        refusal = refused(runs, run, allow)
        if refusal:
            raise NotComparableError(f"{run_dir}: not added: {'; '.join(refusal[:3])}")
        screen.show(f"added {save(folder, run)}, number {len(runs) + 1}")


@baseline.command("list")
@click.argument("folder", metavar="DIR")
def list_runs(folder: str) -> None:
    """List the runs of a baseline and the smallest detectable change."""
    from tailgauge_analysis.comparing.baseline import load
    from tailgauge_analysis.comparing.history import listing

    runs = load(folder)
    if runs:
        screen.show("\n".join(listing(runs, screen.columns())))
    else:
        screen.show("no runs in this baseline")


@baseline.command()
@click.argument("folder", metavar="DIR")
@click.argument("names", nargs=-1, metavar="[RUN]...")
@click.option("--keep", type=Whole(), help="Remove all but the newest N runs.")
def drop(folder: str, names: tuple[str, ...], keep: int | None) -> None:
    """Remove runs from a baseline.

    RUN is the name of a run, the start of its name, or one word of its name (hyphens separate words), such as 0a1b.
    """
    from tailgauge_analysis.comparing.baseline import delete, load

    if bool(names) == bool(keep):
        raise UsageError("baseline drop: name runs, or give --keep N")
    runs = load(folder)
    if keep:
        dropped = runs[:-keep]
    else:
        dropped = []
        for run in runs:
            if any(options.is_named(run.run_id, name) for name in names):
                dropped.append(run)
    for run in dropped:
        delete(folder, run)
    screen.show(f"dropped {len(dropped)} of {len(runs)} runs")
