"""`tailgauge run`: what its options ask for, and what is told of each run.

Rule: no click here; what is to be printed goes to `echo`, once for standard output and once for standard error.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailgauge.address import LOOPBACK, Address, is_loopback, parse
from tailgauge.errors import Exit, UsageError

if TYPE_CHECKING:
    from tailgauge.locust_app.launch import Page, WorkerSetup
    from tailgauge.plan.resolve import Settings

PORT = 5557  # where workers that are started elsewhere find their master, as Locust's do
Echo = Callable[[str], None]


def settings_of(
    scenario: str,
    options: Mapping[str, tuple[str, Any]],
    duration: float | None,
    sets: Iterable[str],
    told: dict[str, Any],
) -> Settings:
    """The options as overrides of the scenario, each keeps its name for what is said of it; and what else is `told`."""
    from tailgauge.plan.resolve import resolve
    from tailgauge.scenario.model import override

    pairs = [override(text) for text in sets]
    named = [(key, option, value) for key, (option, value) in options.items() if value is not None]
    pairs += [(key, value) for key, _, value in named]
    spelt = {key: option for key, option, _ in named}
    return resolve(scenario, pairs, duration_s=duration, spelt=spelt, **told)


def hands(workers: int | None, elsewhere: int, bind: str | None) -> tuple[int, int, Address]:
    """Children, workers from elsewhere, and where these find the master; UsageError where that is nobody."""
    children = workers if workers is not None else 0 if elsewhere else 1
    if bind is not None and not elsewhere:
        raise UsageError("--bind: only workers that are started elsewhere need it: add --expect-workers N")
    if not children and not elsewhere:
        raise UsageError("--workers 0: somebody has to send the traffic: add --expect-workers N")
    default = Address(LOOPBACK, PORT if elsewhere else 0)
    return children, elsewhere, default if bind is None else parse(bind, "--bind", port=PORT)


def page(web: str | None, *, metrics: bool) -> tuple[Address, bool] | None:
    """Where Locust's page is to be, and whether with /metrics; None where it is not asked for."""
    if web is None:
        if metrics:
            raise UsageError("--metrics: it is a part of the web page: add --web PORT")
        return None
    if web.isdigit():
        return parse(f"{LOOPBACK}:{web}", "--web"), metrics
    return parse(web, "--web"), metrics


def check_reachable(settings: Iterable[Settings], bind: Address) -> None:
    """A simulated endpoint is started on loopback: workers on other machines need one that they can reach."""
    from tailgauge.protocols.protocol import SIMULATED

    for each in settings:
        targets = filter(None, (each.scenario.target, each.scenario.second_target))
        if not is_loopback(bind.host) and any(target.url == SIMULATED for target in targets):
            raise UsageError(
                f"--bind {bind}: workers on other machines do not reach the endpoint that {each.scenario_file} simulates on "
                "this one: start `tailgauge endpoint --host ADDRESS`, and name it with --target http://ADDRESS:8000"
            )


def launch(
    settings: list[Settings],
    hands: WorkerSetup,
    page: Page | None,
    echo: Echo,
    complain: Echo,
    *,
    as_json: bool,
) -> Exit:
    """Run each and tell what came of it; returns the exit code of them all."""
    from tailgauge.locust_app.launch import Launch

    codes = []
    for done in Launch(settings, hands, page, quiet=as_json).runs():
        codes.append(done.code)
        if done.failure is not None:
            complain(f"tailgauge: {done.failure}")
        if as_json:
            data = done.made.data if done.made else {}
            if done.made and not data:
                complain(f"tailgauge: {done.made.summary}")  # there is no report, and why
            folder = {"run_id": done.run.run_id, "run_dir": str(done.run.folder.path)} if done.run else {}
            echo(json.dumps({**data, **folder, "exit_code": int(done.code)}))
        elif done.made:
            echo(done.made.summary)
    if len(codes) < len(settings):  # a Ctrl-C between two of them
        codes.append(Exit.INTERRUPTED)
    return Exit.worst(codes)


def rehearse(settings: Settings, echo: Echo, *, as_json: bool) -> Exit:
    """Run in virtual time and report; returns the exit code."""
    from tailgauge.dry_run import command
    from tailgauge.locust_app.report_process import analyse

    asked = (settings.scenario_file, settings.overrides, settings.out)
    folder = command.rehearse(settings.scenario, settings.schedule, *asked)
    made = analyse(folder, settings.out)
    told = {"run_id": folder.path.name, "run_dir": str(folder.path), "exit_code": int(made.exit_code)}
    echo(json.dumps({**made.data, **told}) if as_json else made.summary)
    return made.exit_code


def check_keys(settings: Iterable[Settings]) -> None:
    """A missing key is told before anything starts."""
    from tailgauge.protocols.api_keys import key_for

    for scenario in (each.scenario for each in settings):
        for wanted in filter(None, (scenario.target, scenario.second_target)):
            key_for(wanted.url, wanted.protocol, wanted.api_key_env)


def folder_for(out: Path) -> Path:
    """Where a worker keeps its rows; UsageError where it cannot, before any run waits for it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            return out.resolve()
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from error
