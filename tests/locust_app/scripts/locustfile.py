"""Script: which target and which run a locustfile and Locust's options name."""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from locust import FastHttpUser, HttpUser, TaskSet
from starting.script import case, print_facts

from tailgauge import StreamingUser
from tailgauge.errors import TailgaugeError
from tailgauge.locust_app.locustfile import (
    Options,
    Traffic,
    explain_options,
    refuses_start,
    settings_of,
)

FOLDER = Path(sys.argv[1])
FILE = FOLDER / "My chat.py"
FILE.write_text("")
A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
REMOTE = FOLDER / "remote.toml"
REMOTE.write_text(
    f'[target]\nurl = "{B}"\n[arrival]\nrate_per_s = 5\n[stages]\nduration_s = 20\nwarmup_s = 2\n[traffic.chat]\n'
)
NOWHERE = FOLDER / "nowhere.toml"
NOWHERE.write_text("[arrival]\nrate_per_s = 5\n")
KEYED = FOLDER / "keyed.toml"
KEYED.write_text('[target]\nprotocol = "openai"\napi_key_env = "PATH"\n')


def streaming(**attributes: Any) -> Any:
    return type("Chat", (StreamingUser,), {"tasks": [print], **attributes})


def scheduled(**attributes: Any) -> Any:
    return type("Streaming", (Traffic,), {"scenario": "streaming", **attributes})


def environment(*classes: Any) -> Any:
    return SimpleNamespace(
        user_classes=list(classes), parsed_locustfiles=[str(FILE)], locustfile=FILE.name
    )


def options(scenario: str | Path = "", *sets: str) -> Options:
    return Options(str(scenario), sets, FOLDER)


def target(
    *classes: Any, host: str | None = None, scenario: str | Path = "", sets: tuple[str, ...] = ()
) -> str:
    """Address of the target, or the error."""
    try:
        return settings_of(
            environment(*classes), options(scenario, *sets), host
        ).scenario.target.url
    except TailgaugeError as error:
        return f"{type(error).__name__}: {error}"


@case
def targets() -> dict[str, str]:
    by_set = (f"target.url={B}",)
    other = type("Talk", (StreamingUser,), {"tasks": [print], "host": B})
    found: dict[str, Callable[[], str]] = {
        "class": lambda: target(streaming(host=A)),
        "class of a schedule": lambda: target(scheduled(host=A)),
        "option before class": lambda: target(streaming(host=B), host=A),
        "option before class of a schedule": lambda: target(scheduled(host=B), host=A),
        "set before class": lambda: target(scheduled(host=A), sets=by_set),
        "option and set": lambda: target(scheduled(), host=A, sets=by_set),
        "option and the same set": lambda: target(scheduled(), host=B, sets=by_set),
        "scenario": lambda: target(scheduled(scenario=str(REMOTE)), sets=()),
        "class and scenario": lambda: target(scheduled(host=A), scenario=REMOTE),
        "option before class and scenario": lambda: target(scheduled(host=A), scenario=REMOTE, host=A),
        "simulated by the scenario": lambda: target(scheduled()),
        "simulated by the class": lambda: target(streaming(host="simulated")),
        "none": lambda: target(streaming()),
        "an empty option": lambda: target(streaming(), host=""),
        "none in the scenario": lambda: target(scheduled(scenario=str(NOWHERE))),
        "no address": lambda: target(streaming(host="my engine")),
        "two classes": lambda: target(streaming(host=A), other),
        "two classes, an option": lambda: target(streaming(host=A), other, host=A),
        "two schedules": lambda: target(scheduled(), type("Other", (Traffic,), {"scenario": "closed"})),
        "both kinds": lambda: target(scheduled(host=A), streaming(host=A)),
    }  # fmt: skip
    return {name: one() for name, one in found.items()}


@case
def tasks() -> dict[str, Any]:
    """A run of tasks, from class attributes and a scenario's tables."""
    chat = streaming(
        host=A,
        protocol="openai",
        model="m",
        target={"connections": 7},
        traffic={"retry": {"policy": "polite"}},
    )
    bare = settings_of(environment(chat), options(), None)
    given = settings_of(environment(chat), options(REMOTE), A)
    limited = settings_of(
        environment(chat), options("", "stages.duration_s=9", "guard.max_requests=50"), A
    )
    chat_of = bare.scenario.traffic["Chat"]
    return {
        "name": bare.scenario.name, "file": bare.scenario_file, "process": bare.scenario.arrival.process,
        "target": [bare.scenario.target.protocol, bare.scenario.target.connections], "model": chat_of.model,
        "retry": chat_of.retry.policy, "planned": len(bare.schedule), "expected": bare.estimate.lines(),
        "endless": bare.scenario.stages.is_endless, "warmup": [bare.scenario.stages.warmup, given.scenario.stages.warmup],
        "tables": list(given.scenario.traffic), "ends": limited.scenario.stages.duration_s, "limit": limited.limit.requests,
    }  # fmt: skip


@case
def mistakes() -> dict[str, str]:
    return {
        "traffic": target(streaming(host=A, traffic={"prompt_tokens": 5})),
        "unknown": target(streaming(host=A, traffic={"retries": 5})),
        "protocol": target(streaming(host=A, protocol="opena")),
        "process": target(scheduled(scenario=str(FOLDER / "tasks.toml")), host=A),
    }


(FOLDER / "tasks.toml").write_text('[arrival]\nprocess = "tasks"\n')


@case
def start_form() -> dict[str, str]:
    """Why a start of the web page is refused."""
    chat, keyed = environment(streaming(host=A)), environment(streaming())
    of_a, of_b = (settings_of(chat, options(), host) for host in (A, B))
    of_key = settings_of(keyed, options(KEYED), A)
    return {
        "as it is": refuses_start(chat, options(), None, of_a, None),
        "another": refuses_start(chat, options(), B, of_a, None),
        "none": refuses_start(keyed, options(), "", None, None),
        "while it runs": refuses_start(chat, options(), B, of_a, of_a),
        "the same while it runs": refuses_start(chat, options(), B, of_a, of_b),
        "a key": refuses_start(keyed, options(KEYED), B, of_key, None),
        "a key of the command line": refuses_start(keyed, options(KEYED), A, of_key, None),
        "a key and no target": refuses_start(keyed, options(KEYED), B, None, None),
    }


async def chat(_: Any) -> None: ...


@case
def nothing_measured() -> dict[str, str]:
    """Users whose requests would not be measured."""

    def of(*bases: Any, tasks: Any = (print,)) -> Any:
        return type("Chat", bases, {"tasks": list(tasks), "host": A})

    unused = environment(streaming(host=A))
    unused.parsed_options = SimpleNamespace(headless=True, num_users=0)
    try:
        no_users = settings_of(unused, options(), None).scenario.target.url
    except TailgaugeError as error:
        no_users = str(error)
    return {
        "fast": target(of(FastHttpUser, StreamingUser)), "http": target(of(HttpUser, StreamingUser)),
        "ours first": target(of(StreamingUser, HttpUser)), "async": target(of(StreamingUser, tasks=[chat])),
        "async in a set": target(of(StreamingUser, tasks=[type("Talk", (TaskSet,), {"tasks": [chat]})])),
        "no users": no_users,
    }  # fmt: skip


@case
def options_of_run() -> dict[str, str]:
    """What Locust's parser prints for options that only `tailgauge run` has."""
    messages = {}
    for arguments in ("--slo x", "--model=m", "--dry-run", "--nothing"):
        parser = argparse.ArgumentParser(prog="locust")
        explain_options(parser)
        output = io.StringIO()
        with contextlib.redirect_stderr(output), contextlib.suppress(SystemExit):
            parser.parse_args(arguments.split())
        messages[arguments] = output.getvalue()
    return messages


POSTS = {
    "openai": 'self.client.post("/v1/chat/completions", json={"model": "m-1", "messages": []})',
    "anthropic": 'self.client.post(f"{BASE}/v1/messages", json={"model": NAME})',
    "both": 'post("/v1/messages"), post("/v1/chat/completions")',
    "neither": 'self.stream(prompt="messages")',
    "broken": "def (",
}


@case
def posts() -> dict[str, Any]:
    """Protocol and model of the calls before the first task, by the text of the locustfile."""
    found = {}
    sys.modules["locustfile_of_posts"] = SimpleNamespace(NAME="m-2")  # type: ignore[assignment]
    for name, text in POSTS.items():
        file = FOLDER / f"{name}.py"
        file.write_text(text)
        chat = streaming(host=A, __module__="locustfile_of_posts")
        place = SimpleNamespace(
            user_classes=[chat], parsed_locustfiles=[str(file)], locustfile=file.name
        )
        scenario = settings_of(place, options(), None).scenario
        found[name] = [scenario.target.protocol, scenario.traffic["Chat"].model]
    place.parsed_locustfiles = [str(FOLDER / "openai.py")]
    place.user_classes = [streaming(host=A, protocol="anthropic", model="mine")]
    scenario = settings_of(place, options(), None).scenario
    found["class first"] = [scenario.target.protocol, scenario.traffic["Chat"].model]
    return found


print_facts()
