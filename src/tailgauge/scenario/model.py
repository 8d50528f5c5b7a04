"""A scenario: what traffic to send, as TOML, read into frozen typed values.

The tables live with what they configure and are collected here. Unknown keys, wrong types and impossible values are
refused with file, key, what was expected and the nearest valid name. docs/reference/scenarios.md is generated from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from tomllib import TOMLDecodeError
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from tailgauge.call import EXACT_OUTPUT, MAIN, SCHEMAS, SECOND
from tailgauge.errors import ScenarioError, UsageError
from tailgauge.patterns.settings import AUTOMATIC, NO_MARKS, Cache, Marks, TrafficSettings
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.plugins import plugin
from tailgauge.prompts.source import check as check_source
from tailgauge.protocols.additions import refuse_fields
from tailgauge.protocols.protocol import SIMULATED, MarkRules, at_provider
from tailgauge.protocols.table import PROTOCOLS, Target, is_self_hosted, refusal
from tailgauge.redaction import secret_like
from tailgauge.rows.text_file import DEEPEST, toml
from tailgauge.sanitize import harmless, is_one_line
from tailgauge.scenario.experiment import Experiment
from tailgauge.scenario.objective import Objective
from tailgauge.scenario.packaged import find, read
from tailgauge.scenario.simulated import Simulated
from tailgauge.schedule.settings import CLOSED, TASKS, Arrival, Crossover
from tailgauge.suggestions import SECONDS, near_names, nearest, number_and_unit
from tailgauge.table import Count, NonNegative, Positive, Table, names_at, problem, tables_in
from tailgauge.thresholds import ENDLESS_S

MANY = 20  # errors of one scenario that are shown
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}")
# `traffic.*.model` is a key of every traffic table.
_KEY = re.compile(r"[A-Za-z0-9_-]+(\.\*)?(\.[A-Za-z0-9_-]+)*")
_OF_PLANS = (
    "pattern",
    "weight",
    "prompt_tokens",
    "prompt_sigma",
    "output_sigma",
    "prompts",
    "session",
)
# Keys that each target has for itself: secrets go nowhere else.
_OF_ONE_TARGET = {
    "url",
    "api_key_env",
    "auth_header",
    "headers",
}
_TRAFFIC = "traffic"
_EMPTY = "has no tables: a scenario needs [traffic.NAME]; start from one with `tailgauge scenario copy streaming`"
_NO_TRAFFIC = "there is no table [traffic.NAME]: add one, for example [traffic.main]"
_NO_TABLE = {"model_type", "mapping_type", "dict_type"}  # pydantic's errors
_NO_NUMBER = {"float_type", "int_type", "int_from_float", "is_instance_of"}
# Keys by the names that other tools have for them.
_ALSO_CALLED = {
    "max_tokens": "output_tokens",
    "max_output_tokens": "output_tokens",
    "input_tokens": "prompt_tokens",
    "base_url": "url",
    "endpoint": "url",
    "host": "url",
    "api_key": "api_key_env",
    "rps": "rate_per_s",
    "qps": "rate_per_s",
    "rate": "rate_per_s",
    "request_rate": "rate_per_s",
    "concurrency": "users",
    "vus": "users",
    "duration": "duration_s",
    "timeout": "attempt_deadline_s",
}
_REPORTED = {"alert", "use_case"}  # tables of objectives that decided nothing
# Parts of a key that name tables and keys of the model; names below are the user's.
_TABLE_LEVELS = 3
_INSTEAD = {
    "name": 'write {env = "NAME"} in headers or body, and set that variable',
    "value": 'write {env = "NAME"} in headers or body, or NAME in target.api_key_env, and set that variable',
    "query": 'write {env = "NAME"} in a header, or NAME in target.api_key_env, and set that variable',
}


class Stages(Table):
    """Length of the run, and the part that counts."""

    duration_s: float = Field(30.0, gt=0, le=ENDLESS_S)
    """seconds during which requests arrive, warm-up included"""
    warmup_s: NonNegative | None = None
    """seconds excluded at the start; default a tenth of the run, at most 60"""
    cooldown_s: NonNegative = 0.0
    """seconds excluded at the end"""

    @model_validator(mode="after")
    def _some_steady(self) -> Stages:
        if self.warmup + self.cooldown_s >= self.duration_s:
            ends = f"warmup_s ({self.warmup:g}) and cooldown_s ({self.cooldown_s:g})"
            raise ValueError(f"{ends} leave nothing of duration_s ({self.duration_s:g})")
        return self

    @property
    def warmup(self) -> float:
        """Warm-up in seconds, the default worked out."""
        return min(60.0, self.duration_s / 10) if self.warmup_s is None else self.warmup_s

    @property
    def is_endless(self) -> bool:
        """Whether only somebody who stops it ends the run."""
        return self.duration_s == ENDLESS_S

    def stage_at(self, since_start_s: float) -> str:
        """Name of the stage in which an arrival `since_start_s` after the start falls."""
        if since_start_s < self.warmup:
            return "warmup"
        return "cooldown" if since_start_s >= self.duration_s - self.cooldown_s else "steady"


MAX_IN_FLIGHT = 60_000  # of a worker


class Limits(Table):
    """Limits of one worker."""

    in_flight_per_worker: int = Field(1000, ge=1, le=MAX_IN_FLIGHT)
    """most requests in flight; further arrivals are dropped. Default rises to the share of `closed.users` or `max_concurrency`"""
    attempt_deadline_s: Positive = 120.0
    """slower calls end as `timeout`"""
    connect_timeout_s: Positive = 10.0
    """DNS, TCP and TLS together"""
    drain_s: NonNegative = 60.0
    """time for open requests at the end; then they are censored"""
    ready_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """longest wait for a loading target (refuses, 502, 503 or 504)"""


class Guard(Table):
    """Limits over all workers at which a run stops. Never exceeded."""

    max_requests: Count | None = None
    """HTTP calls, retries and hedges included"""
    max_tokens: Count | None = None
    """input and output tokens"""
    max_cost: Positive | None = None
    """cost in the price file's currency"""
    prices: str | None = None
    """price file instead of the packaged one; see `tailgauge docs prices`"""

    @property
    def is_of_tokens(self) -> bool:
        """Whether the size of a prompt must be bounded."""
        return self.max_tokens is not None or self.max_cost is not None


class Stop(Table):
    """Rules that stop a run whose target fails. The result is FAIL."""

    min_completed: float = Field(0.5, ge=0, le=1)
    """least completed share of the last 50 requests and 5 s, without 429s; 0: any; off where an objective bounds errors"""
    connect_errors: Annotated[int, Field(ge=0, le=1_000_000_000)] = 20
    """connection errors in a row, for 5 s or more; 0: any number"""
    rejections: Annotated[int, Field(ge=0, le=1_000_000_000)] = 20
    """equal 4xx answers in a row, 429 excepted, for 1 s or more; 0: any number"""
    max_ttft_ms: Positive | None = None
    """longest median TTFT, over `ttft_s`"""
    ttft_s: Annotated[float, Field(gt=0, le=600)] = 10.0
    """seconds that `max_ttft_ms` covers"""


class Report(Table):
    """How the report measures."""

    first_token: Literal["any", "text"] = "any"  # noqa: S105 - no secret
    """TTFT ends at content of `any` kind, or at the first `text`"""


class Scenario(Table):
    """A whole scenario; `[traffic.NAME]` and `[slo.NAME]` may be repeated under different names."""

    name: str
    """default: the file's stem"""
    description: str = Field("", max_length=500)
    """one line for the report"""
    seed: int = Field(1, ge=0, lt=2**63)
    """seed of arrivals, sizes and prompts"""
    repeat_prompts: bool = False
    """same prompts in every run with this seed; caches may have them"""
    clock: Literal["kernel", "user"] = "kernel"
    """timestamps of the `kernel` (Linux), or of the read (`user`), as most clients"""
    reader: Literal["compiled", "python"] = "compiled"
    """socket reader: a `compiled` thread that a busy worker cannot delay, or `python`"""
    keep_answers: int | None = Field(None, ge=1, le=1000)
    """raw answers kept per worker; see `tailgauge docs keep-answers`"""
    plugins: Annotated[tuple[str, ...], Field(strict=False, max_length=MANY)] = ()
    """plugins by file or name; loaded only with `--plugin` or `--allow-plugins`"""
    target: Target = Field(default_factory=Target)
    second_target: Target | None = None
    arrival: Arrival = Arrival()
    stages: Stages = Stages()
    traffic: Mapping[str, Traffic] = Field(
        default_factory=lambda: {"main": Traffic()}, min_length=1
    )
    limits: Limits = Limits()
    guard: Guard = Guard()
    stop: Stop = Stop()
    simulated: Simulated = Simulated()
    report: Report = Report()
    slo: Mapping[str, Objective] = {}
    crossover: Crossover | None = None
    experiment: Experiment | None = None

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("must be lower-case letters, digits, - and _, at most 48 of them")
        return value

    @model_validator(mode="before")
    @classmethod
    def _behind_gateway(cls, tree: Any) -> Any:
        """A gateway is called as the target behind it, but for what its own table says."""
        if not isinstance(tree, dict):
            return tree
        crossover = tree.get("crossover")
        target = tree.get("target")
        second = tree.get("second_target")
        if not isinstance(crossover, dict) or crossover.get("gateway") is not True:
            return tree
        if not isinstance(target, dict) or not isinstance(second, dict):
            return tree
        shared = {key: value for key, value in target.items() if key not in _OF_ONE_TARGET}
        return {**tree, "second_target": {**shared, **second}}

    @model_validator(mode="before")
    @classmethod
    def _counted(cls, tree: Any) -> Any:
        """A closed loop with a number of requests has no length of its own, and counts them all."""
        if not isinstance(tree, dict):
            return tree
        arrival = tree.get("arrival")
        if not isinstance(arrival, dict) or arrival.get("process") != CLOSED:
            return tree
        closed = arrival.get("closed")
        if not isinstance(closed, dict) or closed.get("requests") is None:
            return tree
        stages = tree.get("stages", {})
        if not isinstance(stages, dict):
            return tree
        return {**tree, "stages": {"duration_s": ENDLESS_S, "warmup_s": 0.0, **stages}}

    @model_validator(mode="after")
    def _bounded(self) -> Scenario:
        if (self.arrival.rate or 0) * self.stages.duration_s > 20_000_000:
            problem = "expected at most 20 million arrivals in duration_s"
            raise ValueError(f"arrival.rate_per_s: {problem}: split the run")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Scenario:
        for name, traffic in self.traffic.items():
            try:
                check_source(traffic)
            except ValueError as error:
                raise ValueError(f"traffic.{name}.prompts.{error}") from None
            if SECOND in _targets_used(traffic) and self.second_target is None:
                raise ValueError(
                    f"traffic.{name}: names the second target, but there is no [second_target]"
                )
            if not self.arrival.is_planned and traffic.prompts.at_end == "stop":
                raise ValueError(
                    f"traffic.{name}.prompts.at_end: users of a closed loop repeat their rows"
                )
            if not self.arrival.is_open and traffic.session.turns_mean > 1:
                raise ValueError(f"traffic.{name}.session: a closed loop has no sessions")
        return self

    @model_validator(mode="after")
    def _understood(self) -> Scenario:
        """Refuse what a protocol cannot send or a target cannot answer: fields of bodies, and what each pattern needs."""
        for table, target in self.targets.items():
            refuse_fields(target.body, PROTOCOLS[target.protocol].set_elsewhere, table)
        for name, traffic in self.traffic.items():
            needs = list(pattern_of(traffic).needs())
            if {EXACT_OUTPUT, SCHEMAS} <= {need for _, need in needs}:
                problem = "an answer by a schema ends where its JSON ends: leave `exact` out"
                raise ValueError(f"traffic.{name}.output: {problem}")
            for target_name in sorted(_targets_used(traffic)):
                target = self.target_of(target_name)
                protocol = PROTOCOLS[target.protocol]
                refuse_fields(traffic.body, protocol.set_elsewhere, f"traffic.{name}")
                for key, need in needs:
                    problem = refusal(target, need)
                    if problem:
                        raise ValueError(f"traffic.{name}.{key}: {problem}")
        return self

    @model_validator(mode="after")
    def _cached(self) -> Scenario:
        for name, traffic in self.traffic.items():
            target = self.target_of(traffic.target)
            problem = _cache_problem(traffic, target.protocol, self.marks(traffic))
            if problem:
                raise ValueError(f"traffic.{name}.cache.{problem}")
        return self

    @model_validator(mode="after")
    def _limited(self) -> Scenario:
        for table, target in self.targets.items():
            if target.max_tokens_field == "none" and self.guard.is_of_tokens:
                problem = (
                    "without a limit on answers, guard.max_tokens and guard.max_cost cannot be kept"
                )
                raise ValueError(
                    f"{table}.max_tokens_field: {problem}: leave them out, or use guard.max_requests"
                )
        return self

    @model_validator(mode="after")
    def _tasks(self) -> Scenario:
        if self.arrival.process != TASKS:
            return self
        for name, traffic in self.traffic.items():
            for key in _OF_PLANS:
                if getattr(traffic, key) != Traffic.model_fields[key].default:
                    raise ValueError(
                        f"traffic.{name}.{key}: the tasks of the locustfile decide what is requested, and when: leave it out"
                    )
        return self

    @model_validator(mode="after")
    def _objectives(self) -> Scenario:
        for name, objective in self.slo.items():
            if objective.traffic is not None and objective.traffic not in self.traffic:
                names = list(self.traffic)
                near = nearest(objective.traffic, names) or f"; the scenario has {', '.join(names)}"
                raise ValueError(
                    f"slo.{name}.traffic: there is no traffic.{objective.traffic}{near}"
                )
        return self

    @model_validator(mode="after")
    def _alternating(self) -> Scenario:
        if self.crossover is None:
            return self
        for key, name in (("a", self.crossover.a), ("b", self.crossover.b)):
            if name not in self.traffic:
                raise ValueError(f"crossover.{key}: there is no traffic.{name}")
        if self.crossover.gateway:
            self._check_gateway(self.crossover)
        if not self.arrival.is_open:
            problem = "not with a closed loop, whose users keep their traffic table"
            raise ValueError(f"crossover: {problem}")
        return self

    def _check_gateway(self, blocks: Crossover) -> None:
        if [self.traffic[name].target for name in (blocks.a, blocks.b)] != [MAIN, SECOND]:
            advice = (
                f'expected target = "second" in traffic.{blocks.b} and not in traffic.{blocks.a}'
            )
            raise ValueError(f"crossover.gateway: {advice}")
        if (self.target.url == SIMULATED) != (self.target_of(SECOND).url == SIMULATED):
            expected = "expected the URL of a gateway in front of target.url"
            raise ValueError(f"second_target.url: {expected}: add --set second_target.url=URL")

    @property
    def has_gateway(self) -> bool:
        """Whether the second target is a gateway in front of the first."""
        return self.crossover is not None and self.crossover.gateway

    @property
    def alternating(self) -> tuple[tuple[str, str], float, float] | None:
        """The tables in alternating blocks, seconds of a block and start of the first; None without a crossover."""
        blocks = self.crossover
        if blocks is None:
            return None
        return ((blocks.a, blocks.b), blocks.block_s, self.stages.warmup)

    @property
    def targets(self) -> dict[str, Target]:
        """Return the targets by the names of their tables."""
        targets = {"target": self.target}
        if self.second_target is not None:
            targets["second_target"] = self.second_target
        return targets

    def target_of(self, name: str) -> Target:
        """Return the target that calls know as main or second."""
        target = self.second_target if name == SECOND else self.target
        assert target is not None  # _consistent
        return target

    def model_of(self, traffic: TrafficSettings) -> str:
        """Return the model that the calls of a traffic table request."""
        return traffic.model or self.target_of(traffic.target).model

    def marks(self, traffic: TrafficSettings, unmarked: Collection[str] = ()) -> Marks:
        """Return the cache marks of a traffic table that its target takes.

        `unmarked`: the targets, main or second, whose engines cache without marks, as the preflight has found.
        """
        cache = traffic.cache
        target = self.target_of(traffic.target)
        rules = PROTOCOLS[target.protocol].marks
        if cache is None or rules is None:
            return NO_MARKS
        default_ttl = rules.lives[0]
        key = cache.prompt_cache_key or None
        if traffic.target in unmarked or (not rules.at_engines and self._caches_by_itself(target)):
            return Marks(frozenset(), default_ttl, key)
        is_marked = bool(rules.places.intersection(cache.breakpoints))
        is_routed = is_marked or at_provider(target.url, PROTOCOLS[target.protocol].provider)
        if rules.has_key and is_routed and cache.prompt_cache_key is None:
            key = ""
        return Marks(rules.places, default_ttl, key)

    def may_be_unmarked(self, name: str) -> bool:
        """Return whether marks are sent to a target, main or second, whose engine may cache without them."""
        target = self.target_of(name)
        rules = PROTOCOLS[target.protocol].marks
        if rules is None or rules.at_engines or not is_self_hosted(target.url):
            return False
        tables = [traffic for traffic in self.traffic.values() if name in _targets_used(traffic)]
        return any(self._is_marked(traffic) for traffic in tables)

    def _is_marked(self, traffic: TrafficSettings) -> bool:
        """Return whether the prompts of a traffic table have marks."""
        if traffic.cache is None:
            return False
        places = self.marks(traffic).places
        return not places.isdisjoint(traffic.cache.breakpoints)

    def _caches_by_itself(self, target: Target) -> bool:
        """Return whether the scenario says that the target's cache needs no marks."""
        is_automatic = target.url == SIMULATED and self.simulated.cache.mode == "automatic"
        return is_automatic or target.engine is not None

    def diagnoses_cache(self, traffic: TrafficSettings) -> bool:
        """Return whether calls of a traffic table ask why the target's cache missed."""
        target = self.target_of(traffic.target)
        protocol = PROTOCOLS[target.protocol]
        if traffic.cache is None or not protocol.diagnoses_cache:
            return False
        if traffic.cache.diagnostics is None:
            return at_provider(target.url, protocol.provider)
        return traffic.cache.diagnostics

    def models(self) -> dict[tuple[str, str], str]:
        """Return every target and model in use, as (main or second, model), in order of first use; of each the first table that uses it."""
        tables: dict[tuple[str, str], str] = {}
        for table, traffic in self.traffic.items():
            for name, model in pattern_of(traffic).models():
                tables.setdefault((name, model or self.target_of(name).model), table)
        return tables


def _cache_problem(traffic: Traffic, protocol: str, marks: Marks) -> str:
    """Return what of a cache table the protocol cannot send, by its key; empty for nothing."""
    cache = traffic.cache
    row = PROTOCOLS[protocol]
    if cache is None:
        return ""
    chosen = f"with target.protocol = {protocol!r}"
    if cache.prompt_cache_key and not (row.marks and row.marks.has_key):
        return f"prompt_cache_key: does not apply {chosen}: leave it out"
    if cache.diagnostics and not row.diagnoses_cache:
        return f"diagnostics: does not apply {chosen}: leave it out"
    if row.marks is None or not marks.places or not cache.breakpoints:
        return ""
    return _marks_problem(cache, row.marks, chosen)


def _marks_problem(cache: Cache, rules: MarkRules, chosen: str) -> str:
    """Return why the marks of a cache table cannot be sent, by its key; empty where they can.

    `rules`: of the protocol; `chosen`: names the protocol in a message. At least one breakpoint must be a place that
    takes marks, and the lifetime one that marks there may have.
    """
    places = rules.places.intersection(cache.breakpoints)
    if not places:
        listed = ", ".join(sorted(rules.places))
        return f"breakpoints: no mark is possible at {cache.breakpoints[0]!r} {chosen}: use one of {listed}, or []"
    lives = rules.lives
    if AUTOMATIC in places:
        lives = rules.automatic_lives
    if cache.ttl is not None and cache.ttl not in lives:
        expected = " or ".join(map(repr, lives))
        about = ""
        if cache.ttl in rules.lives:
            about = ' and breakpoints = ["automatic"]'
        advice = "Leave it out for the default, or set breakpoints = [] where the engine caches without marks"
        return f"ttl: expected {expected} {chosen}{about}, got {cache.ttl!r}. {advice}"
    return ""


def _targets_used(traffic: Traffic) -> set[str]:
    """Return the targets that the calls of a traffic table may go to."""
    of_pattern = {target for target, _ in pattern_of(traffic).models()}
    return of_pattern | {traffic.hedge.target, traffic.fallback.target}


def _widen(_: Any) -> None:
    """A plugin added a choice to a table of a scenario."""
    Scenario.model_rebuild(force=True)


for kind in (plugin.PATTERNS, plugin.PROTOCOLS, plugin.OBJECTIVES):
    plugin.subscribe(kind, _widen)


def load_plugins(argument: str) -> None:
    """Load the plugins that a scenario names: the user allowed it."""
    path = find(argument)
    names = read(path).get("plugins")
    if not isinstance(names, list):  # which `parse` refuses
        return
    for name in names:
        if isinstance(name, str):
            plugin.load(name, path.parent, f"{path}: plugins")


def load(
    argument: str,
    overrides: Sequence[tuple[str, Any]] = (),
    spelt: Mapping[str, str] | None = None,
    *,
    of_tasks: bool = False,
) -> Scenario:
    """Return the scenario that a file and `overrides` (dotted key, value) over it make, checked; the last override wins.

    `argument`: a file or the name of a packaged scenario. `spelt`: how a key was given on the command line, where not by
    --set. `of_tasks`: a locustfile may take the place of the file; then the overrides are all. A name and, for tasks, a
    traffic table are added where they are missing. Raises ScenarioError, and UsageError for an override of a traffic
    table that is not there.
    """
    path = find(argument)
    tree: dict[str, Any] = {}
    if not of_tasks or path.suffix != ".py":
        tree = read(path)
    is_empty = not tree and not of_tasks
    tree.setdefault("name", _name_of_file(path.stem))
    arrival = tree.get("arrival")
    if isinstance(arrival, dict) and arrival.get("process") == TASKS:
        of_tasks = True
    if of_tasks:
        # Tasks need no traffic table, and may name one by an override.
        tree.setdefault("traffic", {"main": {}})
    else:
        tree.setdefault("traffic", {})
    overridden = {}
    for key, value in overrides:
        if not of_tasks:
            _refuse_new_traffic(tree["traffic"], key)
        put(tree, key, value)
        overridden[key] = f"--set {key}"
    if spelt is not None:
        overridden.update(spelt)
    if not of_tasks:
        tree["traffic"] = _with_weight(tree["traffic"])
    if is_empty:
        raise ScenarioError(f"{path}: {_EMPTY}")
    plugin.needed(tree.get("plugins"), f"{path}: plugins")
    return parse(tree, str(path), overridden)


def _with_weight(tables: Any) -> Any:
    """Return the traffic tables without those of weight 0, which are off; all of them where none would be left."""
    if not isinstance(tables, dict):
        return tables
    enabled = {name: table for name, table in tables.items() if not _is_off(table)}
    return enabled or tables


def _is_off(table: Any) -> bool:
    """Return whether a traffic table has no share of the arrivals."""
    if not isinstance(table, Mapping):
        return False
    weight = table.get("weight")
    return isinstance(weight, int | float) and not isinstance(weight, bool) and weight == 0


def _name_of_file(stem: str) -> str:
    """Return the name of a scenario that names itself nowhere: what a name may have of its file's."""
    return re.sub("[^a-z0-9_-]+", "-", stem.lower()).strip("-_")[:48] or "scenario"


def _refuse_new_traffic(tables: Any, key: str) -> None:
    """Refuse the key of a traffic table that is not there: a slip in its name would add a table to the traffic."""
    parts = key.split(".")
    if parts[0] != _TRAFFIC or len(parts) < len(("traffic", "NAME", "key")):
        return
    name = parts[1]
    if not isinstance(tables, Mapping):
        return
    if tables and name != "*" and name not in tables:
        near = nearest(name, list(tables)) or f"; the scenario has {', '.join(tables)}"
        raise UsageError(f"--set {key[:200]}: there is no traffic.{name[:80]}{near}")


def parse(
    tree: Mapping[str, Any], source: str, overridden: Mapping[str, str] | None = None
) -> Scenario:
    """Check a tree of plain values; errors name `source`, or how a key was given on the command line."""
    errors: list[Any] = list(_secrets(tree, ()))
    try:
        if not errors:
            return Scenario.model_validate(tree)
    except ValidationError as error:
        errors = _causes(error.errors())
    lines = [_explain(cause, source, overridden or {}) for cause in errors[:MANY]]
    if len(errors) > MANY:
        lines.append(f"{source}: and {len(errors) - MANY:,} more errors")
    raise ScenarioError("\n".join(lines))


def _causes(errors: list[Any]) -> list[Any]:
    """Return the errors without "no traffic" where a table has a name like it: that is the mistake."""
    extra = [str(error["loc"][0]) for error in errors if error["type"] == "extra_forbidden"]
    if not near_names(_TRAFFIC, extra):
        return errors
    return [error for error in errors if error["loc"] != (_TRAFFIC,)]


def _secrets(tree: Any, loc: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """Yield an error, as pydantic's, for each literal that looks like a secret, without its value. `loc`: the keys above `tree`."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _secrets(value, (*loc, str(key)))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _secrets(value, loc)
    elif isinstance(tree, str | int) and not isinstance(tree, bool):
        kind = secret_like(loc[-1], tree)
        # Only a key that users name can be a secret by its name: those of the scenario's tables are known.
        is_users = len(loc) > _TABLE_LEVELS or not {"headers", "body"}.isdisjoint(loc[:-1])
        if kind and (kind != "name" or is_users):
            advice = f"secrets come from the environment: {_INSTEAD[kind]}"
            error = f"looks like a secret by its {kind}, and {advice}"
            yield {"loc": loc, "type": "value_error", "ctx": {"error": error}}


def scaled(stages: Stages, duration_s: float) -> dict[str, float]:
    """Return the stages of a run of another length, all in proportion."""
    factor = duration_s / stages.duration_s
    lengths = {"duration_s": duration_s, "cooldown_s": stages.cooldown_s * factor}
    if stages.warmup_s is not None:
        lengths["warmup_s"] = stages.warmup_s * factor
    return lengths


def override(text: str) -> tuple[str, Any]:
    """`table.key=value` of the command line: the value as TOML, or as a plain string where it is no TOML."""
    left, equals, right = text.partition("=")
    key = left.strip()
    value = right.strip()
    is_key = _KEY.fullmatch(key) is not None
    if not equals or not is_key or key.count(".") > DEEPEST:
        # The text may be a secret: only what can be a key is repeated.
        about = ""
        if is_key and not secret_like("", left):
            about = f" {left[:200].strip()}"
        raise UsageError(
            f"--set{about}: expected table.key=value, for example --set arrival.rate_per_s=20"
        )
    try:
        return key, toml(f"v = {value}")["v"]
    except TOMLDecodeError:
        return key, value
    except ValueError as error:
        reason = re.sub(r"^(v[.:]|line 1:) ?", "", str(error))
        raise UsageError(f"--set {key}: {reason}") from None


def spelled(key: str, value: Any) -> str:
    """Return the text that `override` reads back as this value."""
    is_plain = isinstance(value, str) and is_one_line(value)
    if is_plain and override(f"{key}={value}") == (key, value):
        return f"{key}={value}"
    return f"{key}={as_toml(value)}"


def as_toml(value: Any) -> str:
    """Return a plain value as TOML, tables inline; None has no TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, Mapping):
        pairs = []
        for key, item in value.items():
            is_bare = re.fullmatch(r"[A-Za-z0-9_-]+", key) is not None
            pairs.append(f"{key if is_bare else _quoted(key)} = {as_toml(item)}")
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bool):
        return json.dumps(value)
    return str(value)


def _quoted(text: str) -> str:
    """Return a text as TOML, whose escapes of characters beyond 16 bits are not those of JSON."""
    quoted = ""
    for letter in json.dumps(text, ensure_ascii=False):
        if harmless(letter):
            quoted += letter
        else:
            quoted += f"\\u{ord(letter):04x}"
    return quoted


def toml_file(tree: Mapping[str, Any]) -> str:
    """Return a scenario file."""
    return "".join(f"{key} = {as_toml(value)}\n" for key, value in tree.items())


def put(tree: dict[str, Any], dotted: str, value: Any) -> None:
    """Set one value in a tree of tables; `*` is every table there."""
    *tables, key = dotted.split(".")
    nodes: list[Any] = [tree]
    for name in tables:
        children: list[Any] = []
        for node in nodes:
            if name == "*":
                children += node.values()
            else:
                children.append(node.setdefault(name, {}))
        nodes = children
        if not all(isinstance(node, dict) for node in nodes):
            raise UsageError(f"--set {dotted}: {name} is a value, not a table")
    for node in nodes:
        node[key] = deepcopy(value)  # a later override may change it


def _explain(error: Any, source: str, overridden: Mapping[str, str]) -> str:
    """Return the line about one error of a scenario: where it is, what was expected, and what may have been meant.

    `error`: pydantic's, or one of `_secrets`. `source`: the file; `overridden`: by key how it was given on the command
    line. No value is repeated that may have a secret.
    """
    # A key that is none of a table's choices has this after its name.
    loc = [str(part) for part in error["loc"] if part != "[key]"]
    value = error.get("input")
    kind = error["type"]
    text = str(error.get("ctx", {}).get("error", ""))
    # A table's own check names the key it is about first: "hedge: has no meaning with ...".
    inner, colon, rest = text.partition(": ")
    if kind == "value_error" and colon and inner.split(".")[0] in names_at(Scenario, loc):
        loc = [*loc, *inner.split(".")]
        text = rest
    where = _where(loc, source, overridden, text, kind)
    if kind == "value_error":
        message = f"{where}: {text}"
        # No secret in a URL is repeated, and nothing that `where` shows.
        if isinstance(value, str):
            is_shown = "@" not in value and "?" not in value and repr(value) not in where
        else:
            is_shown = isinstance(value, int | float)
        if is_shown:
            message = f"{message} (got {value!r})"
        return message
    if kind == "too_short" and loc == [_TRAFFIC]:
        return f"{where}: {_NO_TRAFFIC}"
    if kind == "extra_forbidden":
        return f"{where}: {problem(error, _keys_like(loc, value), _elsewhere(loc))}"
    return f"{where}: {problem(error, names_at(Scenario, loc[:-1]))}{_instead(loc, kind, value)}"


def _keys_like(loc: Sequence[str], value: Any) -> Sequence[str]:
    """Return the keys beside an unknown one that may have been meant; only tables where it is a table."""
    names = names_at(Scenario, loc[:-1])
    if not isinstance(value, Mapping):
        return names
    tables = []
    for name in names:
        field = _field_at([*loc[:-1], name])
        if field is not None and tables_in(field.annotation):
            tables.append(name)
    return tables or names


def _where(
    loc: Sequence[str], source: str, overridden: Mapping[str, str], text: str, kind: str
) -> str:
    """Return the file and key of an error, or the option that gave the key."""
    where = f"{source}: {'.'.join(loc)[:200] or 'scenario'}"
    for key, spelt in overridden.items():
        parts = key.split(".")
        if not all(part in (name, "*") for part, name in zip(parts, loc, strict=False)):
            continue
        if len(parts) < len(loc):
            where = f"{spelt}: {'.'.join(loc[len(parts) :])}"
        elif len(parts) == len(loc) or (text and loc):
            where = spelt
        elif kind == "extra_forbidden":
            where = f"{spelt}: {'.'.join(loc)}"
    return where


def _instead(loc: Sequence[str], kind: str, value: Any) -> str:
    """Return what to write instead of a value of the wrong type, as the end of a message; empty where that is not known."""
    if kind in _NO_TABLE and not isinstance(value, list | dict):
        return _instead_of_a_table(loc)
    if kind in _NO_NUMBER and isinstance(value, str):
        return _instead_of_a_text(loc[-1], value)
    return ""


def _instead_of_a_table(loc: Sequence[str]) -> str:
    if loc[:1] == [_TRAFFIC] and len(loc) == len(("traffic", "NAME")):
        return ": keys belong to a table with a name, [traffic.main]"
    field = _field_at(loc)
    if field is None:
        return ""
    tables = tables_in(field.annotation)
    if not tables:
        return ""
    path = [*loc]
    if get_origin(field.annotation) in {Mapping, dict}:
        path.append("NAME")
    path.append(next(iter(tables[0].model_fields)))
    return f": set one of its keys, such as {'.'.join(path)}"


def _instead_of_a_text(key: str, text: str) -> str:
    """Return what number to write in place of a text with a unit, as the end of a message; empty where that is not known.

    By the unit of the key: `5m` for a key in seconds is 300, `1%` of a share 0.01.
    """
    number = number_and_unit(text)
    if number is None:
        return ""
    value, unit = number
    if key.endswith("_s") and not key.endswith("per_s") and unit in SECONDS:
        return f": write {value * SECONDS[unit]:.10g}, the seconds without a unit"
    if key.endswith("_ms") and unit in SECONDS:
        if unit:
            value *= 1000 * SECONDS[unit]
        return f": write {value:.10g}, the milliseconds without a unit"
    if unit not in {"", "s", "ms", "%"}:
        return ""
    if unit == "%":
        value /= 100
    return f": write {value:.10g}"


def _field_at(loc: Sequence[str]) -> Any:
    """Return the field of the model that a key is; None where it is none."""
    field = None
    table: type[BaseModel] | None = Scenario
    for part in loc:
        if table is None:
            return None
        field = table.model_fields.get(part)
        if field is None:
            return None
        inner = tables_in(field.annotation)
        has_names = get_origin(field.annotation) in {Mapping, dict, list, tuple}
        table = None
        if inner and not has_names:
            table = inner[0]
    return field


def _elsewhere(loc: Sequence[str]) -> str:
    """Return the suggestion of the key under another name or in another table; empty where the table's own names suffice.

    `loc`: the unknown key, with its tables. A name of other tools is proposed as ours; a key of another table with the
    table, if it is near or the only one.
    """
    if loc[0] in _REPORTED:
        return "; write each bound as a table [slo.NAME] with gate = false"
    siblings = names_at(Scenario, loc[:-1])
    alias = _ALSO_CALLED.get(loc[-1], "")
    if alias in siblings:
        return f"; did you mean {alias}?"
    path = _path_of(loc)
    if not path and alias:
        path = _path_of([*loc[:-1], alias])
    if not path and not near_names(loc[-1], siblings):
        paths = [keys for keys in _keys(Scenario) if keys[-1] == loc[-1]]
        if len(paths) == 1:
            path = ".".join(paths[0])
    if not path:
        return ""
    return f"; did you mean {path}?"


def _path_of(loc: Sequence[str]) -> str:
    """Return the key of this name in the nearest table that has one, with its tables; empty where none has."""
    for depth in reversed(range(len(loc))):
        for path in _keys(Scenario):
            is_whole = depth > 0 or path[-len(loc) :] == tuple(loc)
            if path[-1] == loc[-1] and is_whole and _begins(path, loc[:depth]):
                return ".".join((*loc[:depth], *path[depth:]))
    return ""


def _begins(path: Sequence[str], loc: Sequence[str]) -> bool:
    """Return whether the path of a key is longer than `loc` and begins with it."""
    return len(path) > len(loc) and all(a in {b, "NAME"} for a, b in zip(path, loc, strict=False))


def _keys(table: type[BaseModel], parents: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield every key below a table, as parts; NAME stands for a name or number that the user chooses."""
    for key, field in table.model_fields.items():
        path = (*parents, key)
        tables = tables_in(field.annotation)
        if not tables:
            yield path
        elif get_origin(field.annotation) in {Mapping, tuple}:
            yield from _keys(tables[0], (*path, "NAME"))
        else:
            yield from _keys(tables[0], path)
