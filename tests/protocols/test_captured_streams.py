"""What the two protocols' streams mean: captures of real engines, and what providers document."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.decoder import AnswerSettings, StreamDecoder
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.sse_parser import Splitter
from tailgauge.protocols.usage import Request
from tailgauge.rows.schema import CHUNK_KINDS

CAPTURES = Path(__file__).parent / "captures"


def sse(*trees):
    out = []
    for tree in trees:
        name = b"event: %b\n" % tree["type"].encode() if "type" in tree else b""
        out.append(name + b"data: " + json.dumps(tree).encode() + b"\n\n")
    return b"".join(out)


def name_of(on_event):
    return on_event.__qualname__.partition(".")[0].lower()


def decoded(stream, on_event, step=None):
    """What a decoder makes of a stream that comes in pieces of `step` bytes."""
    decoder = StreamDecoder(on_event, AnswerSettings(protocol=name_of(on_event)))
    step = step or max(1, len(stream))
    for number, at in enumerate(range(0, len(stream), step)):
        decoder.feed(stream[at : at + step], number, number + 1, number + 2, number, at_rest=True)
    chunks = decoder.fresh
    counts = decoder.usage.counts(Request(), has_content=decoder.has_content)
    return {
        "chunks": [(CHUNK_KINDS[k], n) for k, n in zip(chunks.kind, chunks.chars, strict=True)],
        "finished": decoder.finished,
        "stopped": decoder.stopped is not None,
        "error": decoder.error.kind if decoder.error else None,
        "stop_reason": decoder.stop_reason,
        "model": decoder.model,
        "usage": counts.tokens,
    }


def expected(chunks=(), **other):
    plain = {
        "finished": True,
        "stopped": True,
        "error": None,
        "stop_reason": None,
        "model": None,
        "usage": {},
    }
    return {"chunks": list(chunks), **plain, **other}


def text(*sizes):
    return [("text", size) for size in sizes]


# --- captures ---------------------------------------------------------------------------------------------------

SEEN = {
    "llamacpp_messages": expected(
        text(8, 3, 3, 5), stop_reason="max_tokens", model="tiny",
        usage={"input_tokens": 32, "output_tokens": 4, "cache_read_input_tokens": 0},
    ),
    "llamacpp_chat": expected(
        text(4, 5, 3, 3), stop_reason="length", model="tiny",
        usage={"input_tokens": 1, "output_tokens": 4, "cache_read_input_tokens": 18},
    ),
    "vllm_messages": expected(
        text(4, 4, 4, 4), stop_reason="max_tokens", model="tiny", usage={"input_tokens": 32, "output_tokens": 4}
    ),
    "vllm_chat": expected(
        text(6, 4, 5, 6), stop_reason="length", model="tiny", usage={"input_tokens": 19, "output_tokens": 4}
    ),
    "vllm_chat_details": expected(
        text(7, 4), stop_reason="length", model="tiny",
        usage={"input_tokens": 79, "output_tokens": 2, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 256},
    ),
    "vllm_chat_overloaded": expected(error="Service Unavailable"),
    "vllm_messages_overloaded": expected(finished=False, stopped=False, error="internal_error"),
    "llamacpp_messages_context_full": expected(
        text(8), finished=False, stopped=False, error="server_error", model="tiny",
        usage={"input_tokens": 15, "cache_read_input_tokens": 4014},
    ),
    "llamacpp_chat_context_full": expected(text(4), finished=False, stopped=False, error="server_error", model="tiny"),
}  # fmt: skip


@pytest.mark.parametrize("step", [None, 1, 7, 100])
@pytest.mark.parametrize("name", SEEN)
def test_a_captured_stream_means_the_same_in_any_pieces(name, step):
    on_event = Anthropic.on_event if "messages" in name else OpenAI.on_event

    assert decoded((CAPTURES / f"{name}.sse").read_bytes(), on_event, step) == SEEN[name]


@pytest.mark.parametrize(("content", "ended"), [("", "overloaded"), ("hel", "stream_error")])
def test_an_error_event_before_any_content_has_the_class_of_its_status(content, ended):
    decoder = StreamDecoder(OpenAI.on_event)
    decoder.feed(sse(choice(role="assistant", content=content)), 0, 1, 2, 0, at_rest=True)
    decoder.feed((CAPTURES / "vllm_chat_overloaded.sse").read_bytes(), 1, 2, 3, 1, at_rest=True)

    error = decoder.error
    assert (error.ended, error.error_class, error.kind) == (
        ended,
        "overloaded",
        "Service Unavailable",
    )


def test_every_capture_is_looked_at():
    assert {path.stem for path in CAPTURES.iterdir()} == set(SEEN)


@pytest.fixture(scope="module")
def sdks():
    """The decoders of both SDKs, which read a stream whole."""
    import anthropic._streaming
    import openai._streaming

    return {"messages": anthropic._streaming.SSEDecoder, "chat": openai._streaming.SSEDecoder}


def text_of(event: dict) -> str:
    """The content of an event as an SDK gives it."""
    if "choices" in event:
        return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return event.get("delta", {}).get("text", "")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("name", SEEN)
def test_random_splits_give_what_the_sdks_give(name, line_end, sdks, full_size):
    """500,000 at full size: each is fed to a splitter, and one of a hundred to a decoder as well."""
    wire = (CAPTURES / f"{name}.sse").read_bytes().replace(b"\n", line_end)
    kind = "messages" if "messages" in name else "chat"
    given = [
        (event.event or "", event.data)
        for event in sdks[kind]().iter_bytes(iter([wire]))
        if event.data
    ]
    text = "".join(text_of(json.loads(data)) for _, data in given if data.startswith("{"))
    on_event = Anthropic.on_event if kind == "messages" else OpenAI.on_event
    rng = random.Random(f"{name}/{line_end!r}")

    assert given
    for number in range(500_000 // 24 + 1 if full_size else 150):
        at = sorted(rng.randrange(len(wire) + 1) for _ in range(rng.choice((1, 2, 5, 20))))
        pieces = [wire[begin:end] for begin, end in itertools.pairwise([0, *at, len(wire)])]
        splitter, found = Splitter(), []
        for piece in pieces:
            found += splitter.feed(piece)
        assert [(name.decode(), data.decode()) for name, data in found] == given, at
        if number % 100 == 0:
            decoder = StreamDecoder(on_event, AnswerSettings(keep_text=True))
            for piece in pieces:
                decoder.feed(piece, 1, 2, 3, 0, at_rest=True)
            assert (decoder.text, sum(decoder.fresh.chars)) == (text, len(text)), at


# --- anthropic --------------------------------------------------------------------------------------------------


def delta(kind, **fields):
    return {"type": "content_block_delta", "index": 0, "delta": {"type": kind, **fields}}


STOP = {"type": "message_stop"}
ANTHROPIC = {
    "a delta that is a list": ([{"type": "content_block_delta", "delta": []}, STOP], {"error": "malformed_event"}),
    "a delta without its text": ([delta("text_delta"), STOP], {"error": "malformed_event"}),
    "text that is a number": ([delta("text_delta", text=5), STOP], {"error": "malformed_event"}),
    "a message that is text": ([{"type": "message_start", "message": "hi"}, STOP], {"error": "malformed_event"}),
    "a model that is a number": ([{"type": "message_start", "message": {"model": 5, "id": []}}, STOP], {}),
}  # fmt: skip


@pytest.mark.parametrize(("trees", "differs"), ANTHROPIC.values(), ids=ANTHROPIC)
def test_an_anthropic_stream_of(trees, differs):
    assert decoded(sse(*trees), Anthropic.on_event) == expected(**differs)


def test_the_name_of_an_anthropic_event_counts_where_its_data_has_no_type():
    stream = (
        b'event: error\ndata: {"code":500,"message":"full"}\n\nevent: message_stop\ndata: {}\n\n'
    )

    assert decoded(stream, Anthropic.on_event) == expected(error="500")


# --- openai -----------------------------------------------------------------------------------------------------


def choice(reason=None, **fields):
    return {
        "model": "m",
        "id": "c",
        "choices": [{"index": 0, "delta": fields, "finish_reason": reason}],
    }


def usage(**fields):
    return {"choices": [], "usage": fields}


DONE = b"data: [DONE]\n\n"
OPENAI = {
    "an error that is null": ([{**choice(content="a"), "error": None}], DONE, {"chunks": text(1), "model": "m"}),
    "a delta that is a list": ([{"choices": [{"delta": ["x"]}]}], DONE, {"error": "malformed_event"}),
    "choices that are a number": ([{"choices": 5}], DONE, {"error": "malformed_event"}),
    "content that is a number": ([choice(content=5)], DONE, {"model": "m", "error": "malformed_event"}),
    "content that is an object": ([choice(content={"type": "text"})], DONE, {"model": "m", "error": "malformed_event"}),
    "no delta": ([{"choices": [{"index": 0, "finish_reason": "stop"}]}], DONE, {"stop_reason": "stop"}),
    "progress before the first token": ([{"choices": [{"delta": {"role": "assistant"}}], "prompt_progress": {"total": 9}}], DONE, {}),
}  # fmt: skip


@pytest.mark.parametrize(("trees", "end", "differs"), OPENAI.values(), ids=OPENAI)
def test_an_openai_stream_with(trees, end, differs):
    stream = b"".join(b"data: " + json.dumps(tree).encode() + b"\n\n" for tree in trees) + end

    assert decoded(stream, OpenAI.on_event) == expected(**differs)


# --- thinking and the counts of tokens --------------------------------------------------------------------------


def anthropic_answer(blocks, **usage):
    """An answer whose blocks each come with their deltas; none: hidden."""
    yield {
        "type": "message_start",
        "message": {"model": "m", "usage": {"input_tokens": 5, "output_tokens": 1}},
    }
    for number, (kind, *deltas) in enumerate(blocks):
        yield {"type": "content_block_start", "index": number, "content_block": {"type": kind}}
        for piece in deltas:
            delta = {"type": f"{kind}_delta", kind: piece}
            yield {"type": "content_block_delta", "index": number, "delta": delta}
        yield {"type": "content_block_stop", "index": number}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage}
    yield {"type": "message_stop"}


def openai_answer(*deltas, **usage):
    for delta in deltas:
        yield {"model": "m", "choices": [{"index": 0, "delta": delta}]}
    yield {"model": "m", "choices": [], "usage": {"prompt_tokens": 5, **usage}}


def decoder_of(protocol, events, **settings):
    """A decoder to which each event came in a read of its own, a nanosecond after the one before."""
    decoder = StreamDecoder(protocol.on_event, AnswerSettings(protocol=protocol.name, **settings))
    for number, event in enumerate(events, 1):
        decoder.feed(sse(event), number - 1, number, number, number, at_rest=True)
    return decoder


@pytest.mark.parametrize("hidden", ["thinking", "redacted_thinking"])
def test_thinking_is_seen_where_its_content_is_hidden(hidden):
    before = decoder_of(Anthropic, anthropic_answer([(hidden,), ("text", "a", "b")]))
    between = decoder_of(Anthropic, anthropic_answer([("text", "a"), (hidden,), ("text", "b")]))

    assert before.first_thinking is between.first_thinking is None
    assert before.last_thinking.at < before.first_text.at
    assert between.last_thinking.at > between.first_text.at


def test_the_last_thinking_is_the_last_delta_of_it():
    shown = decoder_of(Anthropic, anthropic_answer([("thinking", "a", "b"), ("text", "c")]))
    engine = decoder_of(
        OpenAI, openai_answer({"reasoning_content": "a"}, {"reasoning": "b"}, {"content": "c"})
    )

    assert (shown.first_thinking.at, shown.last_thinking.at) == (3, 4)
    assert (engine.first_thinking.at, engine.last_thinking.at, engine.first_text.at) == (1, 2, 3)


USAGES = {  # output and thinking tokens of an answer for which 10 were requested, and what is wrong
    "as many as requested": (10, None, None),
    "the lie": (100_000, None, "mark"),
    "one too many": (11, None, "mark"),
    "none": (0, None, "output_tokens = 0 beside content"),
    "more thinking than output": (
        10,
        11,
        "output_tokens = 10, thinking_tokens = 11 beside content",
    ),
    "a limit without the thinking": (900, 895, None),
}


@pytest.mark.parametrize("case", USAGES)
def test_counts_of_output_are_held_against_what_was_requested(case):
    output, thinking, wrong = USAGES[case]
    details = {} if thinking is None else {"output_tokens_details": {"thinking_tokens": thinking}}
    reasoning = (
        {} if thinking is None else {"completion_tokens_details": {"reasoning_tokens": thinking}}
    )
    for protocol, answer in (
        (Anthropic, anthropic_answer([("text", "a", "b")], output_tokens=output, **details)),
        (OpenAI, openai_answer({"content": "a"}, completion_tokens=output, **reasoning)),
    ):
        events = list(answer)
        decoder = decoder_of(protocol, events, max_tokens=10, obeys_max_tokens=True)

        counts = decoder.usage.counts(Request(max_tokens=10), has_content=True)
        is_dropped = wrong not in {None, "mark"}
        assert counts.problem == (wrong if is_dropped else None)
        assert counts.marks == (("output",) if wrong == "mark" else ())
        assert counts.tokens.get("output_tokens") == (None if is_dropped else output)
        assert counts.trusted().get("output_tokens") == (None if wrong else output)
        assert counts.tokens["input_tokens"] == 5
        free = decoder.usage.counts(
            Request(), has_content=True
        )  # an application that knows no limit
        assert free.marks == ()
