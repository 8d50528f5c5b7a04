"""The most input tokens that an honest target counts, and what is beyond it."""

from __future__ import annotations

import base64
import json
import string
from random import Random
from typing import Any

import pytest

from tailgauge.call import ASSISTANT, MAIN, SECOND, USER, Call, Message, Part, Prompt, Tool
from tailgauge.plan.input_bound import InputBound
from tailgauge.plan.preflight import Learnt
from tailgauge.prompts import Maker
from tailgauge.prompts.words import WORDS, text
from tailgauge.scenario.model import Scenario, parse
from tailgauge.schedule.schedule import Planned

LEARNT = Learnt(1.0, 10, known=True)
TOOL_TOKENS = 346  # what a provider adds for tools


def scenario(**table: Any) -> Scenario:
    return parse({"name": "n", "traffic": {"chat": table}}, "my.toml")


FILE = scenario(prompts={"file": "x.jsonl"})
CACHED = scenario(
    pattern="cached",
    cache={"tools": 4, "tools_tokens": 800, "system_tokens": 3000, "breakpoints": ["system"]},
)


def most(
    prompt: Prompt, counted: int, wanted: Scenario = FILE, learnt: Learnt = LEARNT, **call: Any
) -> int | None:
    """Return the bound for a call whose target has counted so many tokens."""
    bound = InputBound.learnt(wanted, learnt)
    return bound.most(Call(prompt, 10, **call), "chat", {"input_tokens": counted})


def is_marked(
    prompt: Prompt, counted: float, wanted: Scenario = FILE, learnt: Learnt = LEARNT
) -> bool:
    bound = most(prompt, round(counted), wanted, learnt)
    return bound is not None and counted > bound


def drawn(letters: str, size: int) -> str:
    random = Random(7)
    return "".join(random.choice(letters) for _ in range(size))


def separate(letters: str) -> str:
    together = drawn(letters, 6000)
    return " ".join(together[start : start + 6] for start in range(0, 6000, 6))


# Tokens a byte are the most of cl100k and of Anthropic's published tokenizer; those at 1.0 are of tokenizers with bytes.
DENSE = {
    "digits": (drawn(string.digits, 5000), 1.0),
    "numbers": (separate(string.digits), 1.0),
    "rare characters": (drawn("龘靐齉爩鱻麤龗灪", 2000), 1.0),
    "Chinese": ("大规模语言模型的推理服务需要精确测量首个令牌的延迟以及吞吐量。" * 40, 0.45),
    "emoji": (drawn("🌀🌵🎃🏁🐉👾💯📎🔭🗿", 2000), 1.0),
    "base64": (base64.b64encode(Random(7).randbytes(4000)).decode(), 0.73),
    "hexadecimal": (Random(7).randbytes(4000).hex(), 0.58),
    "random letters": (separate(string.ascii_lowercase), 0.5),
    "capitals": (separate(string.ascii_uppercase), 0.55),
    "Finnish": ("lentokonesuihkuturbiinimoottoriapumekaanikkoaliupseerioppilas " * 60, 0.4),
    "punctuation": (drawn(string.punctuation, 3000), 1.0),
}


@pytest.mark.parametrize("kind", DENSE)
def test_an_honest_count_of_a_dense_text_is_not_marked(kind):
    written, per_byte = DENSE[kind]
    honest = len(written.encode()) * per_byte + LEARNT.overhead_tokens

    assert not is_marked(Prompt.of(written), honest)


@pytest.mark.parametrize("kind", DENSE)
def test_an_honest_count_of_a_dense_answer_in_a_session_is_not_marked(kind):
    written, per_byte = DENSE[kind]
    wanted = scenario(session={"turns_mean": 3.0})
    history = [(text(1, "1", 50), written)]
    (prompt,) = Maker(1, wanted.traffic["chat"], "chat").make(
        Planned(0, 0, "chat", 50, 10, turns=3), 1, history
    )
    honest = 100 + len(written.encode()) * per_byte + LEARNT.overhead_tokens

    assert ASSISTANT in [message.role for message in prompt.messages]
    assert not is_marked(prompt, honest, wanted)


PROSE = (
    "The load generator keeps the time at which a request was due, and the time at which it was sent. "
    "Whoever reads only the second does not see how long users have waited in front of a slow server. "
)


@pytest.mark.parametrize("factor", [1, 1.3])
def test_an_honest_count_of_prose_is_not_marked(factor):
    assert not is_marked(Prompt.of(PROSE * 20), factor * len(PROSE * 20) * 0.28)


def test_a_count_five_times_too_high_is_marked_in_a_file_of_prose():
    assert is_marked(Prompt.of(PROSE * 20), 5 * len(PROSE * 20) / 4.5)


def test_a_count_beside_tools_may_have_three_tokens_for_each_byte():
    (prompt,) = Maker(1, CACHED.traffic["chat"], "chat").make(Planned(0, 0, "chat", 100, 10))

    assert not is_marked(prompt, 3900 + TOOL_TOKENS, CACHED)
    assert is_marked(prompt, 4 * prompt.text_bytes, CACHED)


@pytest.mark.parametrize("turn", [1, 8])
def test_a_count_above_the_bytes_is_marked_in_each_turn_of_a_growing_session(turn):
    wanted = scenario(session={"turns_mean": 10.0})
    maker = Maker(1, wanted.traffic["chat"], "chat")
    history = [(text(1, f"q{number}", 100), PROSE * 2) for number in range(turn)]
    (prompt,) = maker.make(Planned(0, 0, "chat", 100, 10, turns=10), turn, history)
    honest = 100 * (turn + 1) + turn * len(PROSE * 2) / 4.5

    assert not is_marked(prompt, 1.2 * honest + LEARNT.overhead_tokens, wanted)
    assert is_marked(prompt, 10 * honest, wanted)


@pytest.mark.parametrize("tokens_per_word", [1.0, 1.8])
def test_a_count_twice_as_high_is_marked_where_all_words_are_seeded(tokens_per_word):
    prompt = Prompt.of(" ".join(WORDS * 20))
    honest = tokens_per_word * len(WORDS) * 20
    learnt = Learnt(tokens_per_word, 10, known=True)

    assert not is_marked(prompt, 1.2 * honest, scenario(), learnt)
    assert is_marked(prompt, 2 * honest, scenario(), learnt)


@pytest.mark.parametrize("target", [MAIN, SECOND])
def test_a_further_model_may_count_what_it_counted_for_the_short_prompt(target):
    wanted = parse(
        {
            "name": "n",
            "second_target": {"model": "other"},
            "traffic": {"first": {}, "chat": {"model": "other"}},
        },
        "my.toml",
    )
    learnt = LEARNT._replace(short_prompts=[(target, "other", 5032)])
    bound = InputBound.learnt(wanted, learnt)
    call = Call(Prompt.of(" ".join(WORDS * 20)), 10, model="other", target=target)
    honest = 5000 + len(WORDS) * 20
    counts = {"input_tokens": honest}

    assert (bound.most(call, "chat", counts) or 0) > honest
    small = InputBound.learnt(wanted, LEARNT._replace(short_prompts=[(target, "other", 42)]))
    assert (small.most(call, "chat", {"input_tokens": 5 * honest}) or 0) < honest + 5 * len(
        WORDS
    ) * 20


BLOCKS = [
    {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
    {"type": "input_audio", "input_audio": {"data": "aaaa", "format": "wav"}},
    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": {}}]},
]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(block["type"]))
def test_nothing_bounds_what_is_not_text(block):
    message = Message(USER, (Part("What is it?"), Part("", block=json.dumps(block))))

    assert most(Prompt((message,)), 1_000_000) is None


def test_nothing_bounds_a_tool_of_the_provider():
    given = json.dumps({"type": "computer_20250124", "name": "computer"})
    prompt = Prompt(
        (Message(USER, (Part("Click"),)),), tools=(Tool("computer", "", "", given=given),)
    )

    assert most(prompt, 1_000_000) is None


def test_nothing_bounds_a_message_with_keys_that_are_not_known():
    message = Message(ASSISTANT, (), json.dumps({"audio": {"id": "audio_1"}}))

    assert most(Prompt((message,)), 1_000_000) is None


@pytest.mark.parametrize("target", [{}, {"body": {"chat_template_kwargs": {"persona": "brief"}}}])
def test_nothing_bounds_a_body_that_may_add_to_the_prompt(target):
    body = {"temperature": 0.1} if target else {"mcp_servers": [{"type": "url"}]}
    wanted = parse({"name": "n", "target": target, "traffic": {"chat": {"body": body}}}, "my.toml")

    assert most(Prompt.of("river"), 1_000_000, wanted) is None


def test_parameters_in_the_body_leave_the_bound():
    wanted = scenario(body={"temperature": 0.1, "service_tier": "flex"})

    assert (most(Prompt.of("river"), 1_000_000, wanted) or 0) < 1000


def test_a_prompt_has_the_tokens_that_its_row_states():
    prompt = Prompt((Message(USER, (Part("short"),)),), tokens=4321)

    assert not is_marked(prompt, 4321)
    assert is_marked(prompt, 5000)


def test_without_a_preflight_the_bytes_are_the_bound():
    bound = InputBound()
    call = Call(Prompt.of("word " * 100), 10)

    assert (bound.most(call, "chat", {"prompt_tokens": 500}) or 0) >= 500
    assert (bound.most(call, "chat", {"prompt_tokens": 900}) or 0) < 900


@pytest.mark.parametrize("name", ["prompt_tokens", "input_tokens", "cache_read_input_tokens"])
def test_the_bound_of_a_plausible_count_does_not_read_the_prompt(name):
    """It is computed for each answer: a prompt of any size takes no time."""
    part = Part("river " * 10)
    prompt = Prompt((Message(USER, (part, Part("", block="no JSON"))),))
    bound = InputBound.learnt(scenario(), LEARNT)

    assert (bound.most(Call(prompt, 10), "chat", {name: 20}) or 0) >= 20
