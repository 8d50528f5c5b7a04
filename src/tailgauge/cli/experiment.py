"""The commands that plan runs: calibrate, checkup, and `run` on a scenario with a table [experiment].

Heavy imports are inside the functions.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tailgauge.cli import options
from tailgauge.cli.options import Positive, Whole
from tailgauge.cli.run import settings_of
from tailgauge.errors import Exit
from tailgauge.live import screen
from tailgauge.rows.object_store import renamed

if TYPE_CHECKING:
    from tailgauge.plan.resolve import Settings


PLANNED = "Planned rate per worker: test 50, 100 and 150%."
STORE = "Store the certificate here (default: the state folder)."


@click.command(epilog=options.CALIBRATE)
@click.option("--quick", is_flag=True, help="Finish within a minute instead of five.")
@click.option("--planned", type=Positive(), metavar="CHUNKS_PER_S", help=PLANNED)
@click.option("--clock", type=options.CLOCK, default="kernel", show_default=True, help="Timestamp source.")
@click.option("--certificate", type=options.FILE, metavar="FILE", help=STORE)
@options.as_json("the certificate as JSON")
def calibrate(
    quick: bool, planned: float | None, clock: str, certificate: Path | None, as_json: bool
) -> None:
    """Measure this machine's own error.

    A worker receives chunks at rising rates, with and without TLS, from a local endpoint that logs its send times.
    The result is a certificate that later runs cite, stored as tailgauge/certificate.json in $XDG_STATE_HOME or
    ~/.local/state; see `tailgauge docs calibration`. Run nothing else meanwhile.
    """
    from tailgauge.experiments.calibrate import command as calibration
    from tailgauge.experiments.calibrate.plan import plan as calibration_plan

    plan, path = calibration_plan(planned, clock, quick=quick), calibration.store(certificate)
    result = calibration.calibrate(plan, path, _print_progress)
    made = calibration.report(result, path)
    if as_json:
        click.echo(json.dumps(result))
    else:
        from tailgauge_analysis.report.terminal import terminal

        text = terminal(made, None, screen.columns(), colours=screen.has_colours())
        click.echo(renamed(text), color=screen.has_colours())
    sys.exit(made.exit_code)


@click.command(epilog=options.CHECKUP)
@click.argument("scenario", type=options.ScenarioName(), default="checkup")
@options.scenario_options(options.TRAFFIC[:3])
@options.overrides()
@options.plugins()
@click.option("--quick", is_flag=True, help="Find large effects only, within 3 minutes.")
@click.option(
    "--workers", type=Whole(1, 256), default=1, show_default=True, help="Worker processes on this machine."
)
@click.option("--dry-run", is_flag=True, help="Simulate the checkup in seconds; send nothing.")
@options.out("runs/ and reports/", remote=True)
@options.as_json()
def checkup(
    scenario: str, quick: bool, workers: int, dry_run: bool, out: Path, as_json: bool, sets: tuple[str, ...], **given: Any
) -> None:  # fmt: skip
    """Find problems of an endpoint before launch.

    The traffic is that of the scenario, by default of the packaged example. `tailgauge run` on a scenario with
    `experiment.kind = "checkup"` is the same with all options of a run.
    """
    from tailgauge.scenario.packaged import find, read

    table = read(find(scenario)).get("experiment")
    if not isinstance(table, dict) or table.get("kind") != "checkup":
        sets = ('experiment={kind = "checkup", minutes = 10}', *sets)
    if quick:
        sets = (*sets, "experiment.checkup.quick=true")
    settings = settings_of(scenario, given, sets, out=out, workers=workers, sends=not dry_run)
    sys.exit(answer(scenario, settings, workers=workers, certificate=None, dry_run=dry_run, as_json=as_json))


def answer(
    argument: str, settings: Settings, *, workers: int, certificate: Path | None, dry_run: bool, as_json: bool
) -> Exit:
    """Conduct the experiment of the scenario and print its answer; returns the exit code."""
    from tailgauge.experiments.command import command
    from tailgauge.experiments.course import Base
    from tailgauge.scenario.model import override
    from tailgauge.scenario.packaged import find

    pairs = tuple(override(text) for text in settings.overrides)
    base = Base(find(argument), settings.scenario, pairs, settings.out, workers, certificate)
    made = command(base, settings.overrides, _print_progress, dry_run=dry_run)
    paths = {kind: str(getattr(made, kind)) for kind in ("html", "markdown", "json", "junit")}
    text = json.dumps({**made.report.data, "report": paths}) if as_json else made.summary
    click.echo(renamed(text), color=screen.has_colours())
    return Exit(made.report.exit_code)


def _print_progress(text: str) -> None:
    click.echo(f"tailgauge: {text}", err=True)
