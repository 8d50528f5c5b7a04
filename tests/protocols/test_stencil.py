"""The quick way through plain content events does what the full reading does. What happens is in scripts/stencil.py."""

from __future__ import annotations

import json
import tracemalloc
from random import Random

import pytest

from tailgauge.protocols import stencil
from tailgauge.protocols.decoder import KIND_CODE
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.stencil import COUNT, FREE, SAME, Stencil, Stencils, _leaves, _pattern, _shape
from tailgauge.rows.schema import TEXT

TEXT_CODE = KIND_CODE[TEXT]


@pytest.fixture(scope="module", params=["compiled", "python"])
def seen(run_script, request):
    return run_script("protocols/scripts/stencil.py", request.param)


@pytest.mark.parametrize("protocol", ["openai", "changing", "anthropic"])
def test_streams_decoded_by_their_stencil_give_what_the_full_reading_gives(seen, protocol):
    facts = seen[protocol]

    assert facts["different"] == []
    assert facts["skimmed"] > facts["chunks"] / 10  # else nothing was compared


def event(number: int, text: str) -> bytes:
    tree = {"id": f"c{number}", "created": number, "choices": [{"delta": {"content": text}}]}
    tree |= {"usage": {"prompt_tokens": 5, "completion_tokens": number}, "obfuscation": "x" * number}
    return b"data: " + json.dumps(tree).encode()


def read(number: int, text: str) -> bytes:
    sent = event(number, text) + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(sent), sent)


def test_what_one_stream_taught_serves_the_others_of_its_target():
    stencils = Stencils(OpenAI.on_event, OpenAI.changing)
    stencils.look(event(1, "one") + b"\n\n", b"", event(1, "one")[6:])
    reads = [read(number, f"text {number}") for number in range(40)]

    known, texts = stencils.texts(reads, 0, None, [TEXT_CODE])

    assert texts == [f"text {number}" for number in range(39)]  # the last count is read in full
    assert stencils.texts(reads, 30, known, [TEXT_CODE]) == (known, texts[30:])
    assert stencils.texts(reads, 0, None, []) == (None, []), "a kind that the stream has not brought yet"


NOT_COMPILED = "it is not compiled here: that needs Linux, a C compiler and Python's headers"
HOLED = b'","logprobs":[{"token":"a","logprob":-0.5,"bytes":[7, 0]}],"n":3,"same":12,"pad":"x"}\n\n'


def patterns() -> tuple[bytes, str, tuple[bytes, ...]]:
    """Of the rest of an event behind its text: as a pattern, and as kinds of holes with what is behind each."""
    changing = {"logprobs": FREE, "n": COUNT, "same": SAME, "pad": FREE}
    data = b'{"text":"' + HOLED[:-2]
    leaves = [leaf._replace(begin=leaf.begin - 9, end=leaf.end - 9) for leaf in _leaves(data)][1:]
    holes = [(leaf, changing[leaf.path.partition("/")[0]]) for leaf in leaves]
    kinds, parts = _shape(HOLED, holes)
    return _pattern(HOLED[1:], holes, 1), f"T{kinds}", parts


def test_a_compiled_comparison_finds_what_the_pattern_finds_and_only_json(monkeypatch):
    """In events that were damaged anywhere, or have other values."""
    _reader = pytest.importorskip("tailgauge.transport._reader", reason=NOT_COMPILED)
    rng, (pattern, *holes), found, same = Random(5), patterns(), 0, 0
    compiled = stencil._rest(pattern, *holes)
    monkeypatch.setattr(stencil, "_holes", None)
    python = stencil._rest(pattern, *holes)
    values = (b"0", b"-0.0", b"1e9", b"01", b"1e", b"-", b".5", b"1" * 12, b"[]", b"[1,]", b"[,1]", b"[1,2]", b"[-1.5, 2e-3]",
              b"\\n", b"\\u00e9", b"\\u00g9", b"\\x", b"\\", b'\\"', "é".encode(), b"\xff", b"\xed\xa0\x80", b"\xed\x9f\xbf", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98\x80", b"\xe2\x82", b"\n", b'"', b"\0", b"")  # fmt: skip
    plain = Stencil(b"", python, None, 0, (f"t{holes[0][1:]}", (b"", *holes[1])), counts=False).plain([b"12"])
    for _ in range(20_000):
        read = b"text" + HOLED + b"\r\n"
        for _ in range(rng.choice((0, 1, 1, 2))):
            begin = rng.randrange(len(read))
            read = read[:begin] + rng.choice(values) + read[begin + rng.choice((0, 1, 1, 3)) :]
        one, other = compiled(read, 0), python(read, 0)
        assert list(one or ()) == list(other or ()), read
        reads, texts = [(b"%x\r\n%b" % (len(read) - 2, read), 1, 2, 0)], bytearray()
        _reader.take_texts(reads, texts, *plain)
        if one:
            found += 1
            event = json.loads(b'{"text":"' + read)
            assert event["same"] == json.loads(one[1])
            same += event["same"] == 12
        wanted = len(event["text"]) if one and event["same"] == 12 else 0
        assert memoryview(bytes(texts)).cast("q").tolist() == (
            [1, 2, 0, wanted, len(read) + 4] if wanted else []
        ), read
        assert bool(reads) == (not wanted)
    assert 1000 < same < found < 19_000


@pytest.mark.parametrize("length", [256, 4096])
def test_a_chunk_that_is_a_byte_longer_than_its_size_is_left_to_the_full_reading(length):
    """Only a size with a leading zero gives a read of this length."""
    stencils = Stencils(OpenAI.on_event, OpenAI.changing)
    one = event(1, "one") + b"\n\n"
    stencils.look(one, b"", one[6:-2])
    text = "a" * (length - len(event(1, "")) - 2)
    whole = event(1, text) + b"\n\n"

    found = [
        stencils.texts([size + b"\r\n" + whole + b"\r\n"] * 2, 0, None, [TEXT_CODE])[1]
        for size in (b"%x" % length, b"%x" % (length - 1), b"0%x" % length)
    ]
    assert found == [[text], [], []]


def test_what_a_target_sends_is_remembered_within_bounds():
    """Three answers of 2,500 pieces of 40 kB each took 1.4 GB, for ever; so did each length of a read, and large events."""
    tracemalloc.start()
    stencils = Stencils(OpenAI.on_event, OpenAI.changing)
    stencils.look(event(1, "one") + b"\n\n", b"", event(1, "one")[6:])
    for number in range(2500):
        text = f"{number}".rjust(10_000 + number)
        assert stencils.texts([read(2, text), read(3, "x")], 0, None, [TEXT_CODE])[1][:1] == [text]
    for number in range(30):
        sent = event(number, "a" * 50_000).replace(b'"id"', b'"id%d"' % number)
        stencils.look(sent + b"\n\n", b"", sent[6:])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 2 << 20


def test_a_count_that_others_are_subtracted_from_ends_what_is_decoded_at_once():
    stencils = Stencils(OpenAI.on_event, OpenAI.changing)
    stencils.look(event(1, "one") + b"\n\n", b"", event(1, "one")[6:])
    reads = [read(number, "a") for number in range(6)]
    reads[3] = reads[3].replace(b'"prompt_tokens": 5', b'"prompt_tokens": 6')

    assert len(stencils.texts(reads, 0, None, [TEXT_CODE])[1]) == 2


def test_a_target_whose_events_have_no_form_in_common_is_not_learnt_from_for_ever():
    looked = []

    def on_event(decoder, name, data):
        looked.append(data)
        OpenAI.on_event(decoder, name, data)

    stencils = Stencils(on_event, {})
    for number in range(1000):
        stencils.look(event(number, "one") + b"\n\n", b"", event(number, "one")[6:])

    assert len(looked) < 200
