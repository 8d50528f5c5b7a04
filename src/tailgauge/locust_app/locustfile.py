"""What a locustfile and Locust's options ask for: one scenario, one target, resolved as for `tailgauge run`.

The target, the first that is named: --host or the web page's start form; `--set target.url`; `host` on the class;
`target.url` in the scenario. Without any of them nothing is sent.

Also checks the users and the start form, and explains options that only `tailgauge run` has.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from locust import FastHttpUser, HttpUser, User, constant, task

from tailgauge.errors import UsageError
from tailgauge.locust_app.streaming_user import StreamingUser
from tailgauge.plan.resolve import Settings, resolve
from tailgauge.protocols.additions import variables
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.scenario.model import load_plugins, override
from tailgauge.scenario.packaged import find, read
from tailgauge.schedule.settings import TASKS
from tailgauge.thresholds import ENDLESS_S

URL = "target.url"


class Traffic(User):
    """A placeholder with a locustfile's pattern and default scenario; it sends nothing."""

    abstract = True
    scenario = ""  # default of --scenario
    wait_time = constant(3600)

    @task
    def scheduled_elsewhere(self) -> None:
        """Requests are sent by the dispatcher, at their scheduled times."""


def of_tailgauge(environment: Any) -> list[Any]:
    """Return the chosen user classes whose requests are ours."""
    kinds = (Traffic, StreamingUser)
    return [user_class for user_class in environment.user_classes if issubclass(user_class, kinds)]


def is_of_tasks(classes: Sequence[Any]) -> bool:
    """Return whether tasks make the requests, and no schedule; UsageError where both would."""
    has_schedule = any(issubclass(user_class, Traffic) for user_class in classes)
    if has_schedule and len(classes) > 1:
        names = ", ".join(user_class.__name__ for user_class in classes)
        problem = f"expected one user class, got {len(classes)} ({names})"
        raise UsageError(f"{problem}: name one, as in `locust -f FILE CLASS`")
    return not has_schedule


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line; whoever reaches the web page could change Locust's own copy of them."""

    scenario: str
    sets: tuple[str, ...]
    out: Path
    allows_plugins: bool = False


def settings_of(environment: Any, options: Options, host: str | None) -> Settings:
    """Return the run that the chosen classes and the options ask for, resolved and checked. Raises TailgaugeError.

    `host`: of --host or the start form, None without one. With classes of `Traffic` a scenario's schedule drives the
    load; with a StreamingUser its tasks do, the scenario may be missing, and each class is a traffic table. --set goes
    over all of it.
    """
    classes = of_tailgauge(environment)
    of_tasks = is_of_tasks(classes)
    locustfile = environment.parsed_locustfiles[0] if of_tasks else ""
    argument = options.scenario or _same(classes, "scenario") or locustfile
    has_scenario = not of_tasks or argument != locustfile
    tree: dict[str, Any] = {}
    if has_scenario:
        tree = read(find(argument))
    if tree and options.allows_plugins:
        load_plugins(argument)
    sets = [override(text) for text in options.sets]
    url_by_scenario = _table(tree, "target").get("url")
    # Overrides, and by their keys how each was given, for messages.
    pairs, spelt = _target(classes, host, dict(sets).get(URL), url_by_scenario)
    if of_tasks:
        _check_tasks(environment, classes)
        posts = read_posts(environment.parsed_locustfiles, classes)
        target_pairs, target_spelt = _target_of_classes(classes, _table(tree, "target"), posts)
        pairs = target_pairs + pairs  # the address is the last word
        spelt |= target_spelt
        if not has_scenario:
            pairs.append(("name", _name(environment.locustfile)))
        warmup_s = _table(tree, "stages").get("warmup_s", 0.0)
        pairs += [
            ("arrival", {"process": TASKS}),
            ("stages", {"duration_s": ENDLESS_S, "warmup_s": warmup_s}),
            ("traffic", _traffic(classes, _table(tree, "target"), posts)),
        ]
        for user_class in classes:
            spelt[f"traffic.{user_class.__name__}"] = f"{user_class.__name__}.traffic"
    return resolve(
        argument,
        [*pairs, *sets],
        options.out,
        spelt=spelt,
        workers=_expected_workers(environment),
        of_tasks=of_tasks,
    )


def _name(locustfile: str) -> str:
    """Return the name of a run after its locustfile."""
    stem = re.sub("[^a-z0-9]+", "-", Path(locustfile).stem.lower())
    return stem.strip("-")[:48] or TASKS


def _target_of_classes(
    classes: Sequence[Any], target_table: Mapping[str, Any], posts: Posts
) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """Return the overrides of [target] by the attributes of the classes, and by their keys how each was given.

    `target_table`: of the scenario. Without a protocol on the class or in the scenario, it is that of the paths in the
    locustfile, which `posts` has.
    """
    values = dict(_same(classes, "target"))
    protocol = _same(classes, "protocol")
    if protocol is None and "protocol" not in target_table:
        protocol = posts.protocol
    if protocol:
        values["protocol"] = protocol
    class_name = classes[0].__name__
    pairs = []
    spelt = {}
    for key, value in reversed(values.items()):
        pairs.append((f"target.{key}", value))
        spelt[f"target.{key}"] = f"{class_name}.target.{key}"
    if "protocol" in values:
        spelt["target.protocol"] = f"{class_name}.protocol"
    return pairs, spelt


def _traffic(
    classes: Sequence[Any], target_table: Mapping[str, Any], posts: Posts
) -> dict[str, Any]:
    """Return a traffic table for each class. Its model: of the class, of `traffic`, or of the calls in the locustfile."""
    default_model = None
    if "model" not in target_table:
        default_model = posts.model
    tables: dict[str, Any] = {}
    for user_class in classes:
        model = user_class.model or default_model
        table: dict[str, Any] = {"model": model} if model else {}
        table |= user_class.traffic
        if user_class.model is not None:
            table["model"] = user_class.model
        tables[user_class.__name__] = table
    return tables


def _expected_workers(environment: Any) -> int:
    """Return how many workers the command line names, or more where more have connected."""
    named = getattr(getattr(environment, "parsed_options", None), "expect_workers", 1)
    connected = getattr(getattr(environment, "runner", None), "worker_count", 0)
    return max(1, named, connected)


def _check_tasks(environment: Any, classes: Sequence[Any]) -> None:
    """Raise UsageError for users whose requests would not come through our client, or not at all."""
    options = getattr(environment, "parsed_options", None)
    has_shape = getattr(environment, "shape_class", None) is not None
    has_no_users = getattr(options, "num_users", None) == 0 and not has_shape
    if has_no_users and getattr(options, "headless", False):
        raise UsageError("-u 0 starts no user, and only users make requests: use -u 1 or more")
    for user_class in classes:
        bases = user_class.__mro__
        for base in bases[: bases.index(StreamingUser)]:
            if issubclass(base, (HttpUser, FastHttpUser)) and not issubclass(base, StreamingUser):
                name = base.__name__
                problem = (
                    f"{name} comes first, so self.client is that of {name} and nothing is measured"
                )
                raise UsageError(f"class {user_class.__name__}: {problem}: leave out {name}")
        _check_functions(user_class)


def _check_functions(holder: Any) -> None:
    """Raise UsageError for a task that Locust would call and never await. `holder`: a user, or a set of tasks."""
    for user_task in holder.tasks:
        if inspect.isclass(user_task):
            _check_functions(user_task)
        elif inspect.iscoroutinefunction(user_task):
            hint = "Locust calls tasks as plain functions: write def without async"
            raise UsageError(f"{holder.__name__}.{user_task.__name__}: {hint}")


def explain_options(parser: Any) -> None:
    """Let a parser say where to set what is an option of `tailgauge run` alone."""
    report_error = parser.error

    def error(message: str) -> None:
        for option, place in _ELSEWHERE.items():
            if re.search(rf"arguments:.*{option}\b", message):
                message = f"{option}: {place}"
                break
        report_error(message)

    parser.error = error


_ELSEWHERE = {
    "--slo": "here objectives are in a file of --scenario, or --set 'slo.a=ttft p95 < 800ms'",
    "--model": "here it is the model on the class, or --set target.model=NAME",
    "--dry-run": "only `tailgauge run` has dry runs; --host simulated uses a simulated endpoint here",
}


@dataclass(frozen=True, slots=True)
class Posts:
    """What the text of a locustfile says of its calls of `client.post`; None where it says nothing, or two things."""

    protocol: str | None = None
    model: str | None = None


def read_posts(files: Sequence[str], classes: Sequence[Any]) -> Posts:
    """Read the paths and the models in the text of a locustfile, for the calls before the first task."""
    protocols: set[str] = set()
    models: list[str] = []
    for file in files:
        try:
            tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                protocols |= _protocols_at(node.value)
            elif isinstance(node, ast.Dict):
                models += _models_in(node, classes)
    return Posts(
        protocol=protocols.pop() if len(protocols) == 1 else None,
        model=models[0] if models else None,
    )


def _protocols_at(text: str) -> set[str]:
    """Return the protocols whose calls go to a path."""
    path = text.partition("?")[0]
    if "/" not in path:
        return set()
    rows = [row for row in PROTOCOLS.values() if row.call_path]
    return {row.name for row in rows if path.endswith(row.call_path)}


def _models_in(body: ast.Dict, classes: Sequence[Any]) -> list[str]:
    """Return the models that a dictionary names: texts, or names of the locustfile that have one."""
    models = []
    for key, value in zip(body.keys, body.values, strict=True):
        if not isinstance(key, ast.Constant) or key.value != "model":
            continue
        model: Any = None
        if isinstance(value, ast.Constant):
            model = value.value
        elif isinstance(value, ast.Name):
            model = _value_of(value.id, classes)
        if isinstance(model, str) and model:
            models.append(model)
    return models


def _value_of(name: str, classes: Sequence[Any]) -> Any:
    """Return the value of a name in the modules of the classes; None without one."""
    for user_class in classes:
        names = vars(sys.modules.get(user_class.__module__, object))
        if name in names:
            return names[name]
    return None


def _table(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of a scenario that is not checked yet; empty if it is none."""
    table = tree.get(name)
    if not isinstance(table, dict):
        return {}
    return table


def _target(
    classes: Sequence[Any], host: str | None, by_set: str | None, by_scenario: str | None
) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """Return the override of the target's address, and how it was named; none where the scenario or --set has it.

    `host`: of --host; `by_set`: of --set; `by_scenario`: of the scenario's file. UsageError where two name different
    targets, NoTargetError where none does.
    """
    if host:
        if by_set not in {None, host}:
            raise UsageError(
                f"two targets are named: {host} as host and {by_set} by --set {URL}: name one"
            )
        return [(URL, host)], {URL: "--host"}
    if by_set is not None:
        return [], {}
    class_host = _same(classes, "host")
    attribute = f"{classes[0].__name__}.host"
    if class_host:
        if by_scenario not in {None, SIMULATED, class_host}:
            targets = f"{class_host} by {attribute} and {by_scenario} by the scenario"
            raise UsageError(f"two targets are named: {targets}: choose with --host")
        return [(URL, class_host)], {URL: attribute}
    if by_scenario is None:
        hint = (
            f'set {attribute} = "http://...", or add --host URL (`simulated`: a simulated endpoint)'
        )
        raise NoTargetError(f"no target is named: {hint}")
    return [], {}


class NoTargetError(UsageError):
    """Nothing says where the traffic goes."""


def _same(classes: Sequence[Any], attribute: str) -> Any:
    """Return the value of a class attribute; UsageError if the classes differ, because a run has one of each."""
    value = getattr(classes[0], attribute)
    for user_class in classes:
        if getattr(user_class, attribute) != value:
            names = f"{classes[0].__name__}.{attribute} and {user_class.__name__}.{attribute}"
            hint = "set both alike, or start the classes one by one"
            raise UsageError(f"{names} differ, and a run has one target: {hint}")
    return value


def refuses_start(
    environment: Any,
    options: Options,
    host: str | None,
    at_launch: Settings | None,
    running: Settings | None,
) -> str:
    """Return why the start form's host cannot be the target; "" where it can. `at_launch`: settings of the command line."""
    try:
        scenario = settings_of(environment, options, host).scenario
    except UsageError as error:
        return str(error)
    target = scenario.target
    if running is not None and target.url != running.scenario.target.url:
        return f"the run in progress has the target {running.scenario.target.url}: stop it first"
    secrets = [key for key, _ in variables(scenario.model_dump(), "")]
    if target.api_key_env:
        secrets.insert(0, f"target.api_key_env ({target.api_key_env})")
    is_new = at_launch is None or target.url != at_launch.scenario.target.url
    if secrets and is_new:
        return (
            f"{secrets[0]} would send a secret to {target.url}: "
            f"restart Locust with --host {target.url}"
        )
    return ""
