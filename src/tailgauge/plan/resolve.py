"""Prepares a run before anything starts: reads and scales the scenario, plans its schedule, checks files, keys and prices.

Files and the environment are read, and the output folder is created. No host is looked up or contacted: an impossible run
is refused here, by the same checks for `tailgauge run` and for plain Locust. What a scenario means by itself is checked in
scenario/model.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from tailgauge.clock import utc_today
from tailgauge.command_line import STEP_FOLDER
from tailgauge.errors import ScenarioError, UsageError
from tailgauge.plan import objectives
from tailgauge.plan.estimate import Estimate, estimate
from tailgauge.plan.looks import looks
from tailgauge.plan.preflight import MAX_PREFIXES, prefixes, preflight_calls
from tailgauge.plan.spend_limit import Amount, Sizing, need
from tailgauge.protocols.additions import from_environment, variables
from tailgauge.protocols.api_keys import key_for
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.rows.disk import writable
from tailgauge.rows.text_file import locate
from tailgauge.scenario import model as scenarios
from tailgauge.scenario import prices as pricing
from tailgauge.scenario.model import MAX_IN_FLIGHT, Limits, Scenario
from tailgauge.scenario.packaged import find
from tailgauge.scenario.prices import Price, Prices
from tailgauge.schedule.schedule import Schedule, plan
from tailgauge.schedule.settings import CLOSED, TASKS, TRACE
from tailgauge.thresholds import ENDLESS_S

_HOW = {
    "target": "--target URL, or --host URL under Locust",
    "second_target": "--set second_target.url=URL",
}
_STAGES = ("stages.warmup_s", "stages.cooldown_s")
# How many lengths are tried for a number of requests, and the share of it that may be missing.
_LENGTHS = 20
_CLOSE = 0.001


@dataclass(frozen=True, slots=True)
class Settings:
    """The resolved scenario with its plan and prices, where it came from, where the run goes.

    `scenario_file`: as the user named it; empty in a step of an experiment, whose file does not last.
    `command`: Locust's, of a run whose requests the tasks of a locustfile make.
    """

    scenario: Scenario
    scenario_file: str
    overrides: tuple[str, ...]
    out: Path
    schedule: Schedule
    prices: Prices
    estimate: Estimate
    command: tuple[str, ...] = ()

    @property
    def limit(self) -> Amount:
        """Return what the run may use at most."""
        guard = self.scenario.guard
        cost = None
        if guard.max_cost is not None:
            cost = Fraction(str(guard.max_cost))
        return Amount(guard.max_requests, guard.max_tokens, cost)

    @property
    def objectives(self) -> list[str]:
        """Return what each objective needs, and what this plan has of it, in lines of text."""
        return objectives.lines(self.scenario, self.schedule)

    def limited_prices(self) -> dict[str, Price]:
        """Today's prices of the models in use; nothing where cost is not limited."""
        if self.scenario.guard.max_cost is None:
            return {}
        prices = {}
        for _, model in self.scenario.models():
            price = self.prices.price(model, utc_today())
            if price is not None:
                prices[model] = price
        return prices

    def priced(self) -> dict[str, list[Any]]:
        """Return those prices for a message to the workers."""
        return {model: price.plain() for model, price in self.limited_prices().items()}


def resolve(
    argument: str,
    pairs: Sequence[tuple[str, Any]],
    out: Path,
    *,
    duration_s: float | None = None,
    requests: int | None = None,
    spelt: Mapping[str, str] | None = None,
    workers: int = 1,
    sends: bool = True,
    of_tasks: bool = False,
) -> Settings:
    """Read and check everything that a run needs before it starts; return its settings. Raises ScenarioError or
    UsageError.

    `argument`: a scenario's file or name. `pairs` are overrides by dotted key, `spelt`: how one was given if not by
    --set, for messages. `duration_s`, or else as long as about so many `requests` take, scales the stages. A closed loop
    sends exactly so many `requests`, for `duration_s` at most. `sends`: a real run, which needs keys, a target that the
    user named, and limits that suffice. `of_tasks`: the tasks of a locustfile make the requests; that file may be the
    `argument`. Creates the folder `out`.
    """
    pairs = list(pairs)
    typed_stages: list[tuple[str, Any]] = []
    if duration_s is not None and requests is None:
        # Stages in seconds of the new length: the scenario's own may be too short for them.
        typed_stages = [pair for pair in pairs if pair[0] in _STAGES]
        pairs = [pair for pair in pairs if pair[0] not in _STAGES]
    scenario = scenarios.load(argument, pairs, spelt, of_tasks=of_tasks)
    path = find(argument)
    if scenario.arrival.process == TASKS and not of_tasks:
        advice = f"a locustfile with a StreamingUser makes these requests: locust -f FILE --scenario {argument}"
        raise ScenarioError(f"{path}: arrival.process: {advice}")
    chosen = [key for key, _ in pairs]
    _files_exist(scenario, path, chosen)
    options = {key: f"--set {key}" for key in chosen}
    options.update(spelt or {})
    if duration_s is not None:
        options["stages.duration_s"] = "--duration"
    with _naming(path, options):
        # The length is known only with the scenario: it is loaded once more with the overrides that set it.
        changed = _changed_length(scenario, duration_s, requests, path.parent, chosen)
        if changed:
            pairs += [*changed, *typed_stages]
            scenario = scenarios.load(argument, pairs, spelt, of_tasks=of_tasks)
        if sends:
            _remote_targets_named(scenario, chosen, path)
            for target in scenario.targets.values():
                # TargetError where the key is missing.
                key_for(target.url, target.protocol, target.api_key_env)
            for key, variable in variables(scenario.model_dump(), ""):
                from_environment(variable, f"{key} names it")
        named = scenario.guard.prices
        price_file = pricing.PACKAGED
        if named:
            price_file = locate(named, path.parent, "guard.prices")
        prices = pricing.read(price_file)
        _priced(scenario, prices)
        if sends:  # a dry run compares its plan with the limits
            _guard_suffices(scenario, workers)
        scenario = _with_cap(scenario, workers)
        _slots_suffice(scenario, workers)
        _prefixes_few(scenario)
        schedule = _schedule(scenario, scenario.stages.duration_s, path.parent)
        _some_requests(scenario, schedule)
        looks(scenario, schedule)
    writable(out, f"--out {out}:")
    spelled = tuple(scenarios.spelled(key, value) for key, value in pairs)
    estimated = estimate(scenario, schedule, prices, utc_today(), workers)
    return Settings(
        scenario=scenario,
        scenario_file=_named(argument, path, of_tasks=of_tasks),
        overrides=spelled,
        out=out,
        schedule=schedule,
        prices=prices,
        estimate=estimated,
    )


def _named(argument: str, path: Path, *, of_tasks: bool) -> str:
    """Return how the run is to name its scenario; empty where its file does not last."""
    if path.parent.name.startswith(STEP_FOLDER):
        return ""
    return path.name if of_tasks else argument


@contextmanager
def _naming(path: Path, options: Mapping[str, str]) -> Iterator[None]:
    """An error that begins with a key of the scenario begins with its file, or with the option that gave the key."""
    try:
        yield
    except ScenarioError as error:
        key, _, text = str(error).partition(": ")
        for name, option in options.items():
            if key == name:
                raise ScenarioError(f"{option}: {text}") from error
            if key.startswith(f"{name}."):
                key_text = ""
                if option == f"--set {name}":
                    key_text = f"{key.removeprefix(f'{name}.')}: "
                raise ScenarioError(f"{option}: {key_text}{text}") from error
        if re.split(r"[.:]", str(error))[0] not in Scenario.model_fields:
            raise
        raise ScenarioError(f"{path}: {error}") from error


def _schedule(scenario: Scenario, duration_s: float, folder: Path) -> Schedule:
    protocols = tuple(PROTOCOLS[target.protocol] for target in scenario.targets.values())
    return plan(
        scenario.arrival,
        scenario.traffic,
        duration_s,
        scenario.seed,
        warmup_s=scenario.stages.warmup,
        alternating=scenario.alternating,
        folder=folder,
        protocols=protocols,
        bounded=scenario.guard.is_of_tokens,
    )


def _changed_length(
    scenario: Scenario,
    duration_s: float | None,
    requests: int | None,
    folder: Path,
    chosen: Collection[str],
) -> list[tuple[str, Any]]:
    """Return the overrides that --duration and --requests stand for; none without them.

    `chosen`: keys that the command line set. At a rate a number of requests is a length; a closed loop sends the number,
    for `duration_s` at most.
    """
    arrival = scenario.arrival
    stages = scenario.stages
    if requests is not None and arrival.process == CLOSED:
        warmup_s = stages.warmup if "stages.warmup_s" in chosen or arrival.is_counted else 0.0
        limits = {"duration_s": duration_s or ENDLESS_S, "warmup_s": warmup_s}
        return [("arrival.closed.requests", requests), ("stages", limits)]
    if requests is not None and duration_s is not None:
        raise UsageError(
            "--duration and --requests: at a given rate one follows from the other: choose one"
        )
    if requests is not None:
        duration_s = _length(scenario, requests, folder)
    if duration_s is None:
        return []
    if arrival.is_counted:
        return [("stages", {"duration_s": duration_s, "warmup_s": stages.warmup})]
    return [("stages", scenarios.scaled(stages, duration_s))]


def _length(scenario: Scenario, requests: int, folder: Path) -> float:
    """Return the seconds in which about so many requests are planned, every turn of a session counted.

    Tries lengths until the planned number is within _CLOSE of it; of _LENGTHS tries the best one. UsageError where a
    trace has no more, and where tasks decide.
    """
    if not scenario.arrival.is_open:
        raise UsageError(
            "--requests: the tasks of a locustfile decide their number: use --duration"
        )
    length = scenario.stages.duration_s
    lengths = dict[int, float]()
    for _ in range(_LENGTHS):
        planned = _schedule(scenario, length, folder).requests
        if scenario.arrival.process == TRACE and planned == max(lengths, default=-1) < requests:
            raise UsageError(f"--requests {requests:,}: the trace has only {planned:,} requests")
        lengths[planned] = length
        if abs(planned - requests) <= requests * _CLOSE:
            break
        # Between a length that is too long and one that is too short, else in proportion.
        longer = [seconds for n, seconds in lengths.items() if n > requests]
        shorter = [seconds for n, seconds in lengths.items() if n < requests]
        length *= requests / max(planned, 1)
        if longer and shorter:
            length = (min(longer) + max(shorter)) / 2
    return lengths[min(lengths, key=lambda planned: abs(planned - requests))]


def _remote_targets_named(scenario: Scenario, typed_keys: Iterable[str], path: Path) -> None:
    """Load leaves this machine only for a target that the user named."""
    for table, target in scenario.targets.items():
        if target.is_local or {table, f"{table}.url"} & set(typed_keys):
            continue
        advice = f"A remote target must be named on the command line: add {_HOW[table]}"
        raise ScenarioError(f"{path}: {table}.url: {target.url} is not on this machine. {advice}")


def _files_exist(scenario: Scenario, path: Path, chosen: Collection[str]) -> None:
    """Every file that a key names is there; UsageError with where the key stands."""
    trace = scenario.arrival.trace.file if scenario.arrival.process == TRACE else None
    named = {"arrival.trace.file": trace, "guard.prices": scenario.guard.prices}
    for name, table in scenario.traffic.items():
        named[f"traffic.{name}.prompts.file"] = table.prompts.file
    certificates = {f"{name}.ca_file": target.ca_file for name, target in scenario.targets.items()}
    for key, file in (named | certificates).items():
        if file is not None:
            keys = {key, re.sub(r"^(traffic)\..*\.(\w+\.\w+)$", r"\1.*.\2", key)}
            where = f"{path}: {key}"
            if keys & set(chosen):
                where = f"--set {key}"
            folder = Path() if key in certificates else path.parent
            locate(file, folder, where)


def _priced(scenario: Scenario, prices: Prices) -> None:
    if scenario.guard.max_cost is None:
        return
    for _, model in scenario.models():
        if prices.price(model, utc_today()) is None:
            problem = f"no price is known for model {model!r}"
            advice = "--set guard.prices=FILE with its price (`tailgauge docs prices`), or --max-tokens N"
            raise ScenarioError(f"guard.max_cost: {problem}: {advice}")


def _guard_suffices(scenario: Scenario, workers: int) -> None:
    """A limit that the preflight alone would use up is a mistake."""
    calls = preflight_calls(scenario)
    tried = len(calls)
    written = prefixes(scenario)
    limit = scenario.guard.max_requests
    if limit is not None and limit < tried + written + workers:
        expected = f"expected at least {tried + written + workers}, got {limit}"
        reason = f"{tried} calls of the preflight, {written} that write prefixes, and one for each worker"
        raise ScenarioError(f"guard.max_requests: {expected}: {reason}")
    limit = scenario.guard.max_tokens
    tokens = sum(need(call.call, Sizing(), None).tokens or 0 for call in calls)
    if limit is not None and limit < tokens:
        expected = f"expected at least {tokens}, got {limit}"
        raise ScenarioError(f"guard.max_tokens: {expected}: the preflight may use that")


def _slots(scenario: Scenario) -> tuple[str, int | None]:
    """Return the key that says how many requests may be in flight over all workers, and that number; None: any."""
    arrival = scenario.arrival
    if arrival.process == CLOSED:
        return "arrival.closed.users", arrival.closed.users
    return "arrival.max_concurrency", arrival.max_concurrency


def _with_cap(scenario: Scenario, workers: int) -> Scenario:
    """Return the scenario with a cap of each worker that its slots fit in, where it sets none itself."""
    limits = scenario.limits
    _, slots = _slots(scenario)
    if slots is None or "in_flight_per_worker" in limits.model_fields_set:
        return scenario
    share = min(MAX_IN_FLIGHT, math.ceil(slots / workers))
    values = {**dict(limits), "in_flight_per_worker": max(limits.in_flight_per_worker, share)}
    # It stays unset, so that a run derived from this one gets a cap of its own.
    raised = Limits.model_construct(limits.model_fields_set, **values)
    return scenario.model_copy(update={"limits": raised})


def _slots_suffice(scenario: Scenario, workers: int) -> None:
    """Each worker gets a slot, and none gets more than it may have in flight."""
    key, slots = _slots(scenario)
    if slots is None:
        return
    if scenario.arrival.is_open and slots < workers:
        raise ScenarioError(
            f"{key}: expected at least {workers}, a slot for each worker, got {slots}"
        )
    cap = scenario.limits.in_flight_per_worker
    if slots > cap * workers:
        expected = f"expected at most {cap * workers:,}, got {slots:,}"
        advice = "add workers" if cap == MAX_IN_FLIGHT else "raise it, or add workers"
        raise ScenarioError(f"{key}: {expected}: limits.in_flight_per_worker is {cap:,}: {advice}")


def _some_requests(scenario: Scenario, schedule: Schedule) -> None:
    if scenario.arrival.is_open and not len(schedule):
        seconds = f"{scenario.stages.duration_s:g} s"
        advice = "raise arrival.rate_per_s, or run longer"
        raise ScenarioError(f"stages.duration_s: no request arrives within {seconds}: {advice}")


def _prefixes_few(scenario: Scenario) -> None:
    for name, traffic in scenario.traffic.items():
        cache = traffic.cache
        if cache is not None and cache.pre_warm and cache.prefixes > MAX_PREFIXES:
            expected = f"expected at most {MAX_PREFIXES:,} prefixes, got {cache.prefixes:,}"
            raise ScenarioError(
                f"traffic.{name}.cache.pre_warm: {expected}: each is a call before the run"
            )
