"""`tailgauge run`: its options as settings, and the output of each run. No click here: output goes to `echo`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tailgauge.address import LOOPBACK, Address, is_loopback, parse
from tailgauge.cli.options import CONCURRENCY, MAX_CONCURRENCY, OVERRIDES
from tailgauge.cli.sweep import overrides, sweep_of, table_of
from tailgauge.errors import Exit, UsageError
from tailgauge.live import screen

if TYPE_CHECKING:
    from tailgauge.locust_app.launch import Page, WorkerSetup
    from tailgauge.plan.resolve import Settings
    from tailgauge.scenario.model import Scenario

FAIL = "FAIL"  # the outcome of a plan
PORT = 5557  # of the master, as Locust's
Echo = Callable[[str], None]


def settings_of(
    scenario: str, values: Mapping[str, Any], sets: Iterable[str], **shared: Any
) -> Settings:
    """Return the settings of a run: options are overrides of the scenario, and messages name the option.

    `values`: of the options `OVERRIDES` and --slo, by parameter, None where not given; --set goes over them. `shared`:
    other arguments of `resolve`. Raises UsageError or ScenarioError for what cannot be run, or would have no effect.
    """
    from tailgauge.plan.resolve import resolve
    from tailgauge.scenario.model import load_plugins, override
    from tailgauge.scenario.objective import name_of

    if values.get("allow_plugins"):
        load_plugins(scenario)
    is_limit = values.get("rate") is not None  # --concurrency beside a rate is an upper limit
    pairs = []
    spelt = {}
    for row in OVERRIDES:
        value = values.get(row.parameter)
        if value is None:
            continue
        if row.key == CONCURRENCY and is_limit:
            key = MAX_CONCURRENCY
        else:
            key = row.key
            value = row.value(value)
        pairs.append((key, value))
        spelt[key] = row.option
    for text in values.get("slo", ()):
        _check_single(text)
        key = f"slo.{name_of(text)}"
        spelt[key] = f"--slo {text!r}"
        pairs.append((key, text))
    pairs += [override(text) for text in sets]
    settings = resolve(scenario, pairs, spelt=spelt, **shared)
    _check_effect(settings.scenario, spelt)
    return settings


def curve_of(
    scenarios: Sequence[str], values: dict[str, Any], plan: dict[str, Any], *, wanted: bool
) -> list[str]:
    """Return the overrides that make a scenario the load curve of these loads, as of --set.

    Its options are taken out of `values` and `plan`, which would apply them to a single run. `wanted`: by --sweep.
    """
    from tailgauge.protocols.protocol import SIMULATED
    from tailgauge.scenario.packaged import find, read

    if len(scenarios) != 1:
        raise UsageError("a load curve takes one scenario")
    table = read(find(scenarios[0]))
    sweep = sweep_of(values, table, wanted=wanted)
    assert sweep is not None
    queue: list[str] = []
    if sweep.loads:
        values[sweep.by] = None
        if values["concurrency"] is not None:  # beside rates
            queue.append(f"{MAX_CONCURRENCY}={values['concurrency']}")
            values["concurrency"] = None
    # Only a real target keeps state between runs, and needs rests.
    target = values["target"] or table_of(table, "target").get("url", SIMULATED)
    curve = overrides(
        sweep,
        table,
        duration_s=plan.pop("duration_s"),
        requests=plan.pop("requests"),
        rests=target != SIMULATED,
    )
    return [*queue, *curve]


def refuse_of_experiments(
    settings: Sequence[Settings], plan: Mapping[str, Any], *, remote: int, page: Page | None
) -> None:
    """Refuse what an experiment does not take."""
    if settings[1:]:
        raise UsageError("an experiment plans its runs: give one scenario")
    if remote or page:
        option = "--expect-workers" if remote else "--web"
        raise UsageError(
            f"{option}: an experiment starts all of its runs on this machine: omit {option}"
        )
    for key, option in (("duration_s", "--duration"), ("requests", "--requests")):
        if plan.get(key):
            raise UsageError(
                f"{option}: an experiment plans its runs: use --set experiment.minutes=10"
            )


def _check_single(objective: str) -> None:
    """Refuse several objectives in one text of --slo."""
    from tailgauge.scenario.objective import proposals

    parts = re.split(r"\s+and\s+|\s*&&?\s*|\s*;\s*|,\s+", objective.strip(), flags=re.IGNORECASE)
    if len(parts) > 1 and all(re.search("[<>]", part) for part in parts):
        texts = " ".join(f"--slo {proposals(part)[0]!r}" for part in parts)
        raise UsageError(
            f"--slo {objective[:200]!r}: expected one objective per --slo: write {texts}"
        )


def _check_effect(scenario: Scenario, spelt: Mapping[str, str]) -> None:
    """Refuse options that the scenario would leave without effect."""
    from tailgauge.call import MAIN
    from tailgauge.schedule.settings import TRACE

    arrival = scenario.arrival
    has_sizes = arrival.process == TRACE and arrival.trace is not None and arrival.trace.sizes
    for key, option in spelt.items():
        if not key.startswith("traffic.*."):
            continue
        if has_sizes:
            raise UsageError(
                f"{option}: sizes come from the trace: add --set arrival.trace.sizes=false"
            )
        for name, table in scenario.traffic.items():
            if table.prompts.file is not None:
                raise UsageError(
                    f"{option}: sizes come from traffic.{name}.prompts.file: change them there"
                )
    if "target.model" in spelt and (MAIN, scenario.target.model) not in scenario.models():
        raise UsageError(
            "--model: every traffic table names its model: use --set traffic.*.model=NAME"
        )


def worker_counts(workers: int | None, remote: int, bind: str | None) -> tuple[int, int, Address]:
    """Local workers, remote workers, and the master's address; UsageError without any worker."""
    if workers is not None:
        children = workers
    elif remote:
        children = 0
    else:
        children = 1
    if bind is not None and not remote:
        raise UsageError("--bind: only remote workers need it: add --expect-workers N")
    if not children and not remote:
        advice = "--workers 1 on this machine, or --expect-workers N for others"
        raise UsageError(f"--workers 0: no worker sends the traffic: {advice}")
    if bind is not None:
        address = parse(bind, "--bind", port=PORT)
    else:
        address = Address(LOOPBACK, PORT if remote else 0)
    return children, remote, address


def page(web: str | None, *, metrics: bool) -> Page | None:
    """Address of Locust's page and whether it has /metrics; None without a page."""
    if web is None:
        if metrics:
            raise UsageError("--metrics: it needs the web page: add --web PORT")
        return None
    if ":" not in web and not web.isdigit():
        raise UsageError(f"--web {web}: expected a port, such as --web 8089, or HOST:PORT")
    if web.isdigit():
        web = f"{LOOPBACK}:{web}"
    return parse(web, "--web"), metrics


def check_reachable(settings: Iterable[Settings], bind: Address) -> None:
    """The embedded simulated endpoint listens on loopback only; remote workers cannot reach it."""
    from tailgauge.protocols.protocol import SIMULATED

    for run_settings in settings:
        urls = {target.url for target in run_settings.scenario.targets.values()}
        if not is_loopback(bind.host) and SIMULATED in urls:
            advice = (
                "start `tailgauge endpoint --host ADDRESS` and add --target http://ADDRESS:8000"
            )
            problem = f"remote workers cannot reach the simulated endpoint of {run_settings.scenario_file}"
            raise UsageError(f"--bind {bind}: {problem}: {advice}")


def launch(
    settings: list[Settings],
    setup: WorkerSetup,
    page: Page | None,
    echo: Echo,
    print_error: Echo,
    *,
    as_json: bool,
    pages: list[str],
) -> Exit:
    """Run each scenario on the same workers and print its result; return the worst exit code of them all.

    `setup`: the workers. `page`: Locust's web page. `echo` prints results, `print_error` what went wrong. With `as_json`
    each run prints one line, which has its run id and exit code even without a report. The paths of HTML reports are
    added to `pages`.
    """
    from tailgauge.locust_app.launch import Launch, beside_the_loop

    codes = []
    for launched in Launch(settings, setup, page, shows_progress=not as_json).runs():
        report = launched.report
        codes.append(launched.code)
        if launched.failure is not None:
            print_error(f"tailgauge: {launched.failure}")
        if report and report.data:
            pages.append(report.data["report"]["html"])
        if as_json:
            facts: dict[str, Any] = {}
            if report:
                facts |= report.data
                if not report.data:
                    print_error(f"tailgauge: {report.summary}")  # why there is no report
            if launched.run:
                facts["run_id"] = launched.run.run_id
                facts["run_dir"] = str(launched.run.folder.path)
            facts["exit_code"] = int(launched.code)
            # On a thread: a slow reader of our output must not stop the loop of the next run.
            beside_the_loop(echo, json.dumps(facts))
        elif report:
            beside_the_loop(echo, report.summary)
    if len(codes) < len(settings):  # Ctrl-C between two runs
        codes.append(Exit.INTERRUPTED)
    return Exit.worst(codes)


def dry_run(
    settings: Settings, echo: Echo, print_error: Echo, *, as_json: bool, pages: list[str]
) -> Exit:
    """Simulate the run, report it and print the result; return the exit code. First comes what a real run prints before
    its start.

    A plan that exceeds a limit of [guard] fails: before the dry run, if the plan alone shows it, else with its report.
    The path of its HTML report is added to `pages`.
    """
    from tailgauge.dry_run import command
    from tailgauge.live.terminal import plan_lines
    from tailgauge.locust_app.report_process import ReportProcess
    from tailgauge.plan.guard import Spending, excesses_of_plan

    for line in plan_lines(settings, workers=1, dry_run=True):
        print_error(line)
    failures = [excess.text for excess in excesses_of_plan(settings)]
    if failures:
        facts = {
            "dry_run": True,
            "estimate": settings.estimate.facts(),
            "exit_code": int(Exit.FAILED),
        }
        _print_plan_failures(failures, facts, echo, print_error, as_json=as_json)
        return Exit.FAILED
    spending = Spending.of(settings)  # counts what the simulated calls use
    folder = command.dry_run(
        settings.scenario,
        settings.schedule,
        settings.scenario_file,
        settings.overrides,
        settings.out,
        spending=spending,
    )
    report = ReportProcess(folder, settings.out, screen.as_environment()).output()
    if report.data:
        pages.append(report.data["report"]["html"])
    failures = [excess.text for excess in spending.excesses(settings)]
    codes = [report.exit_code]
    if failures:
        codes.append(Exit.FAILED)
    code = Exit.worst(codes)
    facts = {"run_id": folder.path.name, "run_dir": str(folder.path), "exit_code": int(code)}
    if failures:
        _print_plan_failures(failures, {**report.data, **facts}, echo, print_error, as_json=as_json)
    elif as_json:
        echo(json.dumps({**report.data, **facts}))
    if not as_json:
        echo(report.summary)
    return code


def _print_plan_failures(
    failures: list[str], facts: Mapping[str, Any], echo: Echo, print_error: Echo, *, as_json: bool
) -> None:
    """Print that the plan exceeds its limits, as the result."""
    sentence = "; ".join(failures)
    if not as_json:
        echo(f"{FAIL}  {sentence}")
        return
    print_error(f"tailgauge: {sentence}")
    result = {**facts.get("result", {}), "outcome": FAIL, "sentence": sentence}
    echo(json.dumps({**facts, "result": result}))
