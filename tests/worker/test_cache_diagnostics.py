"""Why the target's cache missed: which answer a call names, so that the target can compare."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailgauge.call import JOB_POLL, SECOND, Call, Prompt
from tailgauge.scenario.model import parse
from tailgauge.worker import cache_diagnostics
from tailgauge.worker.cache_diagnostics import CacheDiagnostics


def call(prefix: int | None = 0, **more: object) -> Call:
    prompt = replace(Prompt.of("why?"), prefix=prefix)
    return Call(prompt, 10, **more)  # type: ignore[arg-type]


@pytest.fixture
def diagnostics() -> CacheDiagnostics:
    return CacheDiagnostics(["chat", "other"])


def named(diagnostics: CacheDiagnostics, one: Call, traffic: str = "chat") -> str | None:
    return diagnostics.with_diagnostics(one, traffic).previous_message_id


def test_the_first_call_names_no_answer_and_the_next_the_last_one(diagnostics):
    first = named(diagnostics, call())
    diagnostics.ended(call(), "chat", "msg_1")
    second = named(diagnostics, call())
    diagnostics.ended(call(), "chat", "msg_2")

    assert [first, second, named(diagnostics, call())] == ["", "msg_1", "msg_2"]


@pytest.mark.parametrize(
    ("other", "traffic"),
    [
        (call(1), "chat"),
        (call(), "other"),
        (call(target=SECOND), "chat"),
        (call(model="large"), "chat"),
    ],
    ids=["prefix", "table", "target", "model"],
)
def test_answers_of_another_prefix_table_target_or_model_are_not_named(diagnostics, other, traffic):
    diagnostics.ended(call(), "chat", "msg_1")

    assert named(diagnostics, other, traffic) == ""


@pytest.mark.parametrize(
    ("one", "traffic"),
    [(call(None), "chat"), (call(), "silent"), (call(kind=JOB_POLL), "chat")],
    ids=["no prefix", "a table that does not ask", "a poll"],
)
def test_other_calls_do_not_ask(diagnostics, one, traffic):
    assert diagnostics.with_diagnostics(one, traffic) is one


@pytest.mark.parametrize("message_id", [None, "", "m" * 201], ids=["none", "empty", "endless"])
def test_an_answer_without_a_usable_id_is_not_named(diagnostics, message_id):
    diagnostics.ended(call(), "chat", "msg_1")
    diagnostics.ended(call(), "chat", message_id)

    assert named(diagnostics, call()) == "msg_1"


def test_memory_is_bounded_by_forgetting_the_prefix_used_longest_ago(diagnostics, monkeypatch):
    monkeypatch.setattr(cache_diagnostics, "_PREFIXES", 2)
    for prefix in (0, 1, 0, 2):
        diagnostics.ended(call(prefix), "chat", f"msg_{prefix}")

    assert [named(diagnostics, call(prefix)) for prefix in range(3)] == ["msg_0", "", "msg_2"]


PROVIDER = {"url": "https://api.anthropic.com"}


@pytest.mark.parametrize(
    ("target", "cache", "requested_id"),
    [
        (PROVIDER, {}, True),
        (PROVIDER, {"diagnostics": False}, False),
        ({"url": "http://h"}, {}, False),
        ({"url": "http://api.anthropic.com"}, {}, False),
        ({"url": "http://h"}, {"diagnostics": True}, True),
        ({"url": "https://api.openai.com", "protocol": "openai"}, {}, False),
        (PROVIDER, None, False),
    ],
)
def test_the_provider_is_asked_and_others_where_the_scenario_says_so(target, cache, requested_id):
    settings = None if cache is None else {"system_tokens": 100, **cache}
    traffic = {"pattern": "streaming"} | ({} if settings is None else {"cache": settings})
    scenario = parse({"name": "x", "target": target, "traffic": {"chat": traffic}}, "x.toml")

    assert (CacheDiagnostics.from_scenario(scenario) is not None) == requested_id
