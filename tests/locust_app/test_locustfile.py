"""Whose requests go where: a run has the target that was named, in Locust's order, and none that was not."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from locust import FastHttpUser, HttpUser, TaskSet

from tailgauge import StreamingUser
from tailgauge.errors import TailgaugeError
from tailgauge.locust_app.locustfile import (
    Options,
    Traffic,
    explain_options,
    refuses_start,
    settings_of,
)

pytestmark = pytest.mark.gevent

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"
SCENARIOS = {
    "remote": f'[target]\nurl = "{B}"\n[arrival]\nrate_per_s = 5\n[stages]\nduration_s = 20\nwarmup_s = 2\n[traffic.chat]\n',
    "nowhere": "[arrival]\nrate_per_s = 5\n",
    "keyed": '[target]\nprotocol = "openai"\napi_key_env = "PATH"\n',
    "tasks": '[arrival]\nprocess = "tasks"\n',
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a locustfile and scenarios."""
    for name, text in SCENARIOS.items():
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "My chat.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def user(name: str, *bases: type, **attributes: Any) -> Any:
    return type(name, bases, attributes)


def streaming(name: str = "Chat", **attributes: Any) -> Any:
    return user(name, StreamingUser, tasks=[print], **attributes)


def scheduled(name: str = "Streaming", **attributes: Any) -> Any:
    return user(name, Traffic, **{"scenario": "streaming", **attributes})


def environment(*classes: Any, file: str = "My chat.py") -> Any:
    return SimpleNamespace(
        user_classes=list(classes), parsed_locustfiles=[str(Path(file).resolve())], locustfile=file
    )


def options(scenario: str = "", *sets: str) -> Options:
    path = str(Path(f"{scenario}.toml").resolve()) if scenario else ""
    return Options(path, sets, Path.cwd())


def target(*classes: Any, host: str | None = None, scenario: str = "", to: str = "") -> str:
    """Return the address of the target; `to` is given by --set."""
    sets = (f"target.url={to}",) if to else ()
    return settings_of(environment(*classes), options(scenario, *sets), host).scenario.target.url


def remote() -> Any:
    return scheduled(scenario=str(Path("remote.toml").resolve()))


@pytest.mark.parametrize(
    ("find", "url"),
    [
        (lambda: target(streaming(host=A)), A),
        (lambda: target(scheduled(host=A)), A),
        (lambda: target(streaming(host=B), host=A), A),
        (lambda: target(scheduled(host=B), host=A), A),
        (lambda: target(scheduled(host=A), scenario="remote", host=A), A),
        (lambda: target(streaming(host=A), streaming("Talk", host=B), host=A), A),
        (lambda: target(scheduled(host=A), to=B), B),
        (lambda: target(scheduled(), host=B, to=B), B),
        (lambda: target(remote()), B),
        (lambda: target(scheduled()), "simulated"),
        (lambda: target(streaming(host="simulated")), "simulated"),
    ],
    ids=["class", "class of a schedule", "option before class", "option before class of a schedule",
         "option before class and scenario", "two classes, an option", "set before class", "option and the same set",
         "scenario", "simulated by the scenario", "simulated by the class"],
)  # fmt: skip
def test_the_target_is_the_first_that_is_named_in_locusts_order(find, url):
    assert find() == url


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (lambda: target(scheduled(), host=A, to=B),
         f"two targets are named: {A} as host and {B} by --set target.url: name one"),
        (lambda: target(scheduled(host=A), scenario="remote"),
         f"two targets are named: {A} by Streaming.host and {B} by the scenario: choose with --host"),
        (lambda: target(streaming()), 'no target is named: set Chat.host = "http://...", or add --host URL'),
        (lambda: target(streaming(), host=""), "no target is named"),
        (lambda: target(scheduled(scenario=str(Path("nowhere.toml").resolve()))), "no target is named: set Streaming.host"),
        (lambda: target(streaming(host="my engine")), "Chat.host: "),
        (lambda: target(streaming(host=A), streaming("Talk", host=B)), "Chat.host and Talk.host differ, and a run has one target"),
        (lambda: target(scheduled(), scheduled("Other", scenario="closed")), "expected one user class, got 2 (Streaming, Other)"),
        (lambda: target(scheduled(host=A), streaming(host=A)), "expected one user class, got 2 (Streaming, Chat)"),
        # Mistakes in a class are named with it.
        (lambda: target(streaming(host=A, traffic={"prompt_tokens": 5})),
         "Chat.traffic: prompt_tokens: the tasks of the locustfile decide what is requested, and when: leave it out"),
        (lambda: target(streaming(host=A, traffic={"retries": 5})), "Chat.traffic: retries"),
        (lambda: target(streaming(host=A, protocol="opena")), "Chat.protocol: expected"),
        (lambda: target(scheduled(scenario=str(Path("tasks.toml").resolve())), host=A),
         "a locustfile with a StreamingUser makes these requests: locust -f FILE --scenario"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(find, text):
    with pytest.raises(TailgaugeError, match=re.escape(text)):
        find()


def test_tasks_have_no_plan_and_take_their_settings_from_the_class():
    chat = streaming(
        host=A,
        protocol="openai",
        model="m",
        target={"connections": 7},
        traffic={"retry": {"policy": "polite"}},
    )
    bare = settings_of(environment(chat), options(), None)
    scenario = bare.scenario

    assert (scenario.name, bare.scenario_file) == ("my-chat", "My chat.py")
    assert (scenario.arrival.process, scenario.target.protocol) == ("tasks", "openai")
    assert scenario.target.connections == 7
    assert scenario.traffic["Chat"].model == "m"
    assert scenario.traffic["Chat"].retry.policy == "polite"
    assert (len(bare.schedule), bare.estimate.lines()) == (0, [])
    assert (scenario.stages.is_endless, scenario.stages.warmup) == (True, 0.0)
    with_scenario = settings_of(environment(chat), options("remote"), A).scenario
    assert (with_scenario.stages.warmup, list(with_scenario.traffic)) == (2.0, ["Chat"])
    sets = ("stages.duration_s=9", "guard.max_requests=50")
    limited = settings_of(environment(chat), options("", *sets), A)
    assert (limited.scenario.stages.duration_s, limited.limit.requests) == (9.0, 50)


async def chat(_: Any) -> None: ...


@pytest.mark.parametrize(
    ("bases", "tasks", "text"),
    [
        ((FastHttpUser, StreamingUser), [print], "nothing is measured: leave out FastHttpUser"),
        ((HttpUser, StreamingUser), [print], "nothing is measured: leave out HttpUser"),
        ((StreamingUser,), [chat], "Chat.chat: Locust calls tasks as plain functions: write def without async"),
        ((StreamingUser,), [user("Talk", TaskSet, tasks=[chat])], "Talk.chat: "),
    ],
)  # fmt: skip
def test_users_whose_requests_would_not_be_measured_are_refused_with_what_to_change(
    bases, tasks, text
):
    with pytest.raises(TailgaugeError, match=re.escape(text)):
        target(user("Chat", *bases, tasks=tasks, host=A))


def test_a_user_that_is_ours_first_is_measured():
    assert target(user("Chat", StreamingUser, HttpUser, tasks=[print], host=A)) == A


def test_no_users_are_refused():
    unused = environment(streaming(host=A))
    unused.parsed_options = SimpleNamespace(headless=True, num_users=0)

    with pytest.raises(TailgaugeError, match=r"^-u 0 starts no user"):
        settings_of(unused, options(), None)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--slo", "locust: error: --slo: here objectives are in a file of --scenario, or --set 'slo.a="),
        ("--model=m", "--model: here it is the model on the class, or --set target.model=NAME"),
        ("--dry-run", "only `tailgauge run` has dry runs"),
        ("--nothing", "unrecognized arguments: --nothing"),
    ],
)  # fmt: skip
def test_options_of_run_alone_name_where_locust_has_them(argument, text, capsys):
    parser = argparse.ArgumentParser(prog="locust")
    explain_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args([argument, "x"] if argument == "--slo" else [argument])

    assert text in capsys.readouterr().err


def started(host: str, *, running: str | None = None, known: str | None = A) -> str:
    """Why a start of the web page is refused; `known`: target of the last settings."""
    named = environment(streaming(host=A))
    settings = {url: settings_of(named, options(), url) for url in (A, B)}
    return refuses_start(
        named,
        options(),
        host,
        None if known is None else settings[known],
        None if running is None else settings[running],
    )


def keyed_start(host: str, *, is_known: bool = True) -> str:
    named = environment(streaming())
    known = settings_of(named, options("keyed"), A) if is_known else None
    return refuses_start(named, options("keyed"), host, known, None)


def test_the_start_form_names_a_target():
    assert started(None) == started(B) == started(B, running=B) == ""
    assert started(B, running=A) == f"the run in progress has the target {A}: stop it first"
    assert "no target is named" in refuses_start(
        environment(streaming()), options("keyed"), "", None, None
    )


def test_the_start_form_names_none_for_the_keys_of_another():
    assert keyed_start(A) == ""
    for is_known in (True, False):
        assert keyed_start(B, is_known=is_known) == (
            f"target.api_key_env (PATH) would send a secret to {B}: restart Locust with --host {B}"
        )


@pytest.mark.parametrize(
    ("text", "attributes", "expected"),
    [
        ('self.client.post("/v1/chat/completions", json={"model": "m-1", "messages": []})', {}, ("openai", "m-1")),
        ('self.client.post(f"{BASE}/v1/messages", json={"model": NAME})', {}, ("anthropic", "m-2")),
        ('post("/v1/messages"), post("/v1/chat/completions")', {}, ("anthropic", None)),
        ('self.stream(prompt="messages")', {}, ("anthropic", None)),
        ("def (", {}, ("anthropic", None)),
        ('self.client.post("/v1/chat/completions", json={"model": "m-1", "messages": []})',
         {"protocol": "anthropic", "model": "mine"}, ("anthropic", "mine")),
    ],
    ids=["openai", "anthropic", "both", "neither", "broken", "class first"],
)  # fmt: skip
def test_the_paths_and_models_of_a_file_decide_about_the_calls_before_the_first_task(
    text, attributes, expected, folder, monkeypatch
):
    module = SimpleNamespace(NAME="m-2")
    monkeypatch.setitem(sys.modules, "locustfile_of_posts", module)
    (folder / "posts.py").write_text(text)
    chat = streaming(host=A, __module__="locustfile_of_posts", **attributes)
    scenario = settings_of(environment(chat, file="posts.py"), options(), None).scenario

    assert (scenario.target.protocol, scenario.traffic["Chat"].model) == expected
