"""The commands that plan runs of their own: calibrate, checkup, and `run` on a scenario with a table [experiment].

Rule: arguments in, one answer out, as in cli. Heavy imports live inside the functions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tailgauge.cli import exit_codes
from tailgauge.cli.types import Positive
from tailgauge.errors import Exit, UsageError

if TYPE_CHECKING:
    from tailgauge.plan.resolve import Settings


@click.command(epilog=exit_codes.CALIBRATE)
@click.option("--quick", is_flag=True, help="At most a minute: one latency model, shorter steps.")
@click.option(
    "--planned",
    type=Positive(),
    metavar="CHUNKS_PER_S",
    help="Chunks a second that one worker is to receive: 50, 100 and 150% of it instead of a rising rate.",
)
@click.option(
    "--clock", type=click.Choice(("kernel", "user")), default="kernel", show_default=True, help="As in a run."
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to store it (default: tailgauge/certificate.json in $XDG_STATE_HOME, or in ~/.local/state).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def calibrate(
    quick: bool, planned: float | None, clock: str, certificate: Path | None, as_json: bool
) -> None:
    """Measure this machine's own error, and store a certificate that later runs cite.

    A worker receives chunks at rising rates, without TLS and under it, from an endpoint here that notes when it sends
    each; see docs/calibration.md. Nothing else should run meanwhile.
    """
    from tailgauge.experiments.calibrate import command as calibration
    from tailgauge.experiments.calibrate.plan import plan as calibration_plan

    plan, path = calibration_plan(planned, clock, quick=quick), calibration.store(certificate)
    result = calibration.calibrate(plan, path, lambda text: click.echo(f"tailgauge: {text}", err=True))
    click.echo(json.dumps(result) if as_json else "\n".join(calibration.lines(result, path)))
    sys.exit(calibration.exit_code(result))


@click.command(epilog=exit_codes.EXPERIMENT)
@click.option("--target", metavar="URL", help="Look at this endpoint instead of the simulated one.")
@click.option("--quick", is_flag=True, help="Shorter probes: large effects only, in under 3 minutes.")
@click.option(
    "--set", "sets", multiple=True, metavar="TABLE.KEY=VALUE", help="Override one value of the scenario."
)
@click.option(
    "--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Worker processes."
)
@click.option("--dry-run", is_flag=True, help="The rehearsal alone, in virtual time: nothing is sent.")
@click.option("--out", type=click.Path(path_type=Path), default=Path(), help="Folder for runs/ and reports/.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the summary.")
def checkup(
    target: str | None,
    quick: bool,
    sets: tuple[str, ...],
    workers: int,
    dry_run: bool,
    out: Path,
    as_json: bool,
) -> None:
    """Look an endpoint over before a launch, and list what to change, the largest gain first.

    The same as `tailgauge run checkup`, which takes all options of a run.
    """
    from tailgauge.plan.resolve import resolve
    from tailgauge.scenario.model import override

    pairs = [override(text) for text in sets]
    pairs += [("experiment.checkup.quick", True)] if quick else []
    pairs += [("target.url", target)] if target else []
    spelt = {"target.url": "--target"} if target else {}
    told: dict[str, Any] = {"out": out, "workers": workers, "certificate": None}
    settings = resolve("checkup", pairs, spelt=spelt, sends=not dry_run, **told)
    told["sends"] = not dry_run
    sys.exit(answer(["checkup"], [settings], duration=None, dry_run=dry_run, as_json=as_json, **told))


def answer(
    arguments: Sequence[str],
    settings: Sequence[Settings],
    *,
    duration: float | None,
    dry_run: bool,
    as_json: bool,
    out: Path,
    workers: int,
    certificate: Path | None,
    sends: bool,
) -> Exit:
    """Conduct the experiment that the scenario asks for, and tell its answer; returns the exit code."""
    if len(arguments) > 1:
        raise UsageError("an experiment starts runs of its own: give its scenario alone")
    if duration is not None:
        raise UsageError("--duration: an experiment takes experiment.minutes: --set experiment.minutes=10")
    from tailgauge.experiments.command import command
    from tailgauge.experiments.course import Base
    from tailgauge.scenario.model import find, override

    (one,) = settings
    pairs = tuple(override(text) for text in one.overrides)
    base = Base(find(arguments[0]), one.scenario, pairs, out, workers, certificate)
    made = command(base, one.overrides, _progress, dry_run=not sends or dry_run)
    paths = {kind: str(getattr(made, kind)) for kind in ("html", "markdown", "json", "junit")}
    click.echo(json.dumps({**made.data, "report": paths}) if as_json else made.summary)
    return Exit(made.data["exit_code"])


def _progress(text: str) -> None:
    click.echo(f"tailgauge: {text}", err=True)
