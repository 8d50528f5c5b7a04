"""Cache marks as they are sent: the same places on both protocols, in the fields of each; the SDKs' own types are the oracle."""

from __future__ import annotations

import json
from typing import ClassVar

import pytest
from anthropic.types import TextBlockParam, ToolParam
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from openai.types.chat import ChatCompletionContentPartTextParam
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter

from tailgauge.call import USER, Call, Message, Part, Prompt
from tailgauge.errors import ScenarioError
from tailgauge.prompts import Maker
from tailgauge.protocols.protocol import Adaptation
from tailgauge.protocols.table import PROTOCOLS, Target
from tailgauge.scenario.model import parse
from tailgauge.schedule.schedule import Planned

TYPES = {"anthropic": MessageCreateParamsStreaming, "openai": CompletionCreateParamsStreaming}
BLOCKS = {"anthropic": TextBlockParam, "openai": ChatCompletionContentPartTextParam}
EVERY_PLACE = {
    "tools": 2, "system_tokens": 200, "few_shot": 1, "breakpoints": ["tools", "system", "few_shot", "last"],
}  # fmt: skip
URL = "http://h"


def scenario(protocol, cache, **more):
    tree = {
        "name": "x",
        "target": {"url": URL, "protocol": protocol} | more.pop("target", {}),
        "traffic": {"chat": {"pattern": "cached", "cache": cache}},
        **more,
    }
    return parse(tree, "my.toml")


def body(protocol, cache, request_id=0, **more):
    """The body of a request of the only traffic table."""
    previous = more.pop("previous", None)
    made = scenario(protocol, cache, **more)
    (traffic,) = made.traffic.values()
    maker = Maker(1, traffic, "chat", marks=made.marks(traffic), run="abcdefghijkl")
    (prompt,) = maker.make(Planned(request_id, 0, "chat", 10, 10))
    call = Call(prompt, 10, previous_message_id=previous)
    return dict(PROTOCOLS[protocol](made.target, made.target.url).body(call, "m"))


def known(of_sdk, tree):
    """A tree without what a type of an SDK does not have."""
    adapter = TypeAdapter(of_sdk)
    return json.loads(adapter.dump_json(adapter.validate_python(tree)))


def marked(tree, name, path=""):
    """Where a body has a mark of this name, and the mark."""
    found = {}
    if isinstance(tree, dict):
        if name in tree:
            found[path] = tree[name]
        for key, value in tree.items():
            found |= marked(value, name, f"{path}/{key}")
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            found |= marked(value, name, f"{path}/{number}")
    return found


@pytest.mark.parametrize("protocol", TYPES)
@pytest.mark.parametrize(
    "places",
    [
        ["system"],
        ["last"],
        ["automatic"],
        ["system", "few_shot", "automatic"],
        list(EVERY_PLACE["breakpoints"]),
    ],
)
def test_the_sdks_own_types_know_every_field(protocol, places):
    sent = body(protocol, {**EVERY_PLACE, "breakpoints": places})

    front = {
        key: value for key, value in sent.items() if key not in {"messages", "system", "tools"}
    } | {"messages": []}
    assert known(TYPES[protocol], front) == front
    contents = [message["content"] for message in sent["messages"]] + [sent.get("system", "")]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    assert [known(BLOCKS[protocol], block) for block in blocks] == blocks
    assert (
        protocol == "openai" or [known(ToolParam, tool) for tool in sent["tools"]] == sent["tools"]
    )


def test_anthropics_marks_stand_behind_tools_system_examples_and_question():
    sent = body("anthropic", EVERY_PLACE)

    assert marked(sent, "cache_control") == {
        place: {"type": "ephemeral", "ttl": "5m"}
        for place in ("/system/0", "/tools/1", "/messages/1/content/0", "/messages/2/content/0")
    }


def test_openais_breakpoints_stand_at_the_same_places_but_not_behind_tools():
    sent = body("openai", EVERY_PLACE)

    assert marked(sent, "prompt_cache_breakpoint") == {
        place: {"mode": "explicit"}
        for place in ("/messages/0/content/0", "/messages/2/content/0", "/messages/3/content/0")
    }
    assert sent["prompt_cache_options"] == {"mode": "explicit"}
    assert sent["messages"][1]["content"].__class__ is str  # what has no mark stays a text


def test_a_longer_life_is_sent_with_each_mark():
    assert set(
        map(str, marked(body("anthropic", {**EVERY_PLACE, "ttl": "1h"}), "cache_control").values())
    ) == {"{'type': 'ephemeral', 'ttl': '1h'}"}
    openai = marked(body("openai", {**EVERY_PLACE, "ttl": "12h"}), "prompt_cache_breakpoint")
    assert set(map(str, openai.values())) == {"{'mode': 'explicit', 'ttl': '12h'}"}


def test_an_automatic_mark_is_the_requests_own():
    cache = {"system_tokens": 200, "breakpoints": ["automatic"]}
    anthropic = body("anthropic", cache)
    openai = body("openai", cache)

    assert marked(anthropic, "cache_control") == {"": {"type": "ephemeral", "ttl": "5m"}}
    assert openai["prompt_cache_options"] == {"mode": "implicit"}
    assert marked(openai, "prompt_cache_breakpoint") == {}


def test_marks_beside_an_automatic_one_leave_the_target_its_own():
    sent = body("openai", {"system_tokens": 200, "breakpoints": ["system", "automatic"]})

    assert sent["prompt_cache_options"] == {"mode": "implicit"}
    assert list(marked(sent, "prompt_cache_breakpoint")) == ["/messages/0/content/0"]


class TestKey:
    CACHE: ClassVar = {"system_tokens": 200, "prefixes": 50}

    def test_each_prefix_has_a_key_of_its_own_in_a_run(self):
        bodies = [body("openai", self.CACHE, number * 65536) for number in range(100)]
        by_prefix: dict[str, set[str]] = {}
        for sent in bodies:
            by_prefix.setdefault(sent["messages"][0]["content"][0]["text"], set()).add(
                sent["prompt_cache_key"]
            )

        assert len(by_prefix) > 20
        assert all(len(keys) == 1 for keys in by_prefix.values())
        assert len(set.union(*by_prefix.values())) == len(by_prefix)
        assert max(len(sent["prompt_cache_key"]) for sent in bodies) <= 64

    @pytest.mark.parametrize(("key", "expected"), [("", None), ("mine", "mine")])
    def test_the_user_may_set_it_or_leave_it_out(self, key, expected):
        assert (
            body("openai", {**self.CACHE, "prompt_cache_key": key}).get("prompt_cache_key")
            == expected
        )

    def test_an_automatic_cache_gets_one_at_the_provider_only(self):
        cache = {**self.CACHE, "breakpoints": []}
        provider = {"url": "https://api.openai.com/v1"}

        assert "prompt_cache_key" not in body("openai", cache)
        assert len(body("openai", cache, target=provider)["prompt_cache_key"]) == 32
        assert body("openai", {**cache, "prompt_cache_key": "mine"})["prompt_cache_key"] == "mine"

    def test_anthropic_has_none(self):
        assert "prompt_cache_key" not in body("anthropic", self.CACHE)


class TestTargetsWithoutMarks:
    @pytest.mark.parametrize("engine", ["vllm", "sglang", "llama.cpp"])
    def test_a_named_engine_gets_texts_and_no_key(self, engine):
        sent = body("openai", EVERY_PLACE, target={"engine": engine})

        assert {type(message["content"]) for message in sent["messages"]} == {str}
        assert not [name for name in sent if name.startswith("prompt_cache")]

    def test_so_does_the_simulated_endpoint_with_an_automatic_cache(self):
        simulated = {"target": {"url": "simulated"}, "simulated": {"cache": {"mode": "automatic"}}}

        assert "prompt_cache" not in json.dumps(body("openai", EVERY_PLACE, **simulated))

    def test_messages_are_marked_whatever_the_engine(self):
        assert (
            len(marked(body("anthropic", EVERY_PLACE, target={"engine": "vllm"}), "cache_control"))
            == 4
        )


class TestOtherTargets:
    """A hedge or a fallback is sent to another target as it was made for the first."""

    MARKED = Prompt(
        (
            Message(USER, (Part("first"), Part("second", "1h"))),
            Message(USER, (Part("third", "12h"),)),
        ),
        (Part("be kind", "5m"),),
        automatic="30m",
        cache_key="mine",
    )

    def sent(self, protocol, adaptation=None, **target):
        wire = PROTOCOLS[protocol](Target(protocol=protocol, url=URL, **target), URL)
        if adaptation is not None:
            wire.adapt(adaptation)
        return dict(wire.body(Call(self.MARKED, 10), "m") or {})

    def test_lives_that_a_protocol_does_not_have_are_its_default(self):
        anthropic = marked(self.sent("anthropic"), "cache_control")
        openai = marked(self.sent("openai"), "prompt_cache_breakpoint")

        assert [mark["ttl"] for mark in anthropic.values()] == ["5m", "1h", "5m", "5m"]
        assert [mark.get("ttl") for mark in openai.values()] == [None, None, "12h"]

    @pytest.mark.parametrize(
        ("adaptation", "target"),
        [(Adaptation(automatic_cache="vllm"), {}), (None, {"engine": "sglang"})],
    )
    def test_an_engine_that_caches_without_marks_gets_none(self, adaptation, target):
        sent = self.sent("openai", adaptation, **target)

        assert [message["content"] for message in sent["messages"]] == [
            "be kind",
            "first\n\nsecond",
            "third",
        ]
        assert "prompt_cache" not in json.dumps(sent)


REFUSED = [
    ("openai", {"ttl": "5m"}, "cache.ttl: expected '30m' or '12h' with target.protocol = 'openai', got '5m'. Leave it out"),
    ("openai", {"ttl": "1h"}, "cache.ttl: expected '30m' or '12h'"),
    ("anthropic", {"ttl": "30m"}, "cache.ttl: expected '5m' or '1h' with target.protocol = 'anthropic', got '30m'"),
    (
        "openai",
        {"breakpoints": ["automatic"], "ttl": "12h"},
        "cache.ttl: expected '30m' with target.protocol = 'openai' and breakpoints = [\"automatic\"], got '12h'",
    ),
    ("openai", {"tools": 2, "breakpoints": ["tools"]}, "cache.breakpoints: no mark is possible at 'tools'"),
    ("anthropic", {"prompt_cache_key": "mine"}, "cache.prompt_cache_key: does not apply with target.protocol = 'anthropic'"),
    ("openai", {"prompt_cache_key": 3}, "cache.prompt_cache_key: expected text in quotes, got 3"),
    ("openai", {"diagnostics": True}, "cache.diagnostics: does not apply with target.protocol = 'openai'"),
    ("anthropic", {"diagnostics": "yes"}, "cache.diagnostics: expected true or false, got 'yes'"),
]  # fmt: skip


@pytest.mark.parametrize(("protocol", "cache", "expected"), REFUSED)
def test_what_a_protocol_cannot_send_is_refused_by_key_with_what_to_do(protocol, cache, expected):
    with pytest.raises(ScenarioError) as refused:
        scenario(protocol, {"system_tokens": 200, **cache})

    assert "my.toml: traffic.chat.cache." in str(refused.value)
    assert expected in str(refused.value)


@pytest.mark.parametrize("more", [{"breakpoints": []}, {"breakpoints": ["system"]}])
def test_a_ttl_that_is_never_sent_is_no_error(more):
    target = {"engine": "vllm"} if more["breakpoints"] else {}

    assert scenario("openai", {"system_tokens": 200, "ttl": "1h", **more}, target=target)


def test_a_limit_that_is_not_sent_cannot_be_guarded():
    guarded = {"target": {"max_tokens_field": "none"}, "guard": {"max_tokens": 1000}}
    with pytest.raises(ScenarioError) as refused:
        scenario("openai", {"system_tokens": 200}, **guarded)

    assert (
        "target.max_tokens_field: without a limit on answers, guard.max_tokens and guard.max_cost cannot be kept"
        in str(refused.value)
    )
    assert scenario("openai", {"system_tokens": 200}, **{**guarded, "guard": {"max_requests": 9}})


@pytest.mark.parametrize(("previous", "expected"), [("", None), ("msg_1", "msg_1")])
def test_messages_ask_why_the_cache_missed(previous, expected):
    sent = body("anthropic", {"system_tokens": 200}, previous=previous)

    assert sent["diagnostics"] == {"previous_message_id": expected}
    assert "diagnostics" not in body("anthropic", {"system_tokens": 200})
