"""Random streams of two protocols: most reads are one chunk with one content event."""

from __future__ import annotations

import itertools
import json
from functools import partial
from random import Random
from typing import Any

from transport.scripted_server import chunk

from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.openai import OpenAI

TEXTS = (" the", "a", " Zürich", " \u65e5\u672c", "\n\n", 'say "x"', "back\\slash", "", "\ud83d\ude00", "\u00a0", "\x7f",
         "tiny", '","y":"', "\U0001f600", "another text in the same place", " ", "\u2028", "\ud800")  # fmt: skip


def openai_event(rng: Random, *, changing: bool = False) -> bytes:
    kind = rng.choices(
        ("content", "reasoning", "reasoning_content", "tool", "two", "odd"),
        (300 if changing else 30, 4, 4, 2, 1, 2),
    )[0]
    text, more = rng.choice(TEXTS), {}
    delta: dict[str, Any] = {kind: text}
    if kind == "tool":
        delta = {"tool_calls": [{"index": rng.randrange(2), "function": {"arguments": text}}]}
    elif kind == "two":
        delta = {"content": text, "reasoning": "why"}
    elif kind == "odd":
        delta = rng.choice(
            ({"content": None}, {"content": 5}, {}, {"role": "assistant", "content": text})
        )
        more = rng.choice(({}, {"usage": {"completion_tokens": 3}}, {"error": {"message": "no"}}))
    tree = {
        "id": "c1",
        "model": "tiny",
        "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
        **more,
    }
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.5)
    if changing:
        data = changed(rng, tree, text)
    return b"data: " + data.encode("utf-8", "surrogatepass")


_COUNTS = itertools.count(1)


def changed(rng: Random, tree: dict[str, Any], text: str) -> str:
    """The event with values that change from one to the next, and now and then another order, key or kind of value."""
    (choice,) = tree["choices"]
    logprob = {
        "token": text,
        "logprob": -rng.random(),
        "bytes": list(text.encode("utf-8", "replace")),
    }
    prompt, cached = rng.choices(((9, 4), (3, 4), (9, -1)), (90, 2, 1))[0]
    count = next(_COUNTS)  # running counts grow
    odd_count = rng.choices((count, -1, "5", 10**11, True), (90, 1, 1, 1, 1))[0]
    usage: Any = {
        "prompt_tokens": prompt,
        "completion_tokens": odd_count,
        "total_tokens": prompt + count,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if rng.random() < 0.05:
        usage["completion_tokens_details"] = {"reasoning_tokens": rng.choice((0, 5))}
    tree |= {
        "id": f"c{rng.randrange(3)}",
        "created": rng.choices((1763660000, 1763660001, 1e9), (30, 9, 1))[0],
    }
    tree |= {"usage": usage} if rng.random() < 0.95 else {}
    padding = ("", "x", "abc", "a" * 9, text, 'q"', "}]}", "\\", "\u00e9", "\ud800", 5)
    tree["obfuscation"] = rng.choices(padding, (30, 30, 30, 30, 30, 1, 1, 1, 1, 1, 1))[0]
    choice["logprobs"] = {
        "content": [{**logprob, "top_logprobs": [logprob] * (rng.random() < 0.05)}]
    }
    odd = rng.random() if rng.random() < 0.2 else 0.5
    if odd < 0.03:
        choice["finish_reason"] = "stop"
    elif odd < 0.06:
        tree["choices"] = [choice, choice]
    elif odd < 0.09:
        tree = dict(reversed(tree.items()))
    elif odd < 0.12:
        tree["more"] = text
    elif odd < 0.15:
        tree["usage"] = rng.choice((None, 5, {}, {"prompt_tokens_details": "none"}))
    elif odd < 0.18:
        choice["delta"]["tool_calls"] = [{"index": 0, "function": {"arguments": text}}]
    elif odd < 0.21:
        tree["error"] = rng.choice((None, {"message": text}))
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    if odd > 0.97:
        data = data.replace(
            '"created":1', rng.choice(('"created":01', '"created":1e', '"created":' + "1" * 40))
        )
    elif odd > 0.94:
        data = data.replace('"obfuscation"', '"usage":{"completion_tokens":3},"obfuscation"')
    return data


def anthropic_event(rng: Random) -> bytes:
    kind, key = rng.choices(
        (
            ("text_delta", "text"),
            ("thinking_delta", "thinking"),
            ("input_json_delta", "partial_json"),
            ("x", "text"),
        ),
        (30, 6, 3, 1),
    )[0]
    delta = {"type": kind, key: rng.choice(TEXTS)}
    tree = {"type": "content_block_delta", "index": 0, "delta": delta}
    if rng.random() < 0.03:
        tree = rng.choice(
            ({"type": "ping"}, {"type": "error", "error": {"type": "overloaded_error"}})
        )
    data = json.dumps(tree, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    return b"event: %b\ndata: %b" % (tree["type"].encode(), data)


FIRST = {
    OpenAI: b'data: {"id":"c1","model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
    Anthropic: b'data: {"type":"message_start","message":{"id":"m1","model":"tiny","usage":{"input_tokens":3}}}',
}
MAKE = {
    "openai": openai_event,
    "changing": partial(openai_event, changing=True),
    "anthropic": anthropic_event,
}


def wire(name: str, module: Any, rng: Random, repeats: int = 1) -> list[bytes]:
    """Reads: most are one chunk with one event; some are cut, some joined, some oddly spelt; an event comes `repeats` times at most."""
    named = rng.random() < 0.9  # the stream says which model answers
    events = [FIRST[module]] if named else []
    events += [MAKE[name](rng) for _ in range(rng.randrange(40))]
    events = [event for event in events for _ in range(rng.randint(1, repeats))]
    reads = [b""]
    for event in events:
        end = rng.choices(
            (b"\n\n", b"\r\n\r\n", b"\n\n\n", b"\n\n: comment\n\n", b"\n"), (60, 1, 1, 1, 1)
        )[0]
        sent = chunk(event + end)
        odd = rng.random()
        if odd < 0.02:
            sent = b"0" + sent
        elif odd < 0.04:
            sent = sent.replace(b"\r\n", b";x=1\r\n", 1)
        elif odd < 0.06:
            sent = sent.replace(b"a", b"\xff", 1)
        if odd > 0.94:
            reads[-1] += sent
        elif odd > 0.88:
            cut = rng.randrange(len(sent))
            reads += [sent[:cut], sent[cut:]]
        else:
            reads.append(sent)
    return [read for read in reads if read] + [b"0\r\n\r\n"][: rng.randrange(2)]
