"""Plain events decoded by compiled code give what the decoder in Python gives: the streams are random."""

from functools import partial
from random import Random

import pytest
from protocols import nearly_plain, random_streams
from protocols.both_decodings import both_ways, differences
from protocols.random_streams import FIRST
from transport.scripted_server import chunk
from wire.oracle import DRAW

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.openai import OpenAI

FEW, MANY = 200, 5000
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def usual(name, module, rng):
    """The head of a response, and the reads of its body."""
    return HEAD, random_streams.wire(name, module, rng)


def of_grammar(module, rng):
    """A stream of tests/wire/grammar, split at other places; most are framed in another way, too."""
    stream = DRAW[module.name](str(rng.random()))
    if rng.random() < 0.8:
        return nearly_plain.framed(rng, [event.wire for event in stream.events])
    head, blank, body = stream.wire.partition(b"\r\n\r\n")
    return head + blank, nearly_plain.split(rng, body)


DRAWS = {
    "openai": (OpenAI, partial(usual, "openai", OpenAI)),
    "changing": (OpenAI, partial(usual, "changing", OpenAI)),
    "anthropic": (Anthropic, partial(usual, "anthropic", Anthropic)),
    "grammar_openai": (OpenAI, partial(of_grammar, OpenAI)),
    "grammar_anthropic": (Anthropic, partial(of_grammar, Anthropic)),
    "nearly_plain_openai": (OpenAI, partial(nearly_plain.wire, OpenAI)),
    "nearly_plain_anthropic": (Anthropic, partial(nearly_plain.wire, Anthropic)),
}


@pytest.mark.parametrize("name", DRAWS)
def test_streams_that_are_decoded_both_ways_give_the_same(name, fuzz):
    """However they are written, damaged, split over chunks and reads, and whenever Python looks."""
    pytest.importorskip("tailgauge.transport._core", reason="it is not compiled here")
    module, draw = DRAWS[name]
    seed, numbers, repeats_one = fuzz(FEW, MANY)
    plain = chunks = 0
    for number in numbers:
        draw_seed = f"{seed}-{name}-{number}"
        head, reads = draw(Random(draw_seed))
        compiled, in_python = both_ways(module, head, reads, draw_seed)
        plain += compiled["plain"]
        chunks += compiled["chunks"]

        assert differences(compiled, in_python) == [], f"stream {number}: fact, compiled, in Python"
    assert repeats_one or plain > chunks / 50, "else nothing was compared"


NAMES = {OpenAI: b"", Anthropic: b"event: content_block_delta\n"}
END_MARKS = {
    OpenAI: b"data: [DONE]",
    Anthropic: b'event: message_stop\ndata: {"type":"message_stop"}',
}
FRAMINGS = {
    "chunked": (HEAD, lambda parts: [*map(chunk, parts), b"0\r\n\r\n"]),
    "end of the body in one read": (HEAD, lambda parts: [*map(chunk, parts[:-1]), chunk(parts[-1]) + b"0\r\n\r\n"]),
    "counted": (b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n", list),
    "until the connection closes": (b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", list),
}  # fmt: skip


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("line_end", [b"", b"\n"])
@pytest.mark.parametrize("module", END_MARKS)
def test_an_end_mark_without_a_blank_line_is_read_behind_events_that_are_all_plain(
    module, line_end, framing
):
    """None of them has a reason to stop, so the answer is aborted by its target, and not cut on its way."""
    pytest.importorskip("tailgauge.transport._core", reason="it is not compiled here")
    event = NAMES[module] + b"data: " + nearly_plain.PLAIN[module] + b"\n\n"
    parts = [FIRST[module] + b"\n\n", event, event, event, END_MARKS[module] + line_end]
    head, as_reads = FRAMINGS[framing]
    if b"%d" in head:
        head %= sum(map(len, parts))
    for number in range(20):
        compiled, in_python = both_ways(module, head, as_reads(parts), number)

        assert differences(compiled, in_python) == []
        assert compiled["facts"]["cut"] != "None" or "aborted" in compiled["facts"]["outcome"]


@pytest.mark.parametrize("module", END_MARKS)
def test_a_text_that_is_too_large_ends_both(module):
    pytest.importorskip("tailgauge.transport._core", reason="it is not compiled here")
    event = NAMES[module] + b"data: " + nearly_plain.PLAIN[module] + b"\n\n"
    large = event.replace(b"word", b"w" * 65_500)
    parts = [FIRST[module] + b"\n\n", event, *[large] * 20]
    compiled, in_python = both_ways(module, HEAD, [*map(chunk, parts)], 16)

    assert compiled["plain"] > 0
    assert compiled["facts"]["outcome"] == in_python["facts"]["outcome"]
    assert "too_large" in compiled["facts"]["outcome"]


@pytest.mark.parametrize("index", [b"{}", b"[]", b"[0]", b"null", b"-1", b'"0"'])
@pytest.mark.parametrize("delta", [b'"text_delta","text"', b'"input_json_delta","partial_json"'])
def test_a_block_whose_index_is_no_number_has_content_either_way(delta, index):
    pytest.importorskip("tailgauge.transport._core", reason="it is not compiled here")
    event = b"data: " + nearly_plain.PLAIN[Anthropic] + b"\n\n"
    other = event.replace(b'"text_delta","text"', delta)
    odd = other.replace(b'"index":0', b'"index":' + index)
    parts = [FIRST[Anthropic] + b"\n\n", event, other, event, other, odd, odd, event]
    for number in range(20):
        compiled, in_python = both_ways(Anthropic, HEAD, [*map(chunk, parts)], number)

        assert differences(compiled, in_python) == []
        assert compiled["chunks"] == 7
