"""The commands: arguments in, results and one line per mistake out.

Only this package prints results and exits. Heavy imports are inside the commands.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from tailgauge import __version__
from tailgauge.address import Address, parse
from tailgauge.cli import options
from tailgauge.cli import run as run_command
from tailgauge.cli.baseline import baseline as baseline_command
from tailgauge.cli.browser import open_pages
from tailgauge.cli.docs import docs
from tailgauge.cli.mistakes import text_of
from tailgauge.cli.options import SEED, Duration, Positive, ScenarioName, Whole
from tailgauge.cli.other_tools import CommandWithToolFlags
from tailgauge.cli.packaged import scenario
from tailgauge.cli.run import settings_of
from tailgauge.cli.runs import runs
from tailgauge.cli.sweep import is_list
from tailgauge.errors import Exit, TailgaugeError, UsageError
from tailgauge.live import screen
from tailgauge.redaction import known
from tailgauge.rows.disk import writable
from tailgauge.rows.object_store import is_remote, renamed
from tailgauge.rows.run_folder import new_run_id
from tailgauge.rows.text_file import MISSING, refusal
from tailgauge.sanitize import plain

if TYPE_CHECKING:
    from tailgauge.locust_app.launch import WorkerSetup
    from tailgauge.plan.resolve import Settings
    from tailgauge.protocols.protocol import TargetSettings
    from tailgauge.scenario.simulated import Simulated
    from tailgauge.simulator.http.requests import ServerOptions
    from tailgauge_analysis.text.section import Report

NO_SCENARIO = "name a scenario, such as `tailgauge run quickstart`; see `tailgauge scenario list`"
PLANNED = "Begin at this rate (exit code 1 if the rate is not VALID)."
CALIBRATE = "calibrate"  # the packaged scenario
SIMULATED = "simulated"  # the table of `tailgauge endpoint`
# Options of `tailgauge endpoint` by their parameters.
NOT_REPLAYED = {
    "sets": "--set",
    "profile": "--profile",
    "seed": "--seed",
    "api_key_env": "--api-key-env",
}
TARGET_VARIABLE = "TAILGAUGE_TARGET"  # one may expect that it names the target
LOW_PRIORITY = 10  # how nice a report that loads pandas is to open requests


@contextmanager
def importing_without_gc() -> Iterator[None]:
    """Import inside, without garbage collection. Objects that exist at the end are never scanned; later ones are, as usual.

    Imported objects are never garbage, but Python scans them again and again: a fifth of the time to load Locust, an SDK
    or pandas, and as much again at exit.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


FIRST_STEPS = """\
tailgauge run quickstart        make a first report in 40 seconds; all traffic
                                stays on this machine
tailgauge run quickstart --target http://127.0.0.1:8000 --protocol openai
                                run the same traffic against your endpoint
tailgauge scenario list         list other kinds of traffic
tailgauge docs                  list the documentation; `tailgauge docs WORD`
                                searches it
tailgauge -h                    list all commands
"""


@click.group(
    cls=options.Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, prog_name="tailgauge")
@click.pass_context
def cli(context: click.Context) -> None:
    """Load-test streaming LLM endpoints and verify the measurement."""
    if context.invoked_subcommand is None:
        screen.show(FIRST_STEPS, nl=False)


@cli.command(cls=CommandWithToolFlags, epilog=options.RUN)
@click.argument("scenarios", metavar="SCENARIO...", nargs=-1, type=ScenarioName())
@options.scenario_options(options.TRAFFIC)
@click.option(
    "--duration", type=Duration(), help="Scale the run to this length (such as 60s or 5m)."
)
@click.option(
    "--requests", type=Whole(), help="Send about N requests (exactly N with --concurrency)."
)
@click.option("--sweep", is_flag=True, help="Measure the load curve; Tailgauge chooses the loads.")
@options.overrides()
@click.option(
    "--workers",
    type=Whole(0, 256),
    help="Start N workers on this machine (default: 1; 0 with --expect-workers).",
)
@click.option(
    "--expect-workers",
    type=Whole(0, 10_000),
    default=0,
    help="Wait for N workers on other machines (default: 0).",
)
@click.option(
    "--bind",
    metavar="HOST[:PORT]",
    help="Listen at this address for workers on other machines (default: 127.0.0.1:5557).",
)
@click.option(
    "--web", metavar="[HOST:]PORT", help="Serve Locust's web page, which shows the run live."
)
@click.option(
    "--metrics", is_flag=True, help="Serve metrics for Prometheus at /metrics; needs --web."
)
@options.objectives()
@options.scenario_options(options.MORE)
@options.plugins()
@click.option(
    "--allow-plugins",
    is_flag=True,
    help="Load all plugins listed in the scenario (default: refuse the scenario unless --plugin loads each of them).",
)
@click.option("--dry-run", is_flag=True, help="Simulate the run in seconds; send nothing.")
@options.out("Write runs/ and reports/ to this folder or s3:// URL", remote=True)
@options.opens()
@options.as_json("one JSON object per run")
def run(
    scenarios: tuple[str, ...],
    *,
    duration: float | None,
    requests: int | None,
    sweep: bool,
    workers: int | None,
    expect_workers: int,
    bind: str | None,
    web: str | None,
    metrics: bool,
    dry_run: bool,
    out: Path,
    opens: bool,
    as_json: bool,
    sets: tuple[str, ...],
    **values: Any,
) -> None:
    """Run a scenario and report it.

    SCENARIO is a file or the name of a packaged scenario. Several scenarios run one after the other, on the same workers.
    Options override values of the scenario; without an option, the value of the scenario is used.

    A list of loads, such as --rate 2,4,8 or --concurrency 1,2,4, measures a load curve: latency and throughput at each
    load. With --sweep, Tailgauge chooses the loads. In a load curve, --duration and --requests apply to each load.
    """
    if not scenarios:
        raise UsageError(NO_SCENARIO)
    if dry_run:
        _check_dry_run(workers or 1, expect_workers, web, values)
    children, remote, address = run_command.worker_counts(workers, expect_workers, bind)
    page = run_command.page(web, metrics=metrics)
    all_workers = children + remote
    plan = {"duration_s": duration, "requests": requests, "out": out, "sends": not dry_run}
    # A list of loads, or --sweep, is the experiment `curve`: its settings become overrides, which those of --set go over.
    if sweep or is_list(values["rate"]) or is_list(values["concurrency"]):
        curve = run_command.curve_of(scenarios, values, plan, wanted=sweep)
        sets = (*curve, *sets)
    settings = []
    for name in scenarios:
        settings.append(run_command.settings_of(name, values, sets, workers=all_workers, **plan))
    _note_percentiles(values["slo"])
    _note_environment(values["target"])
    # An experiment plans runs of its own, and refuses options of a single run.
    if any(run_settings.scenario.experiment for run_settings in settings):
        run_command.refuse_of_experiments(settings, plan, remote=remote, page=page)
        code = _answer(
            scenarios[0],
            settings[0],
            workers=all_workers,
            dry_run=dry_run,
            as_json=as_json,
            opens=opens,
        )
        sys.exit(code)
    pages: list[str] = []  # of the reports
    if dry_run:
        codes = []
        for run_settings in settings:
            code = run_command.dry_run(
                run_settings, _print, _print_error, as_json=as_json, pages=pages
            )
            codes.append(code)
        code = Exit.worst(codes)
    else:
        run_command.check_reachable(settings, address)
        setup = _worker_setup(settings, children, remote, address)
        code = run_command.launch(
            settings, setup, page, _print, _print_error, as_json=as_json, pages=pages
        )
    if opens:
        open_pages(pages)
    sys.exit(code)


def _check_dry_run(
    workers: int, expect_workers: int, web: str | None, values: Mapping[str, Any]
) -> None:
    """Refuse what a dry run does not have."""
    if workers > 1 or expect_workers:
        raise UsageError("--dry-run: a dry run has one worker: omit --workers and --expect-workers")
    if web:
        raise UsageError("--web: a dry run has no web page: omit it")
    if values["keep_answers"]:
        raise UsageError("--keep-answers: a dry run receives no answers: omit it")


def _worker_setup(
    settings: Sequence[Settings], children: int, remote: int, address: Address
) -> WorkerSetup:
    """Load Locust, and the SDKs for local workers, which are forked from this process."""
    with importing_without_gc():
        platform.platform()  # for the SDKs' headers; it asks another process, which would start gevent's loop
        from tailgauge.locust_app.launch import WorkerSetup
        from tailgauge.protocols import target

        if children:
            targets: list[TargetSettings] = []
            for run_settings in settings:
                targets += run_settings.scenario.targets.values()
            target.load_sdks(targets)
    return WorkerSetup(children, remote, address)


def _load_until_input(module: str) -> bool:
    """Import a module with low priority until a line of input comes; whether one came."""

    def load() -> None:
        os.nice(LOW_PRIORITY)  # on Linux of this thread alone
        importlib.import_module(module)

    loading = threading.Thread(target=load)
    loading.start()
    line = sys.stdin.readline()
    loading.join()
    return bool(line)


def _note_environment(target: str | None) -> None:
    """Print that a variable does not name the target."""
    if target is None and os.environ.get(TARGET_VARIABLE):
        _print_error(
            f"tailgauge: the environment variable {TARGET_VARIABLE} is not used: write --target URL"
        )


def _note_percentiles(objectives: Sequence[str]) -> None:
    """Print which objectives of the command line are taken as p99."""
    from tailgauge.scenario.objective import lacks_percentile

    for text in objectives:
        if lacks_percentile(text):
            _print_error(f"tailgauge: --slo {text!r}: names no percentile: p99 is used")


def _print(text: str) -> None:
    screen.show(renamed(text), colours=screen.has_colours())


def _print_error(text: str) -> None:
    screen.show(renamed(text), err=True)


@cli.command(cls=CommandWithToolFlags, epilog=options.CHECKUP)
@click.argument("scenario", type=options.ScenarioName(), default="checkup")
@options.scenario_options(options.OF_CHECKUP)
@options.objectives()
@options.overrides()
@options.plugins()
@click.option("--quick", is_flag=True, help="Find large effects only, within 3 minutes.")
@click.option(
    "--workers",
    type=Whole(1, 256),
    default=1,
    show_default=True,
    help="Start N workers on this machine.",
)
@click.option("--dry-run", is_flag=True, help="Simulate the checkup in seconds; send nothing.")
@options.out("Write runs/ and reports/ to this folder or s3:// URL", remote=True)
@options.opens()
@options.as_json()
def checkup(
    scenario: str,
    *,
    quick: bool,
    workers: int,
    dry_run: bool,
    out: Path,
    opens: bool,
    as_json: bool,
    sets: tuple[str, ...],
    **values: Any,
) -> None:
    """Find problems of an endpoint before launch.

    Send the traffic of SCENARIO, and several probes that change this traffic. SCENARIO is a file or the name of a packaged
    scenario (default: checkup). If the scenario lists plugins, load each with --plugin.

    `tailgauge run` on a scenario with `experiment.kind = "checkup"` does the same and takes more options.
    """
    from tailgauge.scenario.packaged import find, read

    table = read(find(scenario)).get("experiment")
    if not isinstance(table, dict) or table.get("kind") != "checkup":
        sets = ('experiment={kind = "checkup", minutes = 10}', *sets)
    if quick:
        sets = (*sets, "experiment.checkup.quick=true")
    settings = settings_of(scenario, values, sets, out=out, workers=workers, sends=not dry_run)
    _note_percentiles(values["slo"])
    _note_environment(values["target"])
    sys.exit(
        _answer(scenario, settings, workers=workers, dry_run=dry_run, as_json=as_json, opens=opens)
    )


def _answer(
    argument: str, settings: Settings, *, workers: int, dry_run: bool, as_json: bool, opens: bool
) -> Exit:
    """Conduct the experiment of the scenario and print its answer; returns the exit code."""
    from tailgauge.experiments.command import command
    from tailgauge.experiments.course import Base
    from tailgauge.scenario.model import override
    from tailgauge.scenario.packaged import find

    pairs = tuple(override(text) for text in settings.overrides)
    base = Base(find(argument), settings.scenario, pairs, settings.out, workers)
    result = command(base, settings.overrides, _print_progress, dry_run=dry_run)
    text = result.summary
    if as_json:
        text = json.dumps({**result.report.data, "report": result.paths})
    screen.show(renamed(text), colours=screen.has_colours())
    if opens:
        open_pages([str(result.html)])
    return Exit(result.report.exit_code)


def _print_progress(text: str) -> None:
    line = f"tailgauge: {text}"
    if sys.stderr.isatty():
        width = screen.columns()
        line = textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)
    screen.show(line, err=True)


@cli.command(epilog=options.COMPARE)
@click.argument("run_dirs", nargs=-1, required=True, type=options.RUN_DIR, metavar="A B [A B]...")
@click.option("--baseline", metavar="DIR", help="Compare one run with the runs of this baseline.")
@options.allow()
@click.option(
    "--threshold",
    type=Positive(),
    default=5,
    show_default=True,
    metavar="PERCENT",
    help="Call no change below this better or worse.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Compare this metric only (repeatable; default: all).",
)
@click.option(
    "--markdown", "as_markdown", is_flag=True, help="Print Markdown, with the values of every pair."
)
@options.out("Write reports/ to this folder")
@options.plugins()
@options.opens()
@options.as_json()
def compare(
    run_dirs: tuple[Path, ...],
    *,
    baseline: str | None,
    allow: tuple[str, ...],
    threshold: float,
    metrics: tuple[str, ...],
    as_markdown: bool,
    out: Path,
    opens: bool,
    as_json: bool,
) -> None:
    """Compare two sets of runs, or two load curves.

    A and B are two variants, such as two settings or two builds. Give about 20 pairs of run folders: A1 B1 A2 B2 ...
    Make the two runs of a pair directly one after the other, in random order; see `tailgauge docs compare`.

    Give a run folder as its path, the start of its name, or one word of its name; only one folder may match.
    To compare two load curves, give the report folder of each curve, by its path or its name.

    With --baseline, give one run to compare with the runs of the baseline. The baseline must have at least five runs; see
    `tailgauge docs baselines`.

    A report is written for load curves, with --baseline, and with --open.

    For --allow, NAME is schema, hosts, versions, target, seed, or a key or table of the scenario.
    """
    with importing_without_gc():
        from tailgauge_analysis.comparing import pairs
        from tailgauge_analysis.comparing.curve import find
        from tailgauge_analysis.reading.budget import limited

    if as_json and as_markdown:
        raise UsageError("--json and --markdown: choose one")
    pairs.check_metrics(metrics)
    run_dirs = tuple(options.named_run(run_dir, out, of_reports=True) for run_dir in run_dirs)
    curves = [find(run_dir, out) for run_dir in run_dirs]  # files of load curves; None of a run
    if baseline is not None:
        if run_dirs[1:] or metrics:
            raise UsageError(
                "--baseline: give one run and no --metric: the first objective of the run decides"
            )
        result = _compare_with_baseline(baseline, run_dirs[0], threshold / 100, allow)
    elif any(curves):
        if allow or metrics:
            raise UsageError("--allow and --metric: they do not apply to load curves: omit them")
        result = _compare_curves(run_dirs, curves, threshold / 100)
    elif len(run_dirs) == 1:
        raise UsageError(pairs.ALONE)
    else:
        with limited(run_dirs):
            result = pairs.report(pairs.compare(run_dirs, allow, threshold / 100, metrics))
        result = replace(result, run_id=new_run_id("compare"))
    # A comparison of runs is written only to be opened; the others always are.
    page = None
    if baseline is not None or any(curves) or opens:
        from tailgauge_analysis.report.report import write_report

        page = write_report(result, out, screen.columns(), colours=False).html
    _show_comparison(result, page, as_json=as_json, as_markdown=as_markdown)
    if opens:
        open_pages([str(page)])
    sys.exit(result.exit_code)


def _show_comparison(
    result: Report, page: Path | None, *, as_json: bool, as_markdown: bool
) -> None:
    """Print a comparison. `page`: its HTML page, where there is one."""
    from tailgauge_analysis.report.markdown import markdown
    from tailgauge_analysis.report.terminal import terminal

    if as_json:
        data = dict(result.data)
        if page is not None:
            data["report"] = {"html": str(page)}
        screen.show(json.dumps(data, allow_nan=False))
    elif as_markdown:
        screen.show(markdown(result))
    else:
        _print(terminal(result, page, screen.columns(), colours=screen.has_colours()))


def _compare_with_baseline(
    baseline: str, run_dir: Path, threshold: float, allow: Sequence[str]
) -> Report:
    """Judge a run by the runs of a baseline."""
    from tailgauge_analysis.comparing import history
    from tailgauge_analysis.reading.budget import limited

    if not is_remote(baseline) and refusal(Path(baseline)) == MISSING:
        text = "no such folder: the baseline has no runs; `tailgauge baseline add` makes it"
        _print_error(f"tailgauge: --baseline {baseline}: {text}")
    with limited([run_dir]):
        return history.compare(baseline, run_dir, threshold, allow)


cli.add_command(baseline_command)


def _compare_curves(
    run_dirs: tuple[Path, ...], files: list[Path | None], threshold: float
) -> Report:
    """Compare two load curves; `files`: the report of each folder, None where it is no load curve."""
    from tailgauge_analysis.comparing.curves import compare

    curves = []
    for run_dir, file in zip(run_dirs, files, strict=True):
        if file is None:
            raise UsageError(
                f"compare: expected two load curves, A and B: {run_dir} is not a load curve"
            )
        curves.append(file)
    if len(curves) != 2:
        raise UsageError(f"compare: expected two load curves, A and B: {len(curves)} given")
    return compare(curves, threshold, new_run_id("compare"))


@cli.command(epilog=options.REPORT)
@click.argument("run_dirs", nargs=-1, required=True, type=options.RUN_DIR, metavar="RUN_DIR...")
@options.out("Write reports/ to this folder or s3:// URL", remote=True)
@options.plugins()
@options.opens()
@options.as_json()
@click.option(
    "--as",
    "tool",
    type=click.Choice(options.TOOLS),
    help="Add the metrics as this tool defines them.",
)
@click.option("--wait", is_flag=True, hidden=True, help="Read RUN_DIR after a line of input.")
@click.option(
    "--looks", is_flag=True, hidden=True, help="Answer each line of input with a look at a run."
)
def report(
    run_dirs: tuple[Path, ...],
    out: Path,
    *,
    opens: bool,
    as_json: bool,
    tool: str | None,
    wait: bool,
    looks: bool,
) -> None:
    """Make the report of a run folder.

    RUN_DIR is the path of a run folder, the start of its name, or one word of its name; only one folder may match. If
    workers on other machines kept part of the run's data, give the run folders of the master and of these workers. The command
    exits with the code of the run.
    """
    run_dirs = tuple(options.named_run(run_dir, out) for run_dir in run_dirs)
    with importing_without_gc():
        # A process of a run answers a line for each line, until its input ends.
        if looks:
            os.nice(LOW_PRIORITY)
            from tailgauge_analysis.objectives.live import look_answers

            for line in look_answers(run_dirs[0], sys.stdin):
                sys.stdout.write(f"{line}\n")
                sys.stdout.flush()
            return
        # It is started before the run has ended, and loads pandas meanwhile.
        if wait and not _load_until_input("tailgauge_analysis.report.report"):
            sys.exit(Exit.INTERRUPTED)  # the master is gone
        from tailgauge_analysis.reading.budget import limited
        from tailgauge_analysis.report.report import make

    try:
        with limited(run_dirs):
            result = make(run_dirs, out, screen.columns(), colours=screen.has_colours(), tool=tool)
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error}") from error
    if as_json:
        facts = {**result.facts(), "report": result.paths, "summary": result.summary}
        _print(json.dumps(facts))
    else:
        _print(result.summary)
    if opens:
        open_pages([str(result.html)])
    sys.exit(result.exit_code)


@cli.command(epilog=options.ENDPOINT)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to listen on."
)
@click.option(
    "--port",
    type=Whole(0, 65535),
    default=8000,
    show_default=True,
    help="Port to listen on; 0 for a free port.",
)
@options.overrides(
    "Set a key of the scenario table [simulated] (repeatable; example: limits.rpm=60).", "KEY=VALUE"
)
@click.option("--profile", metavar="NAME", help="Simulate the timing of this model, such as haiku.")
@click.option("--seed", type=SEED, default=1, show_default=True, help="Random seed of the delays.")
@click.option(
    "--replay",
    type=options.FILE,
    metavar="FILE",
    help="Serve recorded answers from FILE, written by `tailgauge run --keep-answers`.",
)
@click.option(
    "--api-key-env",
    metavar="NAME",
    help="Require the API key stored in this environment variable.",
)
@click.option(
    "--certfile", type=options.PEM, metavar="PEM", help="Serve TLS with this certificate chain."
)
@click.option("--keyfile", type=options.PEM, metavar="PEM", help="Private key of --certfile.")
@click.option("--lifeline", is_flag=True, hidden=True, help="Exit on end of input.")
def endpoint(
    *,
    host: str,
    port: int,
    profile: str | None,
    sets: tuple[str, ...],
    seed: int,
    replay: Path | None,
    lifeline: bool,
    **values: Any,
) -> None:
    """Start a simulated LLM endpoint.

    Serve Anthropic Messages and OpenAI chat completions over HTTP; see `tailgauge docs simulator`. With --replay, serve
    recorded answers instead; see `tailgauge docs keep-answers`.
    """
    if replay is not None:
        _check_replay()
        _replay(replay, values, host, port, lifeline=lifeline)
        return
    with importing_without_gc():
        from tailgauge.simulator.http.routes import application
        from tailgauge.simulator.http.server import serve

    def on_listening(url: str) -> None:
        screen.show(f"listening on {url}")

    table, server = simulated(sets, profile, values)
    app = application(table, seed, server)
    serve(app, server, host, port, on_listening=on_listening, lifeline=lifeline)


def _check_replay() -> None:
    """Refuse options that recorded answers leave without effect."""
    context = click.get_current_context()
    for parameter, option in NOT_REPLAYED.items():
        if context.get_parameter_source(parameter) is not ParameterSource.DEFAULT:
            raise UsageError(f"--replay: recorded answers are served as they are: omit {option}")


def _replay(path: Path, values: Mapping[str, Any], host: str, port: int, *, lifeline: bool) -> None:
    """Serve the answers of a file. `values`: options of the command by their parameters."""
    from tailgauge.rows.answer_file import read_answers

    answers = read_answers(path)
    counts = Counter(str(answer.facts.get("ended", "unknown"))[:40] for answer in answers)
    with importing_without_gc():
        from tailgauge.simulator.http.replay import replay
        from tailgauge.simulator.http.server import serve

    def on_listening(url: str) -> None:
        screen.show(f"listening on {url}")
        outcomes = ", ".join(f"{count:,} {ended}" for ended, count in counts.items())
        _print_progress(f"serving recorded answers one after the other: {plain(outcomes)}")

    options = server_options(values)
    app = replay(answers, options)
    serve(app, options, host, port, on_listening=on_listening, lifeline=lifeline)


def simulated(
    sets: Sequence[str], profile: str | None, options: Mapping[str, Any]
) -> tuple[Simulated, ServerOptions]:
    """Return the table `[simulated]` from `key=value` texts, and the server's options from those of the command."""
    from tailgauge.scenario import model as scenarios
    from tailgauge.simulator.engine.config import engine_of

    pairs = [(_key(key), value) for key, value in map(scenarios.override, sets)]
    if profile is not None:
        pairs.append((f"{SIMULATED}.profile", profile))
    tree: dict[str, Any] = {"name": "endpoint"}
    for key, value in pairs:
        scenarios.put(tree, key, value)
    spelt = {key: f"--set {key}" for key, _ in pairs}
    if profile is not None:
        spelt[f"{SIMULATED}.profile"] = "--profile"
    table = scenarios.parse(tree, "--set", spelt).simulated
    engine_of(table)  # refuse an impossible one before anything starts
    return table, server_options(options)


def server_options(options: Mapping[str, Any]) -> ServerOptions:
    """Return the server's options from those of the command."""
    from tailgauge.simulator.http.requests import ServerOptions

    variable = options["api_key_env"]
    if variable and not os.environ.get(variable):
        raise UsageError(f"--api-key-env {variable}: that environment variable is not set")
    if bool(options["certfile"]) != bool(options["keyfile"]):
        raise UsageError("--certfile and --keyfile: give both or neither")
    for option in ("certfile", "keyfile"):
        path = options[option]
        reason = refusal(path) if path else ""
        if reason:
            raise UsageError(f"--{option} {path}: {reason}")
    api_key = os.environ[variable] if variable else None
    return ServerOptions(api_key=api_key, certfile=options["certfile"], keyfile=options["keyfile"])


def _key(key: str) -> str:
    """Return the key with its table's name, which may be omitted."""
    if key.partition(".")[0] == SIMULATED:
        return key
    return f"{SIMULATED}.{key}"


@cli.command(epilog=options.WORKER)
@click.option(
    "--master",
    required=True,
    metavar="HOST:PORT",
    help="Address of the master (see --bind of `tailgauge run`).",
)
@options.plugins()
@options.out("Write rows to this folder until the master has them")
@click.option("--lifeline", is_flag=True, hidden=True, help="Exit on end of input.")
def worker(master: str, out: Path, lifeline: bool) -> None:
    """Send traffic for a master on another machine.

    Start the master with `tailgauge run --expect-workers N`. Set the environment variable TAILGAUGE_TOKEN to the same value for
    the master and each worker; see `tailgauge docs many-machines`.
    """
    address = parse(master, "--master")
    folder = writable(out, f"--out {out}:").resolve()
    gc.disable()  # saves a quarter of the time to load Locust and an SDK; Health enables it again after a run
    from tailgauge.locust_app.launch import work

    sys.exit(work(address, folder, lifeline=lifeline))


@click.command(epilog=options.CALIBRATE)
@click.option("--quick", is_flag=True, help="Finish in about a minute instead of five.")
@click.option("--planned", type=Positive(), metavar="PER_SECOND", help=PLANNED)
@options.scenario_options(options.CALIBRATED)
@click.option(
    "--workers",
    type=Whole(1, 256),
    default=1,
    show_default=True,
    help="Start N workers on this machine.",
)
@options.out("Write runs/ and reports/ to this folder or s3:// URL", remote=True)
@options.opens()
@options.as_json()
def calibrate(
    *,
    quick: bool,
    planned: float | None,
    workers: int,
    out: Path,
    opens: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Find the largest load that this machine can measure.

    Double the load on the simulated endpoint until the measurement is not VALID. Then narrow the gap between the largest
    load that is VALID and the smallest load that is not. Run nothing else on this machine at the same time; see `tailgauge docs calibration`.
    """
    sets: list[str] = []
    if quick:
        sets += ["experiment.minutes=1", "experiment.calibrate.step_s=5"]
    if planned is not None:
        sets.append(f"experiment.calibrate.planned={planned}")
    settings = settings_of(CALIBRATE, values, sets, out=out, workers=workers)
    sys.exit(
        _answer(CALIBRATE, settings, workers=workers, dry_run=False, as_json=as_json, opens=opens)
    )


for command in (scenario, runs, calibrate, docs):
    cli.add_command(command)


def _give_up_output(error: Exception) -> str:
    """Return why the output could not be printed, and send what is left of it to nowhere; empty for errors of other
    kinds.
    """
    trace = error.__traceback__
    if not isinstance(error, OSError) or trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    if trace.tb_frame.f_code is not click.echo.__code__:
        return ""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python's exit fails too
    return error.strerror or str(error)


def main() -> None:
    """Run the command line and exit: an error is one line on standard error, and decides on the exit code.

    Without a traceback: of a fault of ours `failure` writes it into a file, which the line names.
    """
    # One thread: more of them spin at full speed between the small tasks of an analysis.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Workers are forked, which takes a process without threads: Arrow must start none.
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
    try:
        cli.main(prog_name="tailgauge", standalone_mode=False)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        # Without secrets: a key may have been typed into the command line.
        screen.show(f"tailgauge: {known()(text_of(error))}", err=True)
        sys.exit(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(Exit.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - a refusal by us, or a fault of ours or of a plugin
        from tailgauge.plugins.plugin import failure

        reason = _give_up_output(error)
        if reason:
            failed: TailgaugeError = UsageError(f"the output cannot be written: {reason}")
        else:
            failed = failure(error)
        screen.show(f"tailgauge: {failed}", err=True)
        sys.exit(failed.exit_code)
    finally:
        gc.freeze()  # else the interpreter's exit scans all objects: half a second once an SDK is loaded
