"""What a locustfile and Locust's options ask for: one scenario, one target, resolved as for `tailgauge run`.

The target, the first that is named: --host or the web page's start form; `--set target.url`; `host` on the class;
`target.url` in the scenario. Without any of them nothing is sent.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Sequence
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
    """The chosen user classes whose requests are ours."""
    return [c for c in environment.user_classes if issubclass(c, (Traffic, StreamingUser))]


def is_of_tasks(classes: Sequence[Any]) -> bool:
    """Whether tasks make the requests, and no schedule; UsageError where both would."""
    scheduled = [c for c in classes if issubclass(c, Traffic)]
    if scheduled and len(classes) > 1:
        names = ", ".join(c.__name__ for c in classes)
        got = f"got {len(classes)} ({names})"
        raise UsageError(f"expected one user class, {got}: name one, as in `locust -f FILE CLASS`")
    return not scheduled


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line; whoever reaches the web page could change Locust's own copy of them."""

    scenario: str
    sets: tuple[str, ...]
    out: Path
    allows_plugins: bool = False


def settings_of(environment: Any, options: Options, host: str | None) -> Settings:
    """The run that the chosen classes and the options ask for. `host`: of --host or the start form. Raises TailgaugeError."""
    classes = of_tailgauge(environment)
    of_tasks = is_of_tasks(classes)
    file = environment.parsed_locustfiles[0] if of_tasks else ""
    argument = options.scenario or _same(classes, "scenario") or file
    tree = {} if argument == file and of_tasks else read(find(argument))
    if tree and options.allows_plugins:
        load_plugins(argument)
    sets = [override(text) for text in options.sets]
    pairs, spelt = _target(classes, host, dict(sets).get(URL), _table(tree, "target").get("url"))
    if of_tasks:
        _check_tasks(environment, classes)
        stem = re.sub("[^a-z0-9]+", "-", Path(environment.locustfile).stem.lower()).strip("-")[:48]
        pairs += [("name", stem or TASKS)] if argument == file else []
        of_target = _table(tree, "target")
        posts = read_posts(environment.parsed_locustfiles, classes)
        protocol = {"protocol": _same(classes, "protocol")}
        if protocol["protocol"] is None and "protocol" not in of_target:
            protocol["protocol"] = posts.protocol
        for key, value in {
            **_same(classes, "target"),
            **(protocol if protocol["protocol"] else {}),
        }.items():
            pairs.insert(0, (f"target.{key}", value))  # the address is the last word
            spelt[f"target.{key}"] = (
                f"{classes[0].__name__}.{'' if key in protocol else 'target.'}{key}"
            )
        warmup_s = _table(tree, "stages").get("warmup_s", 0.0)
        stages = {"duration_s": ENDLESS_S, "warmup_s": warmup_s}
        pairs += [("arrival", {"process": TASKS}), ("stages", stages)]
        default_model = None if "model" in of_target else posts.model
        traffic: dict[str, Any] = {}
        for user_class in classes:
            model = user_class.model or default_model
            traffic[user_class.__name__] = {
                **({"model": model} if model else {}),
                **user_class.traffic,
            }
            if user_class.model is not None:
                traffic[user_class.__name__]["model"] = user_class.model
        pairs.append(("traffic", traffic))
        spelt |= {f"traffic.{c.__name__}": f"{c.__name__}.traffic" for c in classes}
    workers = _expected_workers(environment)
    return resolve(
        argument, [*pairs, *sets], options.out, spelt=spelt, workers=workers, of_tasks=of_tasks
    )


def _expected_workers(environment: Any) -> int:
    """Return how many workers the command line names, or more where more have connected."""
    named = getattr(getattr(environment, "parsed_options", None), "expect_workers", 1)
    connected = getattr(getattr(environment, "runner", None), "worker_count", 0)
    return max(1, named, connected)


def _check_tasks(environment: Any, classes: Sequence[Any]) -> None:
    """Raise UsageError for users whose requests would not come through our client, or not at all."""
    asked = getattr(environment, "parsed_options", None)
    has_shape = getattr(environment, "shape_class", None) is not None
    if (
        getattr(asked, "headless", False)
        and getattr(asked, "num_users", None) == 0
        and not has_shape
    ):
        raise UsageError("-u 0 starts no user, and users make the requests: -u 1")
    for user_class in classes:
        line = user_class.__mro__
        for base in line[: line.index(StreamingUser)]:
            if issubclass(base, (HttpUser, FastHttpUser)) and not issubclass(base, StreamingUser):
                why = f"{base.__name__} stands first, so that self.client is its own and nothing is measured"
                raise UsageError(f"class {user_class.__name__}: {why}: leave out {base.__name__}")
        _check_functions(user_class)


def _check_functions(holder: Any) -> None:
    """Raise UsageError for a task that Locust would call and never await. `holder`: a user, or a set of tasks."""
    for one in holder.tasks:
        if inspect.isclass(one):
            _check_functions(one)
        elif inspect.iscoroutinefunction(one):
            how = "Locust calls tasks as plain functions: write def without async"
            raise UsageError(f"{holder.__name__}.{one.__name__}: {how}")


def explain_options(parser: Any) -> None:
    """Let a parser say where to set what is an option of `tailgauge run` alone."""
    usual = parser.error

    def error(message: str) -> None:
        named = [option for option in _ELSEWHERE if re.search(rf"arguments:.*{option}\b", message)]
        usual(f"{named[0]}: {_ELSEWHERE[named[0]]}" if named else message)

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
    return Posts(protocols.pop() if len(protocols) == 1 else None, models[0] if models else None)


def _protocols_at(path: str) -> set[str]:
    """The protocols whose calls go to a path."""
    path = path.partition("?")[0]
    rows = [row for row in PROTOCOLS.values() if row.call_path]
    return {row.name for row in rows if "/" in path and path.endswith(row.call_path)}


def _models_in(body: ast.Dict, classes: Sequence[Any]) -> list[str]:
    """The model that a dictionary names: a text, or a name of the locustfile that has one."""
    found = []
    for key, value in zip(body.keys, body.values, strict=True):
        if not (isinstance(key, ast.Constant) and key.value == "model"):
            continue
        model = value.value if isinstance(value, ast.Constant) else None
        if isinstance(value, ast.Name):
            spaces = [vars(sys.modules.get(c.__module__, object)) for c in classes]
            model = next((space[value.id] for space in spaces if value.id in space), None)
        if isinstance(model, str) and model:
            found.append(model)
    return found


def _table(tree: dict[str, Any], name: str) -> dict[str, Any]:
    """A table of a scenario that is not checked yet."""
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def _target(
    classes: Sequence[Any], host: str | None, by_set: str | None, by_scenario: str | None
) -> tuple[list[tuple[str, Any]], dict[str, str]]:
    """The override of the target's address, and how it was named."""
    if host:
        if by_set not in {None, host}:
            raise UsageError(
                f"two targets are named: {host} as host and {by_set} by --set {URL}: name one"
            )
        return [(URL, host)], {URL: "--host"}
    if by_set is not None:
        return [], {}
    of_class = _same(classes, "host")
    where = f"{classes[0].__name__}.host"
    if of_class:
        if by_scenario not in {None, SIMULATED, of_class}:
            both = f"{of_class} by {where} and {by_scenario} by the scenario"
            raise UsageError(f"two targets are named: {both}: choose with --host")
        return [(URL, of_class)], {URL: where}
    if by_scenario is None:
        how = f'set {where} = "http://...", or add --host URL (`simulated`: a simulated endpoint)'
        raise NoTargetError(f"no target is named: {how}")
    return [], {}


class NoTargetError(UsageError):
    """Nothing says where the traffic goes."""


def _same(classes: Sequence[Any], attribute: str) -> Any:
    """The value of a class attribute; a run has one of each."""
    values = [getattr(c, attribute) for c in classes]
    for one, value in zip(classes, values, strict=True):
        if value != values[0]:
            names = f"{classes[0].__name__}.{attribute} and {one.__name__}.{attribute}"
            how = "set both alike, or start the classes one by one"
            raise UsageError(f"{names} differ, and a run has one target: {how}")
    return values[0]


def refuses_start(
    environment: Any,
    options: Options,
    host: str | None,
    first: Settings | None,
    running: Settings | None,
) -> str:
    """Why the start form's host cannot be the target; "" where it can. `first`: what the command line asked for."""
    try:
        scenario = settings_of(environment, options, host).scenario
    except UsageError as error:
        return str(error)
    asked = scenario.target
    if running is not None and asked.url != running.scenario.target.url:
        return f"the run in progress has the target {running.scenario.target.url}: stop it first"
    keys = [f"target.api_key_env ({asked.api_key_env})"] if asked.api_key_env else []
    keys += [key for key, _ in variables(scenario.model_dump(), "")]
    if keys and (first is None or asked.url != first.scenario.target.url):
        return (
            f"{keys[0]} would send a secret to {asked.url}: restart Locust with --host {asked.url}"
        )
    return ""
