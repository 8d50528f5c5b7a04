"""Script: the preflight against targets that refuse the model, with and without a list of models, and against tokenizers."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import gevent
import gevent.event
from starting.script import case, print_facts
from transport.scripts.scripted_server import REST_S, Server
from worker.one_call import Rows, endpoint

from tailgauge.call import MAIN
from tailgauge.plan.preflight import Learnt
from tailgauge.plan.preflight import preflight_calls as preflight
from tailgauge.prompts import Maker
from tailgauge.prompts.words import run_salt
from tailgauge.protocols.additions import OF_MODEL
from tailgauge.scenario.model import parse
from tailgauge.schedule.schedule import Planned
from tailgauge.worker import preflight_calls
from tailgauge.worker.attempts import Attempts
from tailgauge.worker.counters import Counters
from tailgauge.worker.preflight_calls import try_out

LISTED = {"object": "list", "data": [{"id": "qwen-7b"}, {"id": "qwen-7b-lora"}], "has_more": False}


class AllRows(Rows):
    """Keeps requests too."""

    def request(self, row: Any) -> None:
        self.rows.append(row)


def answer(status: str, body: Any) -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n"
    return head.encode() + text


def tried(protocol: str, refusal: bytes, models: bytes, **scenario_tables: Any) -> dict[str, Any]:
    """The message `tried`, and the first lines of the requests that the target got."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        while request := server.request(sock):
            sock.sendall(models if request.startswith(b"GET ") else refusal)

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    target = {"url": url, "protocol": protocol}
    scenario = parse({"name": "x", "target": target, **scenario_tables}, "test")
    recorder, counters = AllRows(), Counters()
    attempts = Attempts("run-1", {MAIN: endpoint(url, protocol)}, recorder, counters, 10.0)
    found = try_out(scenario, attempts, recorder, {}, lambda *_: {}, salt="")
    lines = [request.split(b" HTTP")[0].decode() for request in server.requests]
    return {
        "call": found["calls"][-1],
        "requests": lines,
        "streams": [b'"stream":true' in request.replace(b" ", b"") for request in server.requests],
        "rows": len(recorder.rows),
        "open": attempts.in_flight(),
    }


@case
def models() -> Any:
    unknown = {"error": {"message": "The model `tiny` does not exist.", "type": "NotFoundError"}}
    lists, refuses = answer("200 OK", LISTED), answer("404 Not Found", unknown)
    return {
        "openai": tried("openai", refuses, lists),
        "anthropic": tried("anthropic", refuses, lists),
        "400": tried("openai", answer("400 Bad Request", unknown), lists),
        "no list": tried("openai", refuses, refuses),
        "another list": tried("openai", refuses, answer("200 OK", ["a"])),
        "no JSON": tried("openai", refuses, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        "no answer": tried("openai", refuses, b""),
        "boom": tried("openai", answer("500 Internal Server Error", {}), lists),
        "sse": tried("sse", refuses, lists),
    }


MESSAGE = {"role": "assistant", "content": "three words here"}
WHOLE = {"id": "c", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}
PIECE = {"id": "c", "choices": [{"index": 0, "delta": MESSAGE, "finish_reason": "stop"}]}


def stream_of(*events: str) -> bytes:
    body = "".join(f"data: {event}\n\n" for event in events).encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@case
def forms() -> Any:
    """Whole answers and streams to calls that want the one or the other; and redirects."""
    streamed = stream_of(json.dumps(PIECE), "[DONE]")
    whole = answer("200 OK", WHOLE)
    wants_whole = {"traffic": {"main": {"stream": False}}}
    location = (
        "https://user:hunter2hunter2@api.example/v1/chat/completions?token=abcdefgh12345678#part"
    )
    redirect = f"HTTP/1.1 308 Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n".encode()
    return {
        "whole": tried("openai", whole, b"", **wants_whole),
        "only streams": tried("openai", streamed, b"", **wants_whole),
        "only whole": tried("openai", whole, b""),
        "redirect": tried("openai", redirect, b""),
    }


def listed_again(answering: tuple[int, ...]) -> dict[str, Any]:
    """The first connection answers once and is closed with the second request; of the later ones these answer."""
    server: Server

    def handler(sock: Any, number: int) -> None:
        for _ in range(1 if number == 0 else 9):
            if number in answering and server.request(sock):
                sock.sendall(answer("200 OK", LISTED))
        server.request(sock)

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    attempts = Attempts("run-1", {MAIN: endpoint(url, "openai")}, AllRows(), Counters(), 10.0)
    first = attempts.models(MAIN)
    gevent.sleep(2 * REST_S)
    again = attempts.models(MAIN)
    return {
        "first": len(first),
        "again": len(again),
        "connections": server.connections,
        "requests": len(server.requests),
    }


@case
def closed_meanwhile() -> Any:
    return {"answers then": listed_again((0, 1)), "closed again": listed_again((0,))}


USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}
COUNTED = stream_of(
    json.dumps(PIECE), json.dumps({"id": "c", "choices": [], "usage": USAGE}), "[DONE]"
)
LOADING = answer("503 Service Unavailable", {"error": {"code": 503, "message": "Loading model"}})


def prepared(
    answers: dict[int, list[bytes]], delay_s: float = 0.0, **limits: float
) -> dict[str, Any]:
    """What the preflight finds, and says meanwhile. The server's answers by connection; after the last it closes.

    A connection that is not listed answers as many as it is asked.
    """
    server: Server

    def handler(sock: Any, number: int) -> None:
        listed = answers.get(number, [COUNTED] * 9)
        for text in listed:
            if not server.request(sock):
                return
            gevent.sleep(delay_s)
            sock.sendall(text)
        server.request(sock)

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    tables = {"target": {"url": url, "protocol": "openai", "engine": "vllm"}, "limits": limits}
    recorder = AllRows()
    attempts = Attempts("run-1", {MAIN: endpoint(url, "openai")}, recorder, Counters(), 10.0)
    notes: list[str] = []
    scenario = parse({"name": "x", **tables}, "test")
    found = try_out(scenario, attempts, recorder, {}, lambda *_: {}, salt="", notify=notes.append)
    return {
        "calls": found["calls"],
        "tries": [row.attempts for row in recorder.rows if hasattr(row, "attempts")],
        "notes": [text.replace(url, "URL") for text in notes],
        "spent": found["spent"][0],
        "connections": server.connections,
    }


def second_call(answering: tuple[int, ...]) -> list[list[Any]]:
    """How the tries of a second call end: its idle connection is closed with it; of the later ones these answer."""
    server: Server

    def handler(sock: Any, number: int) -> None:
        if number in answering and server.request(sock):
            sock.sendall(COUNTED)
        server.request(sock)

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    scenario = parse({"name": "x", "target": {"url": url, "protocol": "openai"}}, "test")
    attempts = Attempts("run-1", {MAIN: endpoint(url, "openai")}, AllRows(), Counters(), 10.0)
    first, second = preflight(scenario)
    preflight_calls.call_once(attempts, AllRows(), first, lambda _: False)
    gevent.sleep(2 * REST_S)
    rows = preflight_calls.call_once(attempts, AllRows(), second, lambda _: False)
    return [[row.ended, row.cause, row.of_attempt, row.input_tokens] for row in rows]


@case
def stale() -> Any:
    return {"answers then": second_call((0, 1)), "closed again": second_call((0,))}


@case
def loading() -> Any:
    preflight_calls._PAUSE_S = 0.01
    loads = {0: [LOADING] * 3 + [COUNTED] * 9}
    facts = {
        "waits": prepared(loads, ready_s=30.0),
        "in vain": prepared({number: [LOADING] * 99 for number in range(9)}, ready_s=0.05),
        "no wait": prepared(loads),
        "ready": prepared({}, ready_s=30.0),
    }
    preflight_calls._NOTE_S = 0.0
    facts["noted"] = prepared(loads, ready_s=30.0)
    preflight_calls._SILENT_S = 0.05
    return facts | {"slow": prepared({}, delay_s=0.15)}


def overlapping(refusal: bytes) -> dict[str, Any]:
    """A short answer of which half has come when the long call arrives; that is refused then, and answered later."""
    server: Server
    long_call = gevent.event.Event()
    seen: list[str] = []
    head, first, rest = COUNTED.partition(f"data: {json.dumps(PIECE)}\n\n".encode())

    def handler(sock: Any, number: int) -> None:
        while server.request(sock):
            if number == 0 and not long_call.is_set():
                sock.sendall(head + first)
                seen.append("first half")
                if not long_call.wait(10):
                    seen.append("no long call")
                sock.sendall(rest)
                continue
            is_beside = not long_call.is_set()
            seen.append("long")
            sock.sendall(refusal or COUNTED if is_beside else COUNTED)
            long_call.set()

    server = Server(handler)
    url = server.url.removesuffix("/v1")
    scenario = parse(
        {"name": "x", "target": {"url": url, "protocol": "openai", "engine": "vllm"}}, "test"
    )
    recorder = AllRows()
    attempts = Attempts("run-1", {MAIN: endpoint(url, "openai")}, recorder, Counters(), 10.0)
    found = try_out(scenario, attempts, recorder, {}, lambda *_: {}, salt="")
    return {
        "seen": seen,
        "calls": [[call["words"], call["ended"], call["input_tokens"]] for call in found["calls"]],
        "tries": {
            row.request_id: row.attempts for row in recorder.rows if hasattr(row, "attempts")
        },
        "spent": found["spent"][0],
    }


@case
def beside() -> Any:
    return {
        "answered": overlapping(b""),
        "one at a time": overlapping(
            answer("429 Too Many Requests", {"error": {"message": "one call at a time"}})
        ),
    }


def tokens_of(text: str, rule: str) -> list[int]:
    """A planted tokenizer: words of up to six letters are one token behind a space, others two, at the beginning one more."""
    found = []
    for word in re.findall(r" ?[^ ]+", text):
        size = 5 if len(word) > 12 else 1 + (len(word) > 7) + (word[0] != " ")
        if rule == "merging" and found and word.startswith(" s"):
            size -= 1  # a token that spans two words
        if rule == "long words only":
            size += 1
        found += [zlib.crc32(f"{word}{i}".encode()) for i in range(size)]
    return found


def usage(text: str, rule: str) -> int:
    """What the planted engine counts for a prompt: a template of eleven tokens around it."""
    return 11 + len(tokens_of(text, "long words only" if rule == "another tokenizer" else rule))


def stream(tokens: int) -> bytes:
    """An answer of one token, with the usage."""
    used = {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1}
    events = [{"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]}, {"choices": [], "usage": used}]  # fmt: skip
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(text)}\r\n\r\n"
    )
    return (head + text).encode()


BROKEN = {
    "strings": answer("200 OK", {"tokens": ["a", "b"]}),
    "null": answer("200 OK", {"tokens": None}),
    "nothing": answer("200 OK", {"tokens": []}),
    "no JSON": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "404": answer("404 Not Found", {"error": "no such page"}),
    "cut": b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{",
}


def sized(
    rule: str, maker_of: str = "vllm", salt: str = run_salt("run-1"), **target: Any
) -> dict[str, Any]:
    """What is learnt at a planted tokenizer, what it was asked, and what the engine counts for prompts of some sizes."""
    server: Server

    def handler(sock: Any, _: int) -> None:
        while request := server.request(sock):
            body = json.loads(request.partition(b"\r\n\r\n")[2] or "{}")
            if request.startswith(b"GET "):
                sock.sendall(answer("200 OK", {"data": [{"id": "tiny", OF_MODEL: maker_of}]}))
            elif request.startswith(b"POST /tokenize "):
                asked.append((body, b"authorization: Bearer " in request))
                found = tokens_of(body.get("prompt", body.get("content")), rule)
                sock.sendall(BROKEN.get(rule) or answer("200 OK", {"tokens": found}))
            else:
                sock.sendall(stream(usage(body["messages"][0]["content"], rule)))

    asked: list[Any] = []
    server = Server(handler)
    url = server.url.removesuffix("/v1")
    scenario = parse({"name": "x", "target": {"url": url, "protocol": "openai", **target}}, "test")
    attempts = Attempts("run-1", {MAIN: endpoint(url, "openai")}, AllRows(), Counters(), 10.0)
    learnt = Learnt(
        *try_out(scenario, attempts, attempts._recorder, {}, lambda *_: {}, salt=salt)["learnt"]
    )
    maker = Maker(
        3, scenario.traffic["main"], "main", 1 / learnt.tokens_per_word, learnt.overhead_tokens,
        run=salt, words=learnt.words,
    )  # fmt: skip
    got = {}
    for number, size in enumerate((learnt.overhead_tokens + 1, 40, 41, 42, 333, 4000)):
        (made,) = maker.make(Planned(number * 65536, 0, "main", size, 10))
        got[size] = usage(made.messages[0].parts[0].text, rule)
    facts = learnt.facts(scenario) | {"words": len(learnt.words)}
    return {
        **facts,
        "got": got,
        "asked": [(sorted(body), body["model"], key) for body, key in asked],
    }


@case
def sizes() -> Any:
    return {
        "salted": sized("mixed"),
        "repeated": sized("mixed", salt=""),
        "llama.cpp": sized("mixed", maker_of="llamacpp"),
        "named": sized("mixed", maker_of="a gateway", engine="sglang"),
        "a gateway": sized("mixed", maker_of="a gateway"),
        **{
            rule: sized(rule)
            for rule in ("merging", "another tokenizer", "long words only", *BROKEN)
        },
    }


if __name__ == "__main__":
    print_facts(limit_s=50)  # the SDKs are imported in it
