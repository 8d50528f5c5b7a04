"""Holds what the harness makes of a stream against the grammar and against the official SDK."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from wire import anthropic_events, openai_events, product
from wire.grammar import Expected, Stream, expected
from wire.sdk import Answer, Readers, values

DRAW: dict[str, Callable[[str], Stream]] = {
    "anthropic": anthropic_events.draw,
    "openai": openai_events.draw,
}
INPUT = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
COUNTS = (*INPUT, "output_tokens")
COLUMNS = (
    *COUNTS,
    "cache_creation_5m_input_tokens",
    "cache_creation_1h_input_tokens",
    "thinking_tokens",
)


@dataclass(frozen=True)
class Deviation:
    """Where the harness says something else than the SDK, and why it is right to do so."""

    fields: tuple[str, ...]
    reason: str


# By what the stream has that is unusual, as the grammar calls it.
DEVIATIONS: dict[str, dict[str, Deviation]] = {
    "anthropic": {
        "usage:delta_zero": Deviation(INPUT, "counts are cumulative and cannot fall; the SDK takes the last"),
        "usage:malformed": Deviation(COUNTS, "a usage with a malformed count feeds nothing; the SDK checks no type"),
        "usage:zero_output": Deviation(("output_tokens",), "no content comes of no tokens: the count is unknown"),
        "usage:zero_input": Deviation(INPUT, "no prompt has no tokens: the counts are unknown"),
    },
    "openai": {
        "usage:malformed": Deviation(COUNTS, "a usage with a malformed count feeds nothing; the SDK checks no type"),
        "usage:as_text": Deviation(COUNTS, "a count in quotation marks is the count; the SDK passes the text on"),
        "usage:real_then_zero": Deviation(COUNTS, "counts are cumulative and cannot fall; the SDK takes the last"),
        "usage:thinking_beside": Deviation(("output_tokens",), "the total shows that thinking is counted beside the completion"),
        "usage:choice": Deviation(COUNTS, "Moonshot's usage stands in the choice, where the SDK has no field"),
        "usage:groq": Deviation(COUNTS, "Groq's usage stands in x_groq, where the SDK has no field"),
        "cache:deepseek": Deviation(INPUT, "a field of DeepSeek's that the SDK has not"),
        "cache:kimi": Deviation(INPUT, "a field of Kimi's that the SDK has not"),
        "cache:litellm": Deviation(INPUT, "fields of LiteLLM's that the SDK has not"),
        "cache:vllm": Deviation(INPUT, "a field of vLLM's that the SDK has not"),
        "thinking:tags": Deviation(("text",), "thinking between tags is no part of the answer; the SDK leaves it in"),
        "thinking:parts": Deviation(("text",), "the SDK takes a content list for text, and loses one of the two"),
        "content_list": Deviation(("text",), "the SDK takes a content list for text, and loses one of the two"),
        "tool:index_0": Deviation(("tool_inputs",), "calls with ids of their own are several; the SDK joins what shares an index"),
        "tool:index_0_pieces": Deviation(("tool_inputs",), "calls with ids of their own are several; the SDK joins what shares an index"),
        "lone_surrogates": Deviation(("text",), "half a character has no UTF-8: the kept text has a question mark instead"),
        "byte_order_mark": Deviation(("text", "tool_inputs", "stop_reason", *COUNTS), "the standard drops the mark; the SDK loses the first event to it"),
    },
}  # fmt: skip
# Notes of the grammar, and the name under which the report says once that it was read all the same.
TOLERATED = {
    "done_behind_stop": "done_after_stop",
    "data_behind_done": "data_after_done",
    "done_by_prefix": "done_by_prefix",
    "no_done": "no_done",
    "empty_data": "empty_data",
    "unknown_event": "unknown_event",
    "unknown_block": "unknown_event",
    "content_list": "content_list",
    "thinking:parts": "content_list",
    "content_in_start": "content_in_start",
    "tool_input_in_start": "content_in_start",
    "tool:without_index": "tool_without_index",
    "tool:object": "tool_input_object",
    "content_behind_finish": "content_after_finish",
    "no_delta": "no_delta",
    "thinking:tags": "thinking_in_text",
    "unnamed_events": "no_event_name",
    "other_content_type": "other_content_type",
}
# Of these the notes do not tell for sure whether they come.
MAYBE_TOLERATED = {"closed_behind_end", "tools_of_equal_index", "no_done", "no_blank_line"}


@dataclass
class Findings:
    """What was found in many streams."""

    mismatches: list[dict[str, Any]] = field(default_factory=list)
    classes: Counter[str] = field(default_factory=Counter)
    deviations: Counter[str] = field(default_factory=Counter)  # that were seen to differ
    sdk_errors: Counter[str] = field(default_factory=Counter)
    completed_by_sdk: int = 0
    streams: int = 0

    def facts(self) -> dict[str, Any]:
        return {
            **vars(self),
            "mismatches": self.mismatches[:20],
            "mismatch_count": len(self.mismatches),
        }


def check(protocol: str, seeds: list[str]) -> Findings:
    """Read the streams of these seeds, and compare."""
    findings = Findings()
    plain = product.plain_events(protocol)
    readers = Readers()
    for seed in seeds:
        stream = DRAW[protocol](seed)
        right = expected(stream)
        reading = product.read(stream, plain)
        answer = readers.read(protocol, stream.reads)
        findings.streams += 1
        findings.classes[right.ended] += 1
        problems = list(against_grammar(stream, right, reading))
        if answer is None:
            findings.sdk_errors[readers.error.partition(":")[0]] += 1
        else:
            findings.completed_by_sdk += 1
            problems += against_sdk(stream, right, reading, answer, findings.deviations)
        if problems:
            findings.mismatches.append(failing_case(stream, problems))
    return findings


def failing_case(stream: Stream, problems: list[str]) -> dict[str, Any]:
    """Return what a reader needs to see it again."""
    wire = stream.wire
    shown = repr(wire) if len(wire) < 6000 else f"{wire[:3000]!r} ... {wire[-3000:]!r}"
    return {
        "protocol": stream.protocol,
        "seed": stream.seed,
        "problems": problems,
        "plan": f"max_tokens {stream.plan.max_tokens}, natural {stream.plan.ends_naturally}",
        "notes": sorted(stream.notes),
        "reads": len(stream.reads),
        "bytes": shown,
    }


def against_grammar(stream: Stream, right: Expected, reading: product.Reading) -> Iterator[str]:
    """Yield what the row says otherwise than the grammar."""
    row = reading.row
    yield from _different("class", right.ended, row.ended)
    yield from _different("error_class", right.error_class, row.error_class)
    if right.is_complete or right.ended == "truncated":
        yield from _different("text", right.text, reading.text)
        yield from _different("tool input", right.tool_input, reading.tool_input)
        yield from _different("stop reason", right.stop_reason, row.stop_reason)
        yield from _different(
            "characters of thinking", len(right.thinking), reading.chars["thinking"]
        )
    elif not reading.text.startswith(right.text):
        yield from _different("text", right.text, reading.text)
    if right.is_complete and stream.arrived == len(stream.events):
        yield from _counts(stream, row)
        yield from _tolerated(stream, row)


def _counts(stream: Stream, row: Any) -> Iterator[str]:
    counts = {name: getattr(row, name) for name in COLUMNS}
    known = {name: count for name, count in counts.items() if count is not None}
    yield from _different("counts", stream.tokens, known)
    yield from _different(
        "marks", sorted(stream.marks), sorted(filter(None, (row.usage_marks or "").split(",")))
    )
    is_named = "dream_tokens" in (row.not_understood or "")
    has_unknown = "unknown_count" in stream.notes and "usage:missing" not in stream.notes
    yield from _different("unknown count named", has_unknown, is_named)


def _tolerated(stream: Stream, row: Any) -> Iterator[str]:
    named = set(filter(None, (row.tolerated or "").split(",")))
    sent = {TOLERATED[note] for note in stream.notes if note in TOLERATED}
    surely = sent - {"no_done"}
    yield from _different("tolerated, but not named", set(), surely - named)
    yield from _different("named as tolerated, but not sent", set(), named - sent - MAYBE_TOLERATED)


def against_sdk(
    stream: Stream, right: Expected, reading: product.Reading, answer: Answer, seen: Counter[str]
) -> list[str]:
    """Return what the row says otherwise than the SDK, but for the deviations, which are counted."""
    row = reading.row
    pairs: dict[str, tuple[Any, Any]] = {}
    if right.is_complete or right.ended == "truncated":
        pairs["text"] = (answer.text, reading.text)
        pairs["stop_reason"] = (answer.stop_reason, row.stop_reason)
    if right.is_complete:
        inputs = [value for value in answer.tool_inputs if value]
        pairs["tool_inputs"] = (inputs, list(values(reading.tool_input)))
        for name in COUNTS:
            pairs[name] = (answer.usage.get(name), getattr(row, name))
    problems = []
    for name, (sdk, ours) in pairs.items():
        if sdk == ours:
            continue
        notes = [note for note in stream.notes if _is_listed(stream.protocol, note, name)]
        seen.update(notes)
        if not notes:
            problems += _different(f"{name} by the SDK", sdk, ours)
    return problems


def _is_listed(protocol: str, note: str, name: str) -> bool:
    deviation = DEVIATIONS[protocol].get(note)
    return deviation is not None and name in deviation.fields


def _different(what: str, wanted: Any, got: Any) -> Iterator[str]:
    if wanted != got:
        yield f"{what}: expected {wanted!r}, got {got!r}"
