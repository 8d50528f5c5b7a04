"""Commands that repeat a run: its own scenario, target, overrides, plugins and workers, and what is changed of them.

Which command a reader needs is decided in advice.py and length.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise

from tailgauge.command_line import OPTION_OF, run_line, shell_line
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.text.json_values import Json, number, table

HEADROOM = "headroom"
CURVE = "curve"
MINUTES = 15  # of an experiment, in its command, because a reader may want fewer
STAGES = "stages="
RATE = "arrival.rate_per_s"
REQUESTS = "arrival.closed.requests="
LENGTHS = (STAGES, REQUESTS)  # what --duration and --requests set
MAX_REQUESTS = "guard.max_requests="  # it would end a longer run where it ended this one
RETRY = re.compile(r"traffic\.[^.=]+\.retry\b")


def again(record: Json, sets: Sequence[str] = (), options: Sequence[str] = ()) -> str | None:
    """Return the command that runs the same traffic with these changes; None where the run does not name its scenario.

    The tasks of a locustfile are run by Locust. The file of an experiment's step does not last.
    """
    if is_of_tasks(record["scenario"]):
        return _by_locust(record["command"], sets, options)
    overrides = record["overrides"]
    # A length replaces the stages, or the number of requests, that an earlier length made.
    if options:
        replaced = (*(LENGTHS if "--requests" in options else (STAGES,)), MAX_REQUESTS)
        overrides = [text for text in overrides if not text.startswith(replaced)]
    return _command_line(record, [*overrides, *sets], options)


def _by_locust(command: Sequence[str], sets: Sequence[str], options: Sequence[str]) -> str | None:
    """Return Locust's command with these changes; None where it is not recorded or cannot be printed."""
    if not command:
        return None
    changed = list(command)
    for option, value in pairwise(options):
        if option == "--duration":
            if "-t" in changed:
                place = changed.index("-t")
                del changed[place : place + 2]
            changed += ["-t", value]
    for text in sets:
        changed += ["--set", text]
    return shell_line(changed) or None


def _last_of_each(overrides: Sequence[str]) -> list[str]:
    """Return the overrides without those of a key that is given again."""
    by_key: dict[str, str] = {}
    for text in overrides:
        key = text.partition("=")[0]
        by_key.pop(key, None)
        by_key[key] = text
    return list(by_key.values())


def experiment(record: Json, kind: str, rate_per_s: float | None) -> str | None:
    """Return the command of an experiment on the same traffic; None where it cannot set the load of this run.

    `kind`: HEADROOM, which finds the rate without rejections, or CURVE. `rate_per_s`: the rate offered, for a trace that sets none.
    An experiment chooses the length of its runs, and headroom counts refused calls, which retries repeat: neither is taken
    from this run.
    """
    if is_of_tasks(record["scenario"]):
        return None
    scenario = record["scenario"]
    arrival = table(scenario, "arrival")
    overrides = [text for text in record["overrides"] if not text.startswith(LENGTHS)]
    additions = [f"experiment.kind={kind}", f"experiment.minutes={MINUTES}"]
    # A closed loop has no rate: only a curve over its number of users can be measured.
    if arrival.get("process") == "closed":
        if kind != CURVE:
            return None
        additions.append("experiment.curve.by=concurrency")
    elif arrival.get("process") == "trace" and number(arrival.get("rate_per_s")) is None:
        if rate_per_s is None:
            return None
        additions.append(f"arrival.rate_per_s={rate_per_s:.4g}")
    if kind == HEADROOM:
        overrides = [text for text in overrides if not RETRY.match(text)]
        additions += _without_retries(table(scenario, "traffic"))
    remaining, options = _as_options(_last_of_each(overrides))
    # The search may send more calls than the limit that is the default.
    if kind == HEADROOM and table(scenario, "guard").get("max_requests") is None:
        rate = number(arrival.get("rate_per_s")) or rate_per_s
        if rate is not None:
            options += ["--max-requests", str(_most_calls(rate))]
    return _command_line(record, [*remaining, *additions], options)


def _as_options(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the overrides that no option sets, and the options of the others, as a user types them."""
    remaining: list[str] = []
    options: list[str] = []
    for text in overrides:
        key, _, value = text.partition("=")
        option = OPTION_OF.get(key)
        if key == RATE and value.removesuffix(".0"):
            options += ["--rate", value.removesuffix(".0")]
        elif option is None or value.startswith('"'):
            remaining.append(text)
        else:
            options += [option, value]
    return remaining, options


def _most_calls(rate_per_s: float) -> int:
    """Return what a search sends at this rate in all of its minutes, rounded up: it goes down from a rate that is refused."""
    return math.ceil(rate_per_s * 60 * MINUTES / 1000) * 1000


def _without_retries(traffic: Json) -> list[str]:
    """Return what switches off the retries of the tables that retry."""
    overrides = []
    for name, settings in traffic.items():
        if table(settings, "retry").get("policy", "none") != "none":
            overrides.append(f"traffic.{name}.retry.policy=none")
    return overrides


def _command_line(
    record: Json, overrides: Sequence[str], options: Sequence[str] = ()
) -> str | None:
    """Return the command of a run with these overrides; None where the run does not name its scenario."""
    if not record["scenario_file"]:
        return None
    plugins = []
    for plugin in record["plugins"]:
        plugins.append(str(plugin.get("given") or plugin.get("file")))
    line = run_line(
        record["scenario_file"],
        _last_of_each(overrides),
        plugins=plugins,
        workers=len(record["workers"]) - elsewhere(record),
        dry_run=record["dry_run"],
        options=options,
    )
    return line or None


def elsewhere(record: Json) -> int:
    """Return how many workers ran on other machines than the master's."""
    host = record["master"].get("host")
    if not host:
        return 0
    hosts = [worker["host"] for worker in record["workers"]]
    return sum(bool(name) and name != host for name in hosts)
