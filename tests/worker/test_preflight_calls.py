"""The preflight: targets that refuse the model, that load, that only stream; and an engine that is asked for its tokens."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gevent
import gevent.event
import pytest
from transport.scripted_server import REST_S, Server
from worker.one_call import Rows, answer, endpoint, stream, stream_of

from tailgauge.call import MAIN
from tailgauge.master.progress import preflight_failure
from tailgauge.plan.preflight import Learnt, is_loading, may_become_ready
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

pytestmark = pytest.mark.gevent

LISTED = {"object": "list", "data": [{"id": "qwen-7b"}, {"id": "qwen-7b-lora"}], "has_more": False}
UNKNOWN = {"error": {"message": "The model `tiny` does not exist.", "type": "NotFoundError"}}
MESSAGE = {"role": "assistant", "content": "three words here"}
WHOLE = {"id": "c", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]}
PIECE = {"id": "c", "choices": [{"index": 0, "delta": MESSAGE, "finish_reason": "stop"}]}
USAGE = {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}
COUNTED = stream_of(PIECE, {"id": "c", "choices": [], "usage": USAGE})
LISTS = answer("200 OK", LISTED)
REFUSES = answer("404 Not Found", UNKNOWN)
LOADING = answer("503 Service Unavailable", {"error": {"code": 503, "message": "Loading model"}})


class Preflight:
    """A preflight at a server whose connections are served by `handler`."""

    def __init__(
        self, handler: Callable[[Server, Any, int], None], protocol: str = "openai", **tables: Any
    ) -> None:
        self.server: Server = Server(lambda sock, number: handler(self.server, sock, number))
        self.url = self.server.url.removesuffix("/v1")
        target = {"url": self.url, "protocol": protocol, **tables.pop("target", {})}
        self.scenario = parse({"name": "x", "target": target, **tables}, "test")
        self.rows = Rows()
        self.attempts = Attempts(
            "run-1", {MAIN: endpoint(self.url, protocol)}, self.rows, Counters(), 10.0
        )
        self.notes: list[str] = []

    def run(self, salt: str = "") -> Preflight:
        self.found = try_out(
            self.scenario,
            self.attempts,
            self.rows,
            {},
            lambda *_: {},
            salt=salt,
            notify=self.notes.append,
        )
        self.calls = self.found["calls"]
        self.spent = self.found["spent"][0]
        assert self.attempts.in_flight() == 0
        return self

    @property
    def first_lines(self) -> list[str]:
        return [request.split(b" HTTP")[0].decode() for request in self.server.requests]

    @property
    def tries(self) -> list[int]:
        """Attempts of each request."""
        return [row.attempts for row in self.rows.requests]


# --- models -------------------------------------------------------------------------------------------------------


def tried(protocol: str, to_calls: bytes, to_models: bytes = b"", **tables: Any) -> Preflight:
    """A preflight at a server with one answer to calls and one to the question for its models."""

    def handler(server: Server, sock: Any, _: int) -> None:
        while request := server.request(sock):
            sock.sendall(to_models if request.startswith(b"GET ") else to_calls)

    return Preflight(handler, protocol, **tables).run()


@pytest.mark.parametrize(
    ("protocol", "path"), [("openai", "/v1/chat/completions"), ("anthropic", "/v1/messages")]
)
def test_a_refused_model_is_answered_with_the_list_of_models(protocol, path):
    """The request for the list is no row."""
    seen = tried(protocol, REFUSES, LISTS)

    assert seen.first_lines == [f"POST {path}", "GET /v1/models"]
    assert preflight_failure("http://h", protocol, seen.calls[-1]) == (
        "target http://h answered HTTP 404: The model `tiny` does not exist. It has no model 'tiny': choose "
        "another (--model NAME). It lists qwen-7b, qwen-7b-lora"
    )
    assert len(seen.rows.rows) == 2


def test_other_statuses_of_a_refusal_count_too():
    seen = tried("openai", answer("400 Bad Request", UNKNOWN), LISTS)

    assert seen.calls[-1]["models"] == ["qwen-7b", "qwen-7b-lora"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "to_models"),
    [
        ("openai", REFUSES),
        ("openai", answer("200 OK", ["a"])),
        ("openai", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"),
        ("openai", b""),
        ("sse", LISTS),
    ],
    ids=["no list", "another list", "no JSON", "no answer", "sse"],
)
def test_without_a_list_the_advice_is_about_what_the_target_says(protocol, to_models):
    (call,) = tried(protocol, REFUSES, to_models).calls

    assert call["models"] == []
    assert preflight_failure("http://h", "openai", call).endswith("choose another (--model NAME)")
    not_found = preflight_failure("http://h", "openai", {**call, "message": "Not Found"})
    assert "Is the base URL right, and is the protocol openai? /" in not_found


def test_a_failure_of_the_server_is_not_about_the_model():
    seen = tried("openai", answer("500 Internal Server Error", {}), LISTS)

    assert seen.first_lines == ["POST /v1/chat/completions"]
    assert "models" not in seen.calls[-1]


@pytest.mark.parametrize(("answering", "count"), [((0, 1), 2), ((0,), 0)])
def test_the_list_is_asked_for_again_where_an_idle_connection_was_closed_meanwhile(
    answering, count
):
    """On a new connection, once: if that is closed, too, there is no list."""

    def handler(server: Server, sock: Any, number: int) -> None:
        for _ in range(1 if number == 0 else 9):
            if number in answering and server.request(sock):
                sock.sendall(LISTS)
        server.request(sock)

    seen = Preflight(handler)

    assert len(seen.attempts.models(MAIN)) == 2
    gevent.sleep(2 * REST_S)
    assert len(seen.attempts.models(MAIN)) == count
    assert (seen.server.connections, len(seen.server.requests)) == (2, 3)


@pytest.mark.parametrize(
    ("answering", "again"),
    [((0, 1), ("ok", "retry", 0, 40)), ((0,), ("connect_error", "retry", 0, None))],
)
def test_a_call_whose_idle_connection_was_closed_is_sent_once_more_and_counts(answering, again):
    def handler(server: Server, sock: Any, number: int) -> None:
        if number in answering and server.request(sock):
            sock.sendall(COUNTED)
        server.request(sock)

    seen = Preflight(handler)
    first, second = preflight(seen.scenario)
    preflight_calls.call_once(seen.attempts, Rows(), first, lambda _: False)
    gevent.sleep(2 * REST_S)
    rows = preflight_calls.call_once(seen.attempts, Rows(), second, lambda _: False)

    tries = [(row.ended, row.cause, row.of_attempt, row.input_tokens) for row in rows]
    assert tries == [("connect_error", "primary", None, None), again]


# --- targets that load --------------------------------------------------------------------------------------------


def loading(answers: dict[int, list[bytes]], delay_s: float = 0.0, **limits: float) -> Preflight:
    """The server's answers by connection; after the last it closes. A connection that is not listed answers each time."""

    def handler(server: Server, sock: Any, number: int) -> None:
        for text in answers.get(number, [COUNTED] * 9):
            if not server.request(sock):
                return
            gevent.sleep(delay_s)
            sock.sendall(text)
        server.request(sock)

    return Preflight(handler, target={"engine": "vllm"}, limits=limits).run()


LOADS = {0: [LOADING] * 3 + [COUNTED] * 9}


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(preflight_calls, "_PAUSE_S", 0.01)


@pytest.mark.usefixtures("hasty")
class TestLoading:
    def test_a_target_that_loads_is_waited_for_and_noted_once(self):
        seen = loading(LOADS, ready_s=30.0)

        assert (seen.tries, seen.spent) == ([4, 1, 1], 6)
        assert [call["ended"] for call in seen.calls] == ["ok", "ok"]
        assert seen.notes == [
            f"{seen.url}/v1/chat/completions answered HTTP 503: waiting until it is ready, 30 s at most (limits.ready_s)"
        ]

    def test_a_wait_is_noted_again_with_the_seconds_left(self, monkeypatch):
        monkeypatch.setattr(preflight_calls, "_NOTE_S", 0.0)
        seen = loading(LOADS, ready_s=30.0)

        assert len(seen.notes) == 3
        for note in seen.notes:
            assert re.search(
                r"answered HTTP 503: waiting until it is ready, [23]\d s at most", note
            )

    @pytest.mark.parametrize(
        ("answers", "limits"),
        [({number: [LOADING] * 99 for number in range(9)}, {"ready_s": 0.05}), (LOADS, {})],
        ids=["in vain", "no wait"],
    )
    def test_a_target_that_goes_on_loading_is_not_usable_and_the_message_says_what_to_set(
        self, answers, limits
    ):
        (call,) = loading(answers, **limits).calls

        assert preflight_failure("http://h", "openai", call) == (
            "target http://h answered HTTP 503: Loading model. Is it still loading? "
            "--set limits.ready_s=120 waits for it"
        )

    def test_a_target_that_is_ready_is_asked_once_more_and_not_noted(self):
        seen = loading({}, ready_s=30.0)

        assert (seen.tries, seen.notes, seen.spent) == ([1, 1, 1], [], 3)

    def test_a_call_without_an_answer_for_long_is_noted_during_the_wait(self, monkeypatch):
        monkeypatch.setattr(preflight_calls, "_SILENT_S", 0.05)
        seen = loading({}, delay_s=0.15)

        assert seen.notes[0].startswith(
            f"no answer from {seen.url}/v1/chat/completions within 0.05 s: is it still loading?"
        )
        assert [call["ended"] for call in seen.calls] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("ended", "error_type", "status", "expected"),
    [
        ("connect_error", "tcp", None, True),
        ("connect_error", "tls_certificate", None, False),
        ("overloaded", None, 503, True),
        ("server_error", None, 502, True),
        ("server_error", None, 500, False),
        ("client_error", None, 404, False),
        ("ok", None, 200, False),
    ],
)
def test_only_what_may_pass_by_itself_is_waited_for(ended, error_type, status, expected):
    row = SimpleNamespace(ended=ended, error_type=error_type, status=status)

    assert may_become_ready(row) is expected


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (503, '{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}', True),
        (503, "The model is currently loading, please retry later", True),
        (503, "The server is starting up", True),
        (503, "The engine is currently busy and cannot accept new requests", False),
        (500, "Loading model", False),
        (503, None, False),
    ],
)
def test_a_503_about_the_model_is_one_that_loads(status, message, expected):
    assert is_loading(status, message) is expected


# --- the long call beside the short one ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refusal", "order", "tries"),
    [
        (b"", ["first half", "long"], [1, 1]),
        (
            answer("429 Too Many Requests", {"error": {"message": "one call at a time"}}),
            ["first half", "long", "long"],
            [1, 2],
        ),
    ],
    ids=["answered", "one at a time"],
)
def test_the_long_call_begins_while_the_short_one_is_answered_or_is_sent_again_alone(
    refusal, order, tries
):
    """Half of the short answer has come when the long call arrives; that is refused then, and answered later."""
    long_call = gevent.event.Event()
    seen = []
    head, first, rest = COUNTED.partition(f"data: {json.dumps(PIECE)}\n\n".encode())

    def handler(server: Server, sock: Any, number: int) -> None:
        while server.request(sock):
            if number == 0 and not long_call.is_set():
                sock.sendall(head + first)
                seen.append("first half")
                assert long_call.wait(10)
                sock.sendall(rest)
                continue
            is_beside = not long_call.is_set()
            seen.append("long")
            sock.sendall(refusal or COUNTED if is_beside else COUNTED)
            long_call.set()

    ran = Preflight(handler, target={"engine": "vllm"}).run()

    assert seen == order
    calls = [(call["words"], call["ended"], call["input_tokens"]) for call in ran.calls]
    assert calls == [(32, "ok", 40), (232, "ok", 40)]
    by_id = {row.request_id: row.attempts for row in ran.rows.requests}
    assert by_id == {-1: tries[0], -2: tries[1]}
    assert ran.spent == sum(tries)


def test_a_long_list_is_shortened_and_a_listed_model_is_not_the_reason():
    call = {
        "ended": "client_error",
        "status": 404,
        "error_type": None,
        "message": "no",
        "model": "m1",
    }

    assert preflight_failure("http://h", "openai", call | {"models": ["m1", "m2"]}).endswith(
        "protocol openai?"
    )
    text = preflight_failure("http://h", "openai", call | {"models": [f"m-{n}" for n in range(99)]})
    assert text.endswith("...")
    assert len(text) < 400


# --- the tokens of an engine --------------------------------------------------------------------------------------


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


BROKEN = {
    "strings": answer("200 OK", {"tokens": ["a", "b"]}),
    "null": answer("200 OK", {"tokens": None}),
    "nothing": answer("200 OK", {"tokens": []}),
    "no JSON": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    "404": answer("404 Not Found", {"error": "no such page"}),
    "cut": b"HTTP/1.1 200 OK\r\ncontent-length: 90\r\n\r\n{",
}


class Sized:
    """What is learnt at a planted tokenizer, what it was asked, and what the engine counts for prompts of some sizes."""

    def __init__(
        self, rule: str, maker_of: str = "vllm", salt: str = run_salt("run-1"), **target: Any
    ) -> None:
        self.asked: list[tuple[dict[str, Any], bool]] = []

        def handler(server: Server, sock: Any, _: int) -> None:
            while request := server.request(sock):
                body = json.loads(request.partition(b"\r\n\r\n")[2] or "{}")
                if request.startswith(b"GET "):
                    sock.sendall(answer("200 OK", {"data": [{"id": "tiny", OF_MODEL: maker_of}]}))
                elif request.startswith(b"POST /tokenize "):
                    self.asked.append((body, b"authorization: Bearer " in request))
                    tokens = tokens_of(body.get("prompt", body.get("content")), rule)
                    sock.sendall(BROKEN.get(rule) or answer("200 OK", {"tokens": tokens}))
                else:
                    sock.sendall(stream(usage(body["messages"][0]["content"], rule)))

        ran = Preflight(handler, target=target).run(salt)
        self.learnt = Learnt(*ran.found["learnt"])
        self.facts = self.learnt.facts(ran.scenario)
        maker = Maker(
            3,
            ran.scenario.traffic["main"],
            "main",
            1 / self.learnt.tokens_per_word,
            self.learnt.overhead_tokens,
            run=salt,
            words=self.learnt.words,
        )
        self.counted: dict[int, int] = {}
        sizes = (self.learnt.overhead_tokens + 1, 40, 41, 42, 333, 4000)
        for number, size in enumerate(sizes):
            (prompt,) = maker.make(Planned(number * 65536, 0, "main", size, 10))
            self.counted[size] = usage(prompt.messages[0].parts[0].text, rule)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, {"add_special_tokens", "prompt"}),
        ({"salt": ""}, {"add_special_tokens", "prompt"}),
        ({"maker_of": "llamacpp"}, {"add_special", "content"}),
        ({"maker_of": "a gateway", "engine": "sglang"}, {"add_special_tokens", "prompt"}),
    ],
    ids=["salted", "repeated", "llama.cpp", "named"],
)
def test_prompts_have_the_tokens_that_were_asked_for_by_the_engines_own_count(settings, fields):
    """Template, salt and the first word included; two thirds of the words are one token, the others are not used."""
    seen = Sized("mixed", **settings)

    assert seen.facts["prompt_sizes"] == {"main": "exact"}
    assert 16 <= len(seen.learnt.words) < 126
    assert seen.counted == {size: size for size in seen.counted}
    assert len(seen.counted) == 6
    ((body, has_key),) = seen.asked
    assert (set(body), body["model"], has_key) == ({"model", *fields}, "tiny", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule", ["merging", "another tokenizer", "long words only", "a gateway", *BROKEN]
)
def test_what_the_usage_does_not_prove_stays_an_estimate(rule):
    """A token over two words, another tokenizer, no word of one token, no known engine, an answer that is none."""
    seen = Sized("mixed", "a gateway") if rule == "a gateway" else Sized(rule)

    assert seen.facts["prompt_sizes"] == {"main": "estimate"}
    assert len(seen.learnt.words) == 0
    assert seen.facts["tokens_per_word"] is not None
    assert len(seen.asked) == (rule != "a gateway")
    assert all(abs(count - size) <= 0.15 * size + 4 for size, count in seen.counted.items())


# --- whole answers and redirects ----------------------------------------------------------------------------------

WANTS_WHOLE = {"traffic": {"main": {"stream": False}}}


def streamed(ran: Preflight) -> list[bool]:
    return [b'"stream":true' in request.replace(b" ", b"") for request in ran.server.requests]


def test_a_run_of_whole_answers_is_tried_with_whole_answers():
    """Two prompts, of which each is one request row and one attempt row."""
    ran = tried("openai", answer("200 OK", WHOLE), **WANTS_WHOLE)
    call = ran.calls[-1]

    assert streamed(ran) == [False, False]
    assert (call["ended"], call["streamed"], len(ran.rows.rows)) == ("ok", False, 4)


def test_where_a_target_only_streams_the_call_is_sent_again_as_a_stream():
    ran = tried("openai", stream_of(PIECE), **WANTS_WHOLE)
    call = ran.calls[-1]

    assert streamed(ran) == [False, True, False, True]
    assert (call["ended"], call["streamed"], call["wanted_whole"]) == ("ok", True, True)


def test_an_endpoint_that_only_answers_whole_is_no_other_api():
    call = tried("openai", answer("200 OK", WHOLE)).calls[-1]

    assert (call["ended"], call["error_type"]) == ("client_error", "not_an_event_stream")
    assert "set stream = false" in preflight_failure("http://h", "openai", call)


def test_a_redirect_is_named_without_the_secrets_of_its_location():
    location = (
        "https://user:hunter2hunter2@api.example/v1/chat/completions?token=abcdefgh12345678#part"
    )
    head = f"HTTP/1.1 308 Moved\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n"
    call = tried("openai", head.encode()).calls[-1]

    assert call["message"] == "https://api.example/v1/chat/completions"
    assert preflight_failure(call["url"], "openai", call) == (
        f"target {call['url']} answered HTTP 308 with location https://api.example/v1/chat/completions. "
        "Calls do not follow redirects: write --target https://api.example/v1/chat/completions"
    )
