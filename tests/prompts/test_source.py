"""The table of prompt sources: what each asks, which one a request gets, and what is put around it."""

from __future__ import annotations

import pytest

from tailgauge.call import Message, Part, Prompt, Tool
from tailgauge.errors import ScenarioError
from tailgauge.patterns.settings import Prompts
from tailgauge.patterns.table import Traffic
from tailgauge.prompts import Maker
from tailgauge.prompts.source import ROWS, SOURCES, PromptSource
from tailgauge.prompts.words import text
from tailgauge.scenario.model import parse
from tailgauge.schedule.schedule import Planned


def prompt_of(source, **traffic):
    (prompt,) = Maker(1, Traffic.model_validate(traffic), "main").make(
        Planned(0, 0, "main", 600, 10, 1, source)
    )
    return prompt


def question(prompt: Prompt) -> str:
    return prompt.messages[-1].parts[0].text


QUIZ = {"source": "quiz"}
WORDS = text(1, "0", 600)


@pytest.mark.parametrize(
    ("chosen", "planned", "is_words"),
    [
        (None, None, True),
        (None, {"text": "Why?"}, False),
        (None, {"prompt_tokens": 600}, True),
        (None, {"blocks": [1, 2]}, False),
        ("generated", {"text": "Why?"}, True),
        ("generated", {"blocks": [1, 2]}, True),
        ("trace", {"text": "Why?"}, True),
        ("trace", {"blocks": [1, 2]}, False),
    ],
)
def test_a_request_gets_the_source_that_was_chosen_else_what_the_plan_has(
    chosen, planned, is_words
):
    assert (question(prompt_of(planned, prompts={"source": chosen})) == WORDS) is is_words


def test_the_key_of_the_scenario_names_every_source():
    described = str(Prompts.model_fields["source"].description)

    assert [row.name for row in ROWS if f"`{row.name}`" not in described] == []
    assert all(row.summary and row.__doc__ for row in ROWS)


@pytest.mark.parametrize(
    ("prompts", "why"),
    [
        ({"source": "genrated"}, "traffic.chat.prompts.source: expected one of generated, trace, file, got 'genrated'; did you mean generated?"),
        ({"source": "file"}, 'traffic.chat.prompts.file: expected a file, for source = "file"'),
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_is_refused_by_its_key(prompts, why):
    with pytest.raises(ScenarioError, match="prompts") as caught:
        parse({"name": "x", "traffic": {"chat": {"prompts": prompts}}}, "x.toml")

    assert why in str(caught.value)


class Quiz(PromptSource):
    """A source of a user's own: whole messages, with system, a tool and a block."""

    name = "quiz"
    summary = "quizzes"

    def make(self, planned, use, tokens):  # noqa: ARG002 - the interface
        picture = Part("", block='{"type": "image", "source": {}}')
        return Prompt(
            (
                Message("user", (picture, Part(f"{use} {tokens} {self.seed}"))),
                Message("assistant", (Part("a"),)),
                Message("user", (Part("b", block='{"type": "text", "text": "b"}'),)),
            ),
            (Part("Be brief."),),
            (Tool("look", "", "{}", given='{"name": "look", "input_schema": {}}'),),
            tokens=99,
        )


@pytest.fixture
def _quiz(monkeypatch):
    monkeypatch.setitem(SOURCES, "quiz", Quiz)


@pytest.mark.usefixtures("_quiz")
class TestUsersSource:
    def test_what_it_gives_is_sent_as_it_is(self):
        prompt = prompt_of(None, prompts=QUIZ)

        assert prompt.messages[0].parts[1].text == "0 600 1"
        assert (prompt.system, prompt.tools[0].name, prompt.tokens) == (
            (Part("Be brief."),),
            "look",
            99,
        )
        assert prompt.prefix is None

    def test_shared_prefix_marks_and_salt_go_around_it(self):
        cache = {"system_tokens": 10, "breakpoints": ["system", "last"], "ttl": "1h"}
        prompt = prompt_of(None, prompts=QUIZ, cache=cache)

        assert [part.ttl for part in prompt.system] == ["1h", None]
        assert prompt.messages[-1].parts[-1] == Part("b", "1h", '{"type": "text", "text": "b"}')

    def test_cold_salt_comes_before_its_tool_its_system_and_the_shared_prefix(self):
        cold = prompt_of(None, prompts=QUIZ, cache={"breakpoints": ["last"], "cold": True})

        assert cold.unique
        salt = cold.tools[0].name.removesuffix("_look")
        assert len(salt) == 12
        assert cold.system[0].text == f"{salt} Be brief."

    def test_cold_salt_comes_before_a_block_of_its_own(self, monkeypatch):
        monkeypatch.setattr(
            Quiz,
            "make",
            lambda *_: Prompt((Message("user", (Part("", block='{"type": "image"}'),)),)),
        )
        first, second = (
            prompt_of(None, prompts=QUIZ, cache={"breakpoints": ["last"], "cold": True})
            .messages[0]
            .parts
        )

        assert len(first.text) == 12
        assert (second.block, second.ttl) == ('{"type": "image"}', "5m")
