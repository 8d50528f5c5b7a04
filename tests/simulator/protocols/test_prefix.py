"""What a body says to the prefix cache: order, sizes, keys, marks, and the marks that are refused."""

import pytest

from tailgauge.simulator.protocols.prefix import Breakpoint, block_prompt, marked_prompt
from tailgauge.simulator.protocols.request import Refused

MARK_5M = {"cache_control": {"type": "ephemeral"}}
MARK_1H = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
TOOL = {"name": "t", "input_schema": {"type": "object"}}


def text(content, mark=None):
    return {"type": "text", "text": content, **(mark or {})}


def body(content="hello you", **more):
    return {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": content}],
        **more,
    }


def keys(of):
    return [position.key for position in marked_prompt(of).positions]


def test_the_order_is_tools_then_system_then_messages():
    prompt = marked_prompt(
        body(system=[text("be brief", MARK_5M)], tools=[TOOL | MARK_5M, TOOL | {"name": "u"}])
    )

    assert [point.position for point in prompt.breakpoints] == [0, 2]
    assert len(prompt.positions) == 4


def test_each_block_counts_its_own_tokens_rounded_up():
    prompt = marked_prompt(body([text("abcd"), text("abcde"), text("é" * 4)], system="a"))

    assert [position.tokens for position in prompt.positions] == [1, 2, 4, 6]
    assert prompt.total_tokens == 6


def test_what_is_no_text_counts_its_json():
    block = {"type": "tool_result", "tool_use_id": "x", "content": "y"}

    assert marked_prompt(body([block | MARK_5M])).total_tokens == -(
        -len('{"type":"tool_result","tool_use_id":"x","content":"y"}') // 4
    )


def test_a_text_is_the_same_prefix_as_a_string_and_as_a_block():
    assert keys(body("hello")) == keys(body([text("hello")]))


def test_marks_are_no_content():
    assert keys(body([text("a"), text("b")])) == keys(
        body([text("a", MARK_1H), text("b", MARK_5M)])
    )


def test_a_changed_block_changes_the_keys_from_there_on():
    one = keys(body([text("a"), text("b"), text("c")]))
    other = keys(body([text("a"), text("x"), text("c")]))

    assert [a == b for a, b in zip(one, other, strict=True)] == [True, False, False]


def test_blocks_do_not_run_into_each_other():
    assert keys(body([text("ab"), text("c")]))[1] != keys(body([text("a"), text("bc")]))[1]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"model": "n"}, 0),
        ({"tools": [TOOL | {"name": "other"}]}, 0),
        ({"speed": "fast"}, 1),
        ({"tool_choice": {"type": "any"}}, 2),
        ({"thinking": {"type": "adaptive"}}, 2),
        ({"output_config": {"effort": "low"}}, 2),
        ({"max_tokens": 7, "stream": True, "metadata": {"user_id": "u"}}, 3),
    ],
)
def test_a_changed_parameter_invalidates_from_its_section_on(change, kept):
    one = body(system="s", tools=[TOOL])
    same = [a == b for a, b in zip(keys(one), keys(one | change), strict=True)]

    assert same == [True] * kept + [False] * (3 - kept)


def test_roles_are_part_of_the_prefix():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    other = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]

    assert keys(body() | {"messages": turns})[1] != keys(body() | {"messages": other})[1]


def test_marks_name_their_ttl():
    prompt = marked_prompt(body([text("a", MARK_1H), text("b"), text("c", MARK_5M)]))

    assert prompt.breakpoints == (Breakpoint(0, "1h"), Breakpoint(2, "5m"))


def test_the_mark_of_the_whole_body_stands_on_its_last_block():
    assert marked_prompt(body([text("a"), text("b")], **MARK_5M)).breakpoints == (
        Breakpoint(1, "5m"),
    )
    assert marked_prompt(body([text("a"), text("b", MARK_5M)], **MARK_5M)).breakpoints == (
        Breakpoint(1, "5m"),
    )


FOUR = [text(letter, MARK_5M) for letter in "abcd"]


@pytest.mark.parametrize(
    ("wrong", "param", "content"),
    [
        (body([*FOUR, text("e", MARK_5M)]), "cache_control", "A maximum of 4 blocks with cache_control may be provided. Found 5."),
        (body([*FOUR, text("e")], **MARK_5M), "cache_control", "Found 5."),
        (body([text("a", MARK_5M), text("b", MARK_1H)]), "messages.0.content.1.cache_control.ttl", "must not come after"),
        (body(**MARK_1H, system=[text("a", MARK_5M)]), "cache_control.ttl", "must not come after"),
        (body([text("b", MARK_5M)], **MARK_1H), "cache_control.ttl", "differs"),
        (body([text("b", {"cache_control": {"type": "ephemeral", "ttl": "2h"}})]), "messages.0.content.0.cache_control.ttl", "5m, 1h"),
        (body([text("b", {"cache_control": {"type": "forever"}})]), "messages.0.content.0.cache_control.type", "ephemeral"),
        (body([text("b", {"cache_control": True})]), "messages.0.content.0.cache_control.type", "ephemeral"),
        (body(tools={"name": "t"}), "tools", "list of objects"),
        (body(tools=["t"]), "tools", "list of objects"),
    ],
)  # fmt: skip
def test_marks_that_the_provider_refuses_are_refused(wrong, param, content):
    with pytest.raises(Refused) as refused:
        marked_prompt(wrong)

    assert (refused.value.status, refused.value.param) == (400, param)
    assert content in refused.value.message


def test_four_marks_are_allowed_and_the_longer_ttl_may_come_first():
    assert len(marked_prompt(body([text("a", MARK_1H), *FOUR[:3]])).breakpoints) == 4


def chat(*turns, **more):
    return {
        "model": "m",
        "messages": [{"role": role, "content": content} for role, content in turns],
        **more,
    }


def test_automatic_blocks_are_whole_and_share_a_key_with_the_same_prefix():
    one = block_prompt(chat(("system", "abcd" * 40), ("user", "first")), 16)
    other = block_prompt(chat(("system", "abcd" * 40), ("user", "another question")), 16)

    assert one.total_tokens == 42
    assert [position.tokens for position in one.positions] == [16, 32]
    assert one.positions == other.positions[:2]
    assert one.breakpoints == ()


def test_automatic_blocks_differ_by_content_role_model_and_cut():
    prompts = (
        chat(("user", "abcd" * 16)),
        chat(("user", "abcd" * 15 + "abce")),
        chat(("assistant", "abcd" * 16)),
        chat(("user", "abcd" * 16)) | {"model": "n"},
        chat(("user", "abcd" * 8), ("user", "abcd" * 8)),
        chat(("user", "abcd" * 15 + "abc")),  # the same bytes but for the padding
    )

    assert len({block_prompt(one, 16).positions[0].key for one in prompts}) == len(prompts)


def test_an_assistant_without_content_is_no_block():
    one = chat(("user", "abcd"), ("assistant", None), ("user", [text("efgh")]))

    assert block_prompt(one, 1).total_tokens == 2


def test_a_picture_counts_as_the_validation_counts_it_in_both_kinds_of_prompt():
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "A" * 40_000},
    }
    body = {"model": "tiny", "max_tokens": 1, "messages": [{"role": "user", "content": [picture]}]}
    other = {"type": "image", "source": {**picture["source"], "data": "B" * 40_000}}
    changed = {**body, "messages": [{"role": "user", "content": [other]}]}

    assert marked_prompt(body).total_tokens == 1600
    assert block_prompt(body, 16).total_tokens == 1600
    assert marked_prompt(body).positions[-1] != marked_prompt(changed).positions[-1]
    assert block_prompt(body, 16).positions[0] != block_prompt(changed, 16).positions[0]
