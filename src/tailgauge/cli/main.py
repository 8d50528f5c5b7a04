"""The command line: arguments in, one line for each mistake, exit codes out.

Rule: this is the only place that prints results and exits. Heavy imports live inside the subcommands.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from tailgauge import __version__
from tailgauge.address import parse
from tailgauge.cli import exit_codes
from tailgauge.cli import run as run_command
from tailgauge.cli.experiment import answer, calibrate, checkup
from tailgauge.cli.lazy_import import loading
from tailgauge.cli.types import Positive as _Positive
from tailgauge.errors import Exit, TailgaugeError, UsageError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="tailgauge")
def cli() -> None:
    """Load-test streaming LLM endpoints, and know whether to trust the numbers."""


cli.add_command(calibrate)
cli.add_command(checkup)


@cli.command(epilog=exit_codes.RUN)
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, required=True)
@click.option("--target", metavar="URL", help="Send the traffic there instead of the scenario's target.url.")
@click.option(
    "--workers",
    type=click.IntRange(0, 256),
    metavar="N",
    help="Worker processes on this machine (default: 1; with --expect-workers 0).",
)
@click.option(
    "--expect-workers",
    type=click.IntRange(0, 10_000),
    default=0,
    metavar="N",
    help="Wait for N workers that are started elsewhere by `tailgauge worker`; see docs/many-machines.md.",
)
@click.option(
    "--bind",
    metavar="HOST[:PORT]",
    help="Where they find this process (default: 127.0.0.1:5557, which only this machine reaches).",
)
@click.option(
    "--web",
    metavar="[HOST:]PORT",
    help="Serve Locust's web page with the live view there (PORT alone: 127.0.0.1); see docs/live.md.",
)
@click.option("--metrics", is_flag=True, help="Add /metrics to that page, for Prometheus.")
@click.option(
    "--duration", type=_Positive(), metavar="SECONDS", help="Length of the run; scales all its stages."
)
@click.option(
    "--rate", type=_Positive(), metavar="PER_SECOND", help="Mean arrivals a second, over all workers."
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="TABLE.KEY=VALUE",
    help="Override one value of the scenario; may be repeated.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), help="Seed of arrivals, sizes and prompts.")
@click.option(
    "--clock",
    type=click.Choice(("kernel", "user")),
    help="Who stamps what arrives: the kernel (the default, on Linux), or the worker at its read.",
)
@click.option(
    "--max-requests",
    type=click.IntRange(1),
    metavar="N",
    help="Stop, cleanly, before more HTTP calls than this are made.",
)
@click.option(
    "--max-tokens", type=click.IntRange(1), metavar="N", help="The same for tokens, in and out together."
)
@click.option(
    "--max-cost",
    type=_Positive(),
    metavar="AMOUNT",
    help="The same for the cost, in the price file's currency; see docs/prices.md.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Rehearse it on the simulated endpoint in virtual time: seconds instead of minutes, nothing is sent.",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Certificate of this machine to cite (default: the one that `tailgauge calibrate` stored).",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder for runs/ and reports/ (default: here).",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object a run, in one line, instead of the summary; no live display.",
)
def run(
    scenarios: tuple[str, ...],
    target: str | None,
    workers: int | None,
    expect_workers: int,
    bind: str | None,
    web: str | None,
    metrics: bool,
    duration: float | None,
    rate: float | None,
    sets: tuple[str, ...],
    seed: int | None,
    clock: str | None,
    max_requests: int | None,
    max_tokens: int | None,
    max_cost: float | None,
    dry_run: bool,
    certificate: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Run SCENARIO (a file, or the name of a packaged one) and report it.

    Several are run one after the other, by the same workers: each has its run folder and its report.
    """
    options = {
        "target.url": ("--target", target),
        "arrival.rate_per_s": ("--rate", rate),
        "seed": ("--seed", seed),
        "clock": ("--clock", clock),
        "guard.max_requests": ("--max-requests", max_requests),
        "guard.max_tokens": ("--max-tokens", max_tokens),
        "guard.max_cost": ("--max-cost", max_cost),
    }
    if dry_run and ((workers or 1) > 1 or expect_workers):
        raise UsageError("--dry-run: a rehearsal is one worker: leave out --workers and --expect-workers")
    if dry_run and web:
        raise UsageError("--web: a rehearsal takes seconds and has no page: leave it out")
    if dry_run and certificate:
        raise UsageError("--certificate: a rehearsal sends nothing: leave it out")
    children, elsewhere, address = run_command.hands(workers, expect_workers, bind)
    page = run_command.page(web, metrics=metrics)
    told: dict[str, Any] = {
        "out": out,
        "workers": children + elsewhere,
        "sends": not dry_run,
        "certificate": certificate,
    }
    settings = [run_command.settings_of(scenario, options, duration, sets, told) for scenario in scenarios]
    if any(each.scenario.experiment for each in settings):
        if elsewhere or page:
            raise UsageError("--expect-workers, --web: an experiment makes runs of its own: leave them out")
        sys.exit(answer(scenarios, settings, duration=duration, dry_run=dry_run, as_json=as_json, **told))
    if dry_run:
        sys.exit(Exit.worst(run_command.rehearse(each, click.echo, as_json=as_json) for each in settings))
    run_command.check_reachable(settings, address)
    run_command.check_keys(settings)
    with loading():
        from tailgauge.locust_app.launch import Page, WorkerSetup

    hands = WorkerSetup(children, elsewhere, address)
    shown = Page(*page) if page else None
    sys.exit(run_command.launch(settings, hands, shown, click.echo, _complain, as_json=as_json))


def _complain(text: str) -> None:
    click.echo(text, err=True)


@cli.command()
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR...")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path(), help="Folder for reports/ (default: here)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of the summary.")
def report(run_dirs: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Make the report of a run folder, or of the part folders that its workers kept.

    Exits as `tailgauge run` does for the same data.
    """
    with loading():
        from tailgauge_analysis.report.report import make

    try:
        made = make(run_dirs, out)
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error}") from error
    if as_json:
        paths = {kind: str(getattr(made, kind)) for kind in ("html", "markdown", "json", "junit")}
        facts = {
            "run_id": made.run_id,
            "report": paths,
            "exit_code": int(made.exit_code),
            "summary": made.summary,
        }
        kept = ("verdict", "dry_run", "conservation", "certificate")
        click.echo(json.dumps({**facts, **{key: made.data[key] for key in kept}}))
    else:
        click.echo(made.summary)
    sys.exit(made.exit_code)


@cli.command(epilog=exit_codes.COMPARE)
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="A B [A B]...")
@click.option(
    "--allow",
    multiple=True,
    metavar="NAME",
    help="What may differ: schema, hosts, versions, target, seed, or a key of the scenario with all below it, "
    "as traffic.chat.hedge; may be repeated.",
)
@click.option(
    "--threshold",
    type=_Positive(),
    default=5,
    show_default=True,
    metavar="PERCENT",
    help="Smallest change worth naming.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Compare this metric; may be repeated. Default: TTFT and end to end since scheduled, TPOT, joins, turnaround.",
)
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, with every pair.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def compare(
    run_dirs: tuple[Path, ...],
    allow: tuple[str, ...],
    threshold: float,
    metrics: tuple[str, ...],
    as_markdown: bool,
    as_json: bool,
) -> None:
    """Say whether arm B is better or worse than arm A, from runs in pairs.

    The folders come as A1 B1 A2 B2 and so on: twenty pairs, run in turn, a coin saying which of a pair comes
    first; see docs/reports.md.
    """
    with loading():
        from tailgauge_analysis.compare import compare as comparison
        from tailgauge_analysis.compare import text as words

    if as_json and as_markdown:
        raise UsageError("--json and --markdown: choose one")
    made = comparison.compare(run_dirs, allow, threshold / 100, metrics)
    if as_json:
        click.echo(json.dumps(made.data, allow_nan=False))
    else:
        click.echo(words.markdown(made.data) if as_markdown else words.terminal(made.data))
    sys.exit(made.exit_code)


@cli.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 takes a free one."
)
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the endpoint, a key of a scenario's table [simulated], as limits.rpm=60; may be repeated.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Which model server to imitate, as haiku or sonnet; see docs/simulator.md.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), default=1, show_default=True, help="Seed of its delays."
)
@click.option(
    "--embed-clock",
    is_flag=True,
    help="Begin each chunk's text with the time it was sent at (19 digits, ns).",
)
@click.option(
    "--api-key-env", metavar="NAME", help="Refuse requests without the key in this environment variable."
)
@click.option(
    "--certfile", type=click.Path(dir_okay=False), help="Serve TLS with this certificate chain (PEM)."
)
@click.option("--keyfile", type=click.Path(dir_okay=False), help="Its private key (PEM).")
@click.option("--lifeline", is_flag=True, help="End when standard input does.")
def endpoint(
    host: str, port: int, profile: str | None, sets: tuple[str, ...], seed: int, **options: Any
) -> None:
    """Serve the simulated endpoint: Anthropic Messages and OpenAI chat completions over HTTP."""
    with loading():
        from tailgauge.cli.endpoint import serve_command

    serve_command(host, port, profile, sets, seed, options, lambda url: click.echo(f"listening on {url}"))


@cli.command(epilog=exit_codes.WORKER)
@click.option("--master", required=True, metavar="HOST:PORT", help="Where the master of the run listens.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Folder in which runs/ keeps the rows until the master has them (default: here).",
)
@click.option("--lifeline", is_flag=True, help="End when standard input does.")
def worker(master: str, out: Path, lifeline: bool) -> None:
    """Send traffic for the master at HOST:PORT until it lets go.

    Both need the same token in TAILGAUGE_TOKEN; see docs/many-machines.md.
    """
    address, folder = parse(master, "--master"), run_command.folder_for(out)
    gc.disable()  # a quarter of the time to load Locust and an SDK; Health gives it back after a run
    from tailgauge.locust_app.launch import work

    sys.exit(work(address, folder, lifeline=lifeline))


def main() -> None:
    """Entry point: every user's mistake is one line on standard error."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more would wait for small work at full speed
    try:
        cli.main(prog_name="tailgauge", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except click.Abort:
        sys.exit(Exit.INTERRUPTED)
    except TailgaugeError as error:
        click.echo(f"tailgauge: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    finally:
        gc.freeze()  # else the interpreter's end searches all that stands: half a second after an SDK
