"""The most input tokens that an honest target counts for a prompt.

A count above it is marked. A target has its own tokens a word, which the preflight learns from seeded words; the texts of
files, tools and answers are denser. Tokenizers have no more tokens than bytes for any text, and for lower-case letters
at most four times what they have for seeded words. Nothing bounds the tokens of an image, or of a provider's tool.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tailgauge.call import ASSISTANT, Call, Message, Part, Prompt
from tailgauge.patterns.table import PATTERNS, ROWS, Traffic, pattern_of
from tailgauge.plan.preflight import SHORT_WORDS, Learnt
from tailgauge.plan.spend_limit import FRAME_TOKENS, MARGIN
from tailgauge.prompts.words import WORDS
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.settings import TASKS

# Letters drawn at random have 0.49 tokens a byte with cl100k and with Anthropic's published tokenizer, seeded words 0.14.
_RANDOM_LETTERS = 4.0  # times what seeded words have
_LEAST_LETTERS = 0.6  # tokens a byte
_UNSURE_PER_WORD = 2.0  # tokens a word, at least, of a model that has counted one prompt
_ESCAPES = 2.0  # times as many: templates indent the JSON of tools, and write it into JSON
_TOOL_TOKENS = 1000  # what providers add once there are tools
_TEXT_FRAME = FRAME_TOKENS // 4  # what a template adds to each text
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"

_TEXT_BLOCKS = frozenset(
    {"text", "input_text", "output_text", "tool_use", "tool_result", "thinking", "refusal"}
)
_TEXT_KEYS = frozenset(
    {"tool_calls", "tool_call_id", "name", "function_call", "refusal", "reasoning_content", "reasoning"}
)
_CUSTOM_TOOL_TYPES = frozenset({None, "function", "custom"})
# Fields of a body that add nothing to its prompt.
_PARAMETERS = frozenset(
    {
        "frequency_penalty", "ignore_eos", "logit_bias", "logprobs", "max_completion_tokens", "max_tokens", "metadata",
        "min_p", "min_tokens", "parallel_tool_calls", "presence_penalty", "priority", "repetition_penalty",
        "safety_identifier", "seed", "service_tier", "speed", "stop", "stop_sequences", "store", "stream_options",
        "temperature", "top_k", "top_logprobs", "top_p", "user", "verbosity",
    }
)  # fmt: skip
_COUNTS = ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True, slots=True)
class Density:
    """Tokens a byte, at most."""

    letters: float = 1.0
    spaces: float = 1.0
    other: float = 1.0

    def tokens(self, text: str) -> float:
        """Return the most tokens of a text."""
        data = text.encode("utf-8", "surrogatepass")
        spaces = data.count(b" ")
        other = len(data.translate(None, _LETTERS)) - spaces
        letters = len(data) - spaces - other
        return self.letters * letters + self.spaces * spaces + self.other * other


@dataclass(frozen=True, slots=True)
class ModelBound:
    """What the tokens of one model are bounded by: for seeded words, for any other text, and around a prompt."""

    words: Density = field(default_factory=Density)
    any_text: Density = field(default_factory=Density)
    frame: int = FRAME_TOKENS

    @classmethod
    def learnt(cls, tokens_per_word: float, words: Sequence[str], overhead: int) -> Self:
        """Return the bound of a model with so many tokens per seeded word."""
        per_byte = tokens_per_word * len(words) / sum(len(word) + 1 for word in words)
        with_margin = MARGIN * per_byte
        other = max(1.0, with_margin)
        letters = max(_LEAST_LETTERS, min(1.0, _RANDOM_LETTERS * per_byte), with_margin)
        seeded = Density(with_margin, with_margin, other)
        # Some tokenizers have a token of its own for the space before a digit.
        return cls(seeded, Density(letters, other, other), max(FRAME_TOKENS, overhead))


_BY_BYTES = ModelBound()


@dataclass(frozen=True, slots=True)
class InputBound:
    """Bounds the input tokens of calls. Where the preflight has learnt nothing of a model, it has no more than bytes.

    `models` by target and model. `generated`: the traffic tables whose prompts are seeded words, but for answers and tools.
    `unbounded`: those whose `body` may add to the prompt.
    """

    models: Mapping[tuple[str, str], ModelBound] = field(default_factory=dict)
    generated: frozenset[str] = frozenset()
    unbounded: frozenset[str] = frozenset()

    @classmethod
    def learnt(cls, scenario: Scenario, learnt: Learnt) -> Self:
        """Return the bound by what the preflight of a scenario has learnt."""
        models = {(target, model): _of_short(tokens) for target, model, tokens in learnt.short_prompts}
        first = next(iter(scenario.models()))
        overhead = 2 * learnt.overhead_tokens
        if learnt.known:
            models[first] = ModelBound.learnt(learnt.tokens_per_word, learnt.words or WORDS, overhead)
        return cls(models, _generated_tables(scenario), _unbounded_tables(scenario))

    def most(self, call: Call, traffic: str, model: str, counts: Mapping[str, int]) -> int | None:
        """Return a bound that holds for this call, or None without one. `model`: that of its target.

        It is the exact one only where the target has counted more than a quick look at the prompt explains.
        """
        bound = self.models.get((call.target, call.model or model), _BY_BYTES)
        quick = bound.frame + int(bound.words.letters * call.prompt.text_bytes)
        counted = sum(counts.get(name, 0) for name in _COUNTS)
        if counted <= quick:
            return quick
        if traffic in self.unbounded:
            return None
        prompt_text = bound.words if traffic in self.generated else bound.any_text
        return _tokens(call, bound, prompt_text)


def _of_short(tokens: int) -> ModelBound:
    """Return the bound of a model that has only counted a short prompt, with what is around it."""
    return ModelBound.learnt(max(_UNSURE_PER_WORD, tokens / SHORT_WORDS), WORDS, tokens)


def _tokens(call: Call, bound: ModelBound, prompt_text: Density) -> int | None:
    """Return the most tokens of a call; None where a part of it is not text."""
    prompt = call.prompt
    if not _is_text(prompt):
        return None
    any_text = bound.any_text
    sizes = [prompt_text.tokens(part.block or part.text) for part in prompt.system]
    for message in prompt.messages:
        density = any_text if message.role == ASSISTANT else prompt_text
        sizes += [density.tokens(part.block or part.text) for part in message.parts]
        if message.more is not None:
            sizes.append(any_text.tokens(message.more))
    escaped = Density(any_text.letters, any_text.spaces, _ESCAPES * any_text.other)
    sizes += [escaped.tokens(text) for text in _tool_texts(prompt)]
    if call.schema is not None:
        sizes.append(escaped.tokens(call.schema))
    frame = bound.frame + len(sizes) * _TEXT_FRAME
    if prompt.tools or call.schema is not None:
        frame += _TOOL_TOKENS
    return frame + max(math.ceil(sum(sizes)), prompt.tokens)


def _generated_tables(scenario: Scenario) -> frozenset[str]:
    if scenario.arrival.process == TASKS:
        return frozenset()
    return frozenset(name for name, traffic in scenario.traffic.items() if _is_generated(traffic))


def _unbounded_tables(scenario: Scenario) -> frozenset[str]:
    """Return the traffic tables that send more than parameters of the answer in the body of their calls."""
    tables = []
    for name, traffic in scenario.traffic.items():
        added = {*traffic.body, *scenario.target_of(traffic.target).body}
        if not added <= _PARAMETERS:
            tables.append(name)
    return frozenset(tables)


def _is_generated(traffic: Traffic) -> bool:
    """Return whether prompts are seeded words, but for tools and the answers of a session."""
    is_ours = PATTERNS[traffic.pattern] in ROWS
    return is_ours and traffic.prompts.is_generated and not pattern_of(traffic).resends_answers


def _tool_texts(prompt: Prompt) -> Iterator[str]:
    """Yield the texts of its tools, with what is not ASCII escaped as templates do."""
    for tool in prompt.tools:
        if tool.given is not None:
            yield json.dumps(json.loads(tool.given))
        else:
            yield tool.name
            yield json.dumps(tool.description)
            yield tool.schema


def _is_text(prompt: Prompt) -> bool:
    """Return whether a prompt has only text and custom tools."""
    return (
        all(_is_text_part(part) for part in prompt.system)
        and all(_is_text_message(message) for message in prompt.messages)
        and all(tool.given is None or _is_custom_tool(tool.given) for tool in prompt.tools)
    )


def _is_text_message(message: Message) -> bool:
    more = json.loads(message.more) if message.more is not None else {}
    return more.keys() <= _TEXT_KEYS and all(_is_text_part(part) for part in message.parts)


def _is_text_part(part: Part) -> bool:
    return part.block is None or _is_text_block(json.loads(part.block))


def _is_text_block(block: Any) -> bool:
    if not isinstance(block, dict):
        return isinstance(block, str)
    content = block.get("content")
    parts = content if isinstance(content, list) else ()
    return block.get("type") in _TEXT_BLOCKS and all(map(_is_text_block, parts))


def _is_custom_tool(given: str) -> bool:
    tool = json.loads(given)
    return isinstance(tool, dict) and tool.get("type") in _CUSTOM_TOOL_TYPES
