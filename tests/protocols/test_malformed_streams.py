"""Streams that mean harm: what is taken of them has bounds, and what was wrong has a name."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from tailgauge.protocol_violations import VIOLATIONS, quoted
from tailgauge.protocols import shapes
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.custom_sse import CustomSse, SseSettings
from tailgauge.protocols.decoder import (
    EVENTS_PER_TOKEN,
    KIND_CODE,
    MANY_EVENTS,
    MANY_MALFORMED,
    MAX_CONVERSATIONS,
    MAX_FOLLOWED,
    MAX_PHASES,
    MAX_TEXT,
    TEXT_PER_TOKEN,
    AnswerSettings,
    StreamDecoder,
)
from tailgauge.protocols.errors import error_of
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.table import Target
from tailgauge.rows.schema import TEXT
from tailgauge.transport.answer import CompiledAnswer
from tailgauge.transport.http1 import Framing

PROTOCOLS = {"anthropic": Anthropic.on_event, "openai": OpenAI.on_event}


def event(tree):
    return b"data: %b\n\n" % json.dumps(tree).encode()


def word(protocol: str, text: str) -> bytes:
    if protocol == "openai":
        tree = {"id": "1", "model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}
    else:
        tree = {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": text},
        }
    return event(tree)


def named(decoder: StreamDecoder) -> tuple[str, str]:
    assert decoder.error is not None
    return decoder.error.kind, decoder.error.text


def fed(decoder: StreamDecoder, *payloads: bytes) -> StreamDecoder:
    for number, payload in enumerate(payloads):
        decoder.feed(payload, 10 * number, 10 * number + 9, 10 * number + 9, number, at_rest=True)
    return decoder


@pytest.mark.parametrize(
    ("protocol", "other", "tree"),
    [
        ("anthropic", "openai", {"object": "chat.completion.chunk", "choices": []}),
        ("openai", "anthropic", {"type": "message_start", "message": {"id": "1", "model": "m"}}),
    ],
)
def test_a_stream_of_another_protocol_is_named_with_it(protocol, other, tree):
    first = event(tree)
    decoder = fed(
        StreamDecoder(PROTOCOLS[protocol], AnswerSettings(protocol=protocol)),
        first,
        word(other, "a"),
    )

    assert named(decoder) == ("malformed_event", f"an event of protocol {other}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_far_more_content_than_was_asked_for_is_given_up(protocol):
    decoder = StreamDecoder(PROTOCOLS[protocol], AnswerSettings(max_tokens=10))
    most, portion = MANY_EVENTS + 10 * EVENTS_PER_TOKEN, word(protocol, "a") * 1000
    while not decoder.broken:
        fed(decoder, portion)

    assert named(decoder) == ("too_many_events", f"over {most:,}")
    assert decoder.events == most + 1
    assert decoder.chunks == len(decoder.fresh) == most
    fed(decoder, portion)
    assert decoder.events == most + 1, "nothing is taken any more"


def test_many_deltas_in_one_event_are_bounded_too():
    choices = [{"index": 0, "delta": {"content": "a"}}] * (MANY_EVENTS + 5)
    decoder = fed(StreamDecoder(OpenAI.on_event), event({"choices": choices}))

    assert named(decoder) == ("too_many_events", f"over {MANY_EVENTS:,}")
    assert decoder.chunks == MANY_EVENTS


class Compiled:
    """The body of an answer, whose plain events compiled code decodes."""

    def __init__(self, decoder):
        pytest.importorskip("tailgauge.transport._core", reason="it is not compiled here")
        self.decoder = decoder
        self.reads = 0
        self.plain = 0  # chunks
        self._answer = CompiledAnswer(decoder.shapes, decoder.kept_kinds, is_user_clock=False)
        self._answer.begin(Framing(None, is_chunked=False, keep=False), 0, 0)

    def read(self, *payloads):
        """Read them, and let the decoder take what has come."""
        for payload in payloads:
            self.reads += 1
            self._answer.read(payload, 10 * self.reads, 10 * self.reads + 5, 0)
        while True:
            news = self._answer.take()
            self.plain += 0 if news.columns is None else len(news.columns.kind)
            self.decoder.receive(news)
            if self._answer.allow(self.decoder.plain_kinds):
                return


def plain_decoder() -> StreamDecoder:
    return StreamDecoder(
        OpenAI.on_event, AnswerSettings(shapes=shapes.compiled(OpenAI.shapes, ("error",)))
    )


def test_content_that_compiled_code_decodes_is_bounded_too():
    body = Compiled(plain_decoder())
    body.read(word("openai", "one"))
    while not body.decoder.broken and body.reads < 100:
        body.read(word("openai", "two") * 1000)

    assert named(body.decoder) == ("too_many_events", f"over {MANY_EVENTS:,}")
    assert body.plain > MANY_EVENTS - 100
    assert body.decoder.chunks < MANY_EVENTS + 1000


def test_an_event_of_too_many_lines_is_given_up_by_compiled_code_too():
    body = Compiled(plain_decoder())
    body.read(word("openai", "one"), word("openai", "two"))
    body.read(word("openai", "three"))
    body.read(b":\n" * 10_001 + word("openai", "four"))

    assert body.decoder.broken
    assert named(body.decoder)[0] == "event_too_large"
    assert body.decoder.chunks == 3


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_malformed_event_is_an_error_and_very_many_end_it(protocol):
    decoder = StreamDecoder(PROTOCOLS[protocol])
    fed(decoder, b"data: {\n\n" * (MANY_MALFORMED - 1))
    assert not decoder.broken
    fed(decoder, b"data: [\n\n" * 1000)

    assert decoder.broken
    assert decoder.events == MANY_MALFORMED
    assert named(decoder) == ("malformed_event", "no JSON: {"), "the first error stands"


def test_an_answer_that_is_kept_is_bounded():
    decoder = StreamDecoder(OpenAI.on_event, AnswerSettings(keep_text=True, max_tokens=2048))
    most = MAX_TEXT + 2048 * TEXT_PER_TOKEN
    piece = word("openai", "ü" * (most // 16))
    fed(decoder, *[piece] * 8)
    assert (decoder.broken, decoder.held) == (False, most)
    fed(decoder, piece)

    assert named(decoder) == ("too_large", f"a text of over {most:,} bytes")


def test_an_answer_finds_no_room_beside_those_that_conversations_keep():
    decoder = StreamDecoder(OpenAI.on_event, AnswerSettings(keep_text=True))
    decoder.share_memory(MAX_CONVERSATIONS - 100)
    fed(decoder, word("openai", "x" * 100))
    assert not decoder.broken
    fed(decoder, word("openai", "x"))

    assert named(decoder) == (
        "too_large",
        "the conversations of this worker keep over 48 MiB of answers",
    )
    unkept = StreamDecoder(OpenAI.on_event)
    unkept.share_memory(MAX_CONVERSATIONS)
    assert not fed(unkept, word("openai", "x")).broken


def test_pieces_of_a_kept_answer_take_what_their_text_takes():
    """Each would be an object of its own, ten times as large as its text."""
    tracemalloc.start()
    decoder = StreamDecoder(OpenAI.on_event, AnswerSettings(keep_text=True))
    fed(decoder, *[word("openai", "é\u0416")] * 4000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert decoder.held == 4000 * 4
    assert kept < 4000 * 37 * 2 + 16 * 4000  # rows, and the text


@pytest.mark.parametrize("piece", ["x" * 1000, '"' + "x" * 1000])
def test_an_answer_whose_first_field_never_comes_is_not_followed_for_ever(piece):
    """A string that is not closed could not complete a field, and grew without a bound."""
    decoder = StreamDecoder(OpenAI.on_event, AnswerSettings(watch_field=True))
    fed(decoder, word("openai", '{"a": "'), *[word("openai", piece)] * 200)

    assert decoder.held <= MAX_FOLLOWED
    assert decoder.error is None


@pytest.mark.parametrize("value", [b"[]", b"{}", b"1", b'"a"'])
def test_json_of_very_many_values_is_not_built(value):
    """In 4 MiB there are 1.4 million empty lists, which take 90 MiB."""
    data = b'{"type": "ping", "choices": [], "x": [' + b",".join([value] * 700_000) + b"]}"
    tracemalloc.start()
    decoder = fed(StreamDecoder(OpenAI.on_event), b"data: " + data + b"\n\n")
    whole = StreamDecoder(OpenAI.on_event, on_whole=OpenAI.on_whole)
    whole.whole(data, 1, 2, 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert (decoder.error.kind, whole.error.kind) == ("event_too_large", "too_large")
    assert decoder.broken
    assert most < 6 * len(data)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_content_behind_the_end_mark_is_named_and_no_chunk(protocol):
    end = {"anthropic": b'data: {"type": "message_stop"}\n\n', "openai": b"data: [DONE]\n\n"}[
        protocol
    ]
    decoder = StreamDecoder(PROTOCOLS[protocol], AnswerSettings(keep_text=True))
    fed(
        decoder,
        word(protocol, "a"),
        end,
        b'data: {"type": "ping", "choices": []}\n\n',
        b": comment\n\n",
        word(protocol, ""),
    )
    assert decoder.error is None, "what is no content may follow"
    fed(decoder, word(protocol, "b"))

    # The SDK reads nothing behind [DONE]; behind message_stop it goes on.
    if protocol == "openai":
        assert decoder.error is None
        assert "data_after_done" in decoder.tolerated
    else:
        assert named(decoder) == ("content_after_end", "content after the end of the answer")
    assert (decoder.text, decoder.chunks) == ("a", 1)


@pytest.mark.parametrize("usage", [b"false", b'""', b"[]", b"0"])
@pytest.mark.parametrize("place", [b'"usage":%b,"choices":[{', b'"choices":[{"usage":%b,'])
def test_a_usage_that_is_no_object_is_noted_by_compiled_code_too(usage, place):
    body = Compiled(plain_decoder())
    body.read(word("openai", "one"))
    body.read(word("openai", "two"), word("openai", "three"))
    body.read(b'data: {%b"index":0,"delta":{"content":"a"}}]}\n\n' % (place % usage))

    assert body.plain > 0
    assert body.decoder.usage.problem is not None


def test_compiled_code_decodes_nothing_behind_the_end_mark():
    body = Compiled(plain_decoder())
    body.read(word("openai", "one"))
    body.read(word("openai", "two"), word("openai", "three"), word("openai", "four"))
    plain = body.plain
    body.read(b"data: [DONE]\n\n", word("openai", "five"))
    body.read(word("openai", "six"))

    assert plain >= 2
    assert (body.plain, body.decoder.plain_kinds) == (plain, 0)


def test_no_more_phases_are_kept_than_anybody_can_mean():
    app = CustomSse(Target(protocol="sse", sse=SseSettings(phase={"event": "status"})), "")
    decoder = fed(
        StreamDecoder(app.on_event), *(b"event: status\ndata: phase %d\n\n" % n for n in range(500))
    )

    assert list(decoder.phases) == [f"phase {n}" for n in range(MAX_PHASES)]


USAGES = {
    "negative": ("-5", "output_tokens = -5"),
    "more than all computers make": ("1" + "0" * 30, "output_tokens = 1" + "0" * 30),
    "a text": ('"many"', "output_tokens = many"),
    "a long text": ('"' + "9" * 9000 + '"', "output_tokens = " + "9" * 200),
    "no number": ("NaN", "output_tokens = nan"),
    "without end": ("1e999", "output_tokens = inf"),
    "a fraction": ("1.5", "output_tokens = 1.5"),
    "a list": ("[[1]]", "output_tokens = list"),
    "true": ("true", "output_tokens = True"),
    "a text below zero": ('"-8"', "output_tokens = -8"),
    "a fraction as text": ('"8.5"', "output_tokens = 8.5"),
    "just too many": ("1099511627776", "output_tokens = 1099511627776"),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("case", USAGES)
def test_a_count_that_cannot_be_is_null_and_named(protocol, case):
    """And so is every count beside it."""
    given, expected = USAGES[case]
    other, name = {
        "openai": ("prompt_tokens", "completion_tokens"),
        "anthropic": ("input_tokens", "output_tokens"),
    }[protocol]
    usage = f'{{"{other}": 5, "{name}": {given}}}'
    body = f'{{"type": "message_delta", "delta": {{"stop_reason": "x"}}, "choices": [], "usage": {usage}}}'
    decoder = StreamDecoder(PROTOCOLS[protocol], AnswerSettings(protocol=protocol))
    fed(decoder, word(protocol, "a"), f"data: {body}\n\n".encode())

    assert decoder.usage.problem == expected
    assert decoder.error is None
    assert decoder.usage.live() == {}


MALFORMED = (
    b"{", b"nonsense", b"null", b"17", b'"text"', b"[]", b"[1, 2]", b"true", b"NaN", b"{}x", b"\xff\xfe", b"\x00",
    b'{"choices": "\xff\xfe"}', b"[" * 100_000, b'{"type":' * 100_000, b"9" * 5000, b'{"choices":[' + b"9" * 5000 + b"]}",
    b'{"usage": {"completion_tokens": %b}}' % (b"9" * 100_000), b'{"choices": %b}' % (b"[" * 10_000 + b"]" * 10_000),
    b'{"usage": ' * 10_000 + b"1" + b"}" * 10_000,
)  # fmt: skip


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: repr(data[:30]))
def test_what_is_not_the_protocol_is_named_short_and_no_error_of_ours(protocol, data):
    decoder = fed(StreamDecoder(PROTOCOLS[protocol]), b"data: %b\n\n" % data, word(protocol, "a"))

    kind, text = named(decoder)
    assert kind == "malformed_event"
    assert len(text) < 250
    assert decoder.chunks == 1, "and the stream goes on"


def test_of_keys_that_come_twice_the_last_stands():
    repeated = b'{"choices": [], "usage": {"prompt_tokens": 1, "prompt_tokens": 7, "completion_tokens": 2}, "usage": null, "usage": {"completion_tokens": 3}}'
    decoder = fed(
        StreamDecoder(OpenAI.on_event, AnswerSettings(protocol="openai")),
        b"data: %b\n\n" % repeated,
    )

    assert (decoder.error, decoder.usage.live()) == (None, {"output_tokens": 3})


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_target_cannot_use_our_names_for_its_errors(name):
    assert error_of({"error": {"type": name}})[0] == quoted(name) == f"target: {name}"


def test_content_with_scripts_and_control_characters_is_content():
    decoder = fed(
        StreamDecoder(OpenAI.on_event, AnswerSettings(keep_text=True)),
        word("openai", "</script>\x1b[31m\x00\u202e"),
    )

    assert decoder.text == "</script>\x1b[31m\x00\u202e"
    assert decoder.fresh.kind[0] == KIND_CODE[TEXT]


def test_a_count_below_zero_does_not_hide_in_a_sum():
    usages = ({"input_tokens": 10, "output_tokens": 10}, {"input_tokens": 10, "output_tokens": -4})
    lines = [
        {
            "custom_id": str(n),
            "result": {"type": "succeeded", "message": {"model": "m", "usage": usage}},
        }
        for n, usage in enumerate(usages)
    ]
    decoder = StreamDecoder(
        Anthropic.on_event, AnswerSettings(protocol="anthropic"), on_whole=Anthropic.on_job
    )
    decoder.whole("\n".join(map(json.dumps, lines)).encode(), 1, 2, 0)

    assert decoder.error.kind == "malformed_answer"
    assert decoder.usage.live() == {}
