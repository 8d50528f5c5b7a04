"""Both SDKs decode the endpoint's streams alike, wherever the network cuts them."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from .relay import Relay

# The model's name is the caller's own text in the stream: once in Anthropic's, in every chunk of OpenAI's.
MODEL = "tiny-é-漢字-🦊|\u2028\u0085-\u00a0"
HELLO = [{"role": "user", "content": "hello world"}]
BODY = {"model": MODEL, "max_tokens": 6, "messages": HELLO, "stream": True}
Decode = Callable[[httpx2.Client], list[dict[str, Any]]]


def by_anthropic(client: httpx2.Client):
    sdk = anthropic.Anthropic(
        base_url="http://relay.test", api_key="unused", max_retries=0, http_client=client
    )
    return [event.to_dict() for event in sdk.messages.create(**BODY)]


def by_openai(client: httpx2.Client):
    sdk = openai.OpenAI(
        base_url="http://relay.test/v1", api_key="unused", max_retries=0, http_client=client
    )
    return [chunk.to_dict() for chunk in sdk.chat.completions.create(**BODY)]


DECODERS: dict[str, Decode] = {"/v1/messages": by_anthropic, "/v1/chat/completions": by_openai}


@pytest.fixture(params=DECODERS)
def recorded(request, quick):
    """A stream as the endpoint sent it, and what its SDK makes of it when cut at some places."""
    call = urllib.request.Request(f"{quick.url}{request.param}", json.dumps(BODY).encode())
    with urllib.request.urlopen(call, timeout=10) as response:
        relay = Relay(response.read())
    with httpx2.Client(transport=relay) as client:

        def decode(cuts: Sequence[int]):
            relay.cuts = cuts
            return DECODERS[request.param](client)

        yield relay, decode


def test_the_stream_holds_characters_of_two_three_and_four_bytes(recorded):
    relay, decode = recorded
    assert all(mark.encode() in relay.body for mark in "é漢🦊")
    text_read = json.dumps(decode(()), ensure_ascii=False)
    assert json.dumps(MODEL, ensure_ascii=False)[1:-1] in text_read
    assert "�" not in text_read


def test_one_cut_at_each_place_changes_nothing(recorded, full_size):
    relay, decode = recorded
    expected = decode(())
    events = 11 if "type" in expected[0] else 8
    assert len(expected) == events
    inside = [i for i in range(1, len(relay.body)) if relay.body[i] & 0xC0 == 0x80]
    ends = [
        i
        for i in range(1, len(relay.body))
        if relay.body[i - 1 : i + 1] in {b"\n\n", b"\nd", b"}\n", b": "}
    ]
    places = (
        range(1, len(relay.body))
        if full_size
        else sorted({*inside, *ends, *range(1, len(relay.body), 9)})
    )
    assert len(inside) > 10
    for place in places:
        assert decode((place,)) == expected, place


def test_a_byte_at_a_time_changes_nothing(recorded):
    relay, decode = recorded
    assert decode(range(1, len(relay.body))) == decode(())


def test_random_pieces_change_nothing(recorded):
    relay, decode = recorded
    expected, draws = decode(()), random.Random(1)
    for _ in range(60):
        cuts = sorted(draws.sample(range(1, len(relay.body)), draws.randint(2, 40)))
        assert decode(cuts) == expected, cuts


def test_only_a_whole_stream_ends_with_its_mark(recorded):
    """A stream that stops early still decodes: what is missing is the end, and nothing is made up."""
    relay, decode = recorded
    whole, body = decode(()), relay.body
    for end in range(len(body) // 3, len(body) - 2, 97):
        relay.body = body[:end]
        got = decode(())
        assert got == whole[: len(got)]
    relay.body = body
