"""Which Messages bodies the provider refuses, under which version, and how the others are counted."""

import pytest

from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.prefix import marked_prompt
from tailgauge.simulator.protocols.request import Refused

USER = {"role": "user", "content": "abcdefgh"}
TEXT_BLOCK = {"role": "assistant", "content": "abcd"}
TOOL = {"name": "look", "description": "looks", "input_schema": {"type": "object"}}
BODY = {"model": "tiny", "max_tokens": 2000, "messages": [USER]}


def user(*blocks):
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def assistant(*blocks):
    return {"messages": [USER, {"role": "assistant", "content": list(blocks)}, USER]}


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
PAPER = {"type": "document", "source": {"type": "url", "url": "https://example.test/a.pdf"}}


@pytest.mark.parametrize("field", ["temperature", "top_p", "top_k"])
@pytest.mark.parametrize(
    ("version", "refused"), [("", True), ("2026-10-21", True), ("2023-06-01", False)]
)
def test_sampling_is_refused_by_the_newer_version_only(field, version, refused):
    body = BODY | {field: 1}
    if not refused:
        assert anthropic.parse(body, version).max_tokens == 2000
        return
    with pytest.raises(Refused) as caught:
        anthropic.parse(body, version)
    assert (caught.value.status, caught.value.param) == (400, field)


def test_the_mere_presence_of_a_removed_field_is_refused():
    with pytest.raises(Refused, match="temperature"):
        anthropic.parse(BODY | {"temperature": None})


def test_other_versions_do_not_exist():
    with pytest.raises(Refused) as caught:
        anthropic.parse(BODY, "1999-01-01")
    assert caught.value.param == "anthropic-version"


REFUSED = [
    ({"messages": [USER, TEXT_BLOCK]}, "messages"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "0"}, "max_tokens"),
    ({"max_tokens": 0, "stream": True}, "max_tokens"),
    ({"max_tokens": 0, "tools": [TOOL], "tool_choice": {"type": "any"}}, "max_tokens"),
    (
        {"max_tokens": 0, "output_config": {"format": {"type": "json_schema", "schema": {}}}},
        "max_tokens",
    ),
    ({"thinking": "on"}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "forever"}}, "thinking.type"),
    ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking.display"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": True}}, "thinking.budget_tokens"),
    ({"tools": {}}, "tools"),
    ({"tools": ["look"]}, "tools.0"),
    ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
    ({"tools": [{"name": "look"}]}, "tools.0.input_schema"),
    ({"tools": [TOOL, TOOL]}, "tools"),
    ({"tool_choice": {"type": "auto"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "listen"}}, "tool_choice.name"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}},
        "tool_choice.disable_parallel_tool_use",
    ),
    ({"system": [{"type": "image", "source": {}}]}, "system.0.type"),
    ({"system": [{"type": "text", "text": ""}]}, "system.0.text"),
    ({"output_config": {"format": {"type": "xml", "schema": {}}}}, "output_config.format.type"),
    (user({"type": "hologram"}), "messages.0.content.0.type"),
    (user({"type": "thinking", "thinking": "", "signature": ""}), "messages.0.content.0.type"),
    (user({"type": "image"}), "messages.0.content.0.source"),
    (user({"type": "tool_result", "content": "x"}), "messages.0.content.0.tool_use_id"),
    (assistant(PAPER), "messages.1.content.0.type"),
    (assistant({"type": "tool_use", "id": "t", "name": "look"}), "messages.1.content.0.input"),
]


@pytest.mark.parametrize(("changed", "param"), REFUSED)
def test_a_wrong_field_is_refused_by_its_name(changed, param):
    with pytest.raises(Refused) as caught:
        anthropic.parse(BODY | changed)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert caught.value.message.startswith(param.split(".", maxsplit=1)[0])


def test_an_unknown_kind_of_block_is_named():
    with pytest.raises(Refused, match="'hologram'"):
        anthropic.parse(BODY | user({"type": "hologram"}))


ACCEPTED = [
    {"thinking": {"type": "adaptive", "display": "omitted"}},
    {"thinking": {"type": "enabled", "budget_tokens": 1024}},
    {"thinking": {"type": "disabled"}},
    {"thinking": {"type": "between_tools"}},
    {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "look"}},
    {"tools": [{"type": "web_search_20260318", "name": "web_search"}]},
    {"tool_choice": {"type": "none"}},
    {"system": "be brief"},
    {"system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]},
    {"metadata": {"user_id": "someone"}, "stop_sequences": ["x"], "service_tier": "auto"},
    {"output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {}}}},
    {"unheard_of": 1},
    user(PICTURE, PAPER, {"type": "tool_result", "tool_use_id": "t", "content": "4"}),
    assistant(
        {"type": "thinking", "thinking": "", "signature": "s"},
        {"type": "tool_use", "id": "t", "name": "look", "input": {}},
    ),
]


@pytest.mark.parametrize("fields", ACCEPTED, ids=[str(f)[:60] for f in ACCEPTED])
def test_what_the_provider_takes_is_taken(fields):
    assert anthropic.parse(BODY | fields).model == "tiny"


def test_pictures_and_documents_count_a_fixed_number_of_tokens():
    assert anthropic.prompt_tokens(BODY | user(PICTURE)) == 1600
    assert anthropic.prompt_tokens(BODY | user(PAPER, {"type": "text", "text": "abcde"})) == 3002


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "é" * 3, "tools": [TOOL]},
        {"system": [{"type": "text", "text": "abc", "cache_control": {"type": "ephemeral"}}]},
        assistant({"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}}),
    ],
)
def test_the_prefix_cache_counts_the_same_tokens(fields):
    body = BODY | fields
    assert anthropic.prompt_tokens(body) == marked_prompt(body).total_tokens
