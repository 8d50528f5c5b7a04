"""The client of a StreamingUser does what an HttpUser's does, and says what it does not."""

from __future__ import annotations

import json
import logging
import re
from types import SimpleNamespace
from typing import Any

import pytest
from locust.env import Environment
from locust.event import EventHook
from locust.exception import LocustError

from tailgauge.locust_app import task_errors
from tailgauge.locust_app.answer import Answer, SentRequest
from tailgauge.locust_app.client import Client, refused_path
from tailgauge.locust_app.streaming_user import StreamingUser
from tailgauge.protocols.target import with_headers
from tailgauge.redaction import shown
from tailgauge.transport.capture import Capture, OpenBytes

pytestmark = pytest.mark.gevent

PATH = "/v1/chat/completions"
ADDRESS = f"http://127.0.0.1:8000{PATH}"
KEY = "k3y-0f-a-u53r-1234567"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7}
STREAM = b"data: {}\n\n", b"data: [DONE]\n\n"


class User:
    """A user whose requests end at once: as `ended`, with this status and body."""

    def __init__(
        self, ended: str = "ok", status: int | None = 200, pieces: tuple[bytes, ...] = STREAM
    ) -> None:
        self.environment: Any = SimpleNamespace()
        self.ended = ended
        self.status = status
        self.pieces = pieces
        self.sent: list[Any] = []
        self.judged: list[str | None] = []
        self.reported: list[tuple[str, str, str]] = []
        self.headers_ms: list[float | None] = []

    def context(self) -> dict[str, Any]:
        return {"of": "user"}

    def base_url(self) -> str:
        return "http://127.0.0.1:8000"

    def check_url(self, what: str, url: str) -> None:
        if why := refused_path(what, url, ADDRESS, "openai"):
            raise ValueError(why)

    def send_given(self, _: str, given: Any, limit: int | None, **more: Any) -> SentRequest:
        self.sent.append(
            (given.body, list(given.headers), given.model, given.stream, limit, more["name"])
        )
        answer = Answer("Hello", self.ended, self.status, 12.5, 40.0, {})
        exchange = None if self.status is None else self._exchange()
        return SentRequest(answer, exchange, len(self.sent), more["name"], 2.0, ADDRESS)  # type: ignore[arg-type]

    def _exchange(self) -> Any:
        capture = Capture(OpenBytes())
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in self.pieces)
        head = b"HTTP/1.1 %d X\r\nX-Kind: a\r\ntransfer-encoding: chunked\r\n\r\n" % (
            self.status or 0
        )
        capture.add(head + chunks + b"0\r\n\r\n", 5)
        return SimpleNamespace(
            status=self.status,
            headers=((b"X-Kind", b"a"),),
            capture=capture,
            left_at_ns=0,
            headers_at_ns=2_000_000,
        )

    def judge(self, _: SentRequest, failure: str | None) -> None:
        self.judged.append(failure)

    def report(self, meta: Any, _: float | None, headers_ms: float | None) -> None:
        self.reported.append((meta["request_type"], meta["name"], str(meta["exception"] or "")))
        self.headers_ms.append(headers_ms)


def test_a_response_is_like_that_of_an_http_user():
    user = User()
    answer = Client(user).post(PATH, json={**BODY, "stream": True})

    assert (answer.status_code, answer.ok, answer.headers["x-kind"]) == (200, True, "a")
    assert (answer.elapsed.total_seconds(), answer.ttft_ms) == (0.002, 12.5)
    assert answer.text == "data: {}\n\ndata: [DONE]\n\n"
    assert list(answer.iter_lines()) == [b"data: {}", b"", b"data: [DONE]", b""]
    answer.raise_for_status()
    assert (user.reported, user.judged) == ([("total", PATH, "")], [None])
    whole = Client(User(pieces=(b'{"a": 1}',))).post(PATH, data=b'{"messages": [1]}', name="whole")
    assert whole.json() == {"a": 1}


def test_a_body_goes_out_as_it_is_and_a_key_in_its_headers_is_a_secret():
    user = User()
    sent_body = {**BODY, "stream": True}
    Client(user).post(PATH, json=sent_body, headers={"Authorization": f"Bearer {KEY}"})
    ((body, headers, model, stream, limit, name),) = user.sent

    assert json.loads(body) == sent_body
    assert headers == [("Authorization", f"Bearer {KEY}")]
    assert (model, stream, limit, name) == ("m", True, 7, PATH)
    assert shown(f"the target says {KEY}", 100) == "the target says [redacted]"


def test_headers_of_the_task_replace_those_of_the_sdk():
    request = b"POST / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sdk\r\n\r\n{}"

    assert with_headers(request, [("authorization", "Bearer mine"), ("X-A", "b")]) == (
        b"POST / HTTP/1.1\r\nHost: h\r\nauthorization: Bearer mine\r\nX-A: b\r\n\r\n{}"
    )


def test_stream_true_adds_the_time_to_the_headers_and_the_lines_are_a_replay():
    """A call without it, with it, and a failed call with it; the lines can be read twice."""
    user = User()
    client = Client(user)
    client.post(PATH, json=BODY)
    answer = client.post(PATH, json=BODY, stream=True)
    with client.post(PATH, json=BODY, stream=True, catch_response=True) as caught:
        caught.failure("no end mark")
    lost = User("connect_error", None)
    Client(lost).post(PATH, json=BODY, stream=True)

    assert user.headers_ms + lost.headers_ms == [None, 2.0, 2.0, 2.0]
    for _ in range(2):
        lines = [line for line in answer.iter_lines() if line]
        assert lines == [b"data: {}", b"data: [DONE]"]
    assert b"".join(answer.iter_content(3)) == b"data: {}\n\ndata: [DONE]\n\n"


def test_a_request_counts_once_in_locusts_statistics_as_total():
    environment = Environment(events=SimpleNamespace(request=EventHook()))
    user: Any = SimpleNamespace(environment=environment)
    for headers_ms in (None, 2.0, 4.0):
        StreamingUser.report(user, {"name": "chat"}, 12.5, headers_ms)

    counts = {kind: entry.num_requests for (_, kind), entry in environment.stats.entries.items()}
    assert counts == {"TTFT": 3, "headers": 2}
    assert environment.stats.total.num_requests == 0


@pytest.mark.parametrize(
    ("ended", "status", "exception"),
    [
        ("rate_limited", 429, "429 Client Error: To"),
        ("truncated", 200, "truncated (HTTP 200)"),
        ("connect_error", None, "connect_error"),
    ],
)
def test_a_failed_request_fails_for_locust_too_and_keeps_its_own_class(ended, status, exception):
    user = User(ended, status)
    answer = Client(user).post(PATH, json=BODY)

    assert (answer.status_code, answer.ok) == (status or 0, False)
    ((_, _, reported),) = user.reported
    assert reported.startswith(exception)
    assert user.judged == [None]


@pytest.mark.parametrize(
    ("act", "ended", "status", "judged", "reported"),
    [
        (lambda answer: answer.failure("no end mark"), "ok", 200, "no end mark", "no end mark"),
        (lambda _: None, "ok", 200, None, ""),
        # In Locust's statistics alone: it has a class of its own.
        (lambda answer: answer.success(), "rate_limited", 429, None, ""),
        (lambda answer: answer.failure("no"), "rate_limited", 429, None, "no"),
    ],
)
def test_a_task_judges_its_answer_in_a_with_block(act, ended, status, judged, reported):
    user = User(ended, status)
    with Client(user).post(PATH, json=BODY, catch_response=True) as answer:
        act(answer)

    assert user.judged == [judged]
    assert user.reported == [("total", PATH, reported)]


def test_a_with_block_that_raises_records_its_request():
    user = User()
    with (
        pytest.raises(ZeroDivisionError),
        Client(user).post(PATH, json=BODY, catch_response=True),
    ):
        _ = 1 // 0

    assert (user.judged, user.reported) == ([None], [("total", PATH, "")])


def test_a_caught_response_without_a_with_block_counts_as_it_ended():
    user = User()
    client = Client(user)
    answer = client.post(PATH, json=BODY, catch_response=True)
    with pytest.raises(LocustError, match=r"with-block|Tried to set status"):
        answer.failure("x")

    assert user.judged == []
    client.post(PATH, json=BODY)
    assert user.judged == [None, None]


def test_a_with_block_needs_a_caught_response():
    answer = Client(User()).post(PATH, json=BODY)

    with pytest.raises(LocustError, match="you must also pass catch_response=True"), answer:
        pass


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda client: client.post("/v1/embeddings", json={}), "client.post('/v1/embeddings'): a StreamingUser posts to /messages (anthropic) and /chat/completions (openai)"),
        (lambda client: client.post("/v1/messages", json=BODY), 'this run speaks openai: set protocol = "anthropic" on the class'),
        (lambda client: client.post(f"http://other{PATH}", json=BODY), "the calls of this run go to http://127.0.0.1:8000/v1/chat/completions: change host, or the path"),
        (lambda client: client.post(f"{PATH}?v=1", json=BODY), "the calls of this run go to"),
        (lambda client: client.post(f"/azure{PATH}", json=BODY), "the calls of this run go to"),
        (lambda client: client.post(PATH), "expected a JSON object, as in json={...}, got NoneType"),
        (lambda client: client.post(PATH, data="{"), "expected JSON in data: Expecting property name"),
        (lambda client: client.post(PATH, json=[1]), "expected a JSON object, as in json={...}, got list"),
        (lambda client: client.post(PATH, json={"prompt": "x"}), "messages: expected a list of messages in the body"),
        (lambda client: client.post(PATH, json={"messages": [{1}]}), "expected what JSON has: Object of type set"),
        (lambda client: client.post(PATH, json=BODY, verify=False), "verify: set target.ca_file"),
        (lambda client: client.post(PATH, json=BODY, jsn=1), "jsn: unknown argument"),
        (lambda client: client.post(PATH, json=BODY, allow_redirects=True), "a redirect is an answer here: give the final host"),
        (lambda client: client.post(PATH, json=BODY, headers={"Accept-Encoding": "gzip"}), "headers: Accept-Encoding: chunks are timed as they come"),
        (lambda client: client.post(PATH, json=BODY, headers={"X-A": "a\r\nX-B: b"}), "headers: X-A: expected one line"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_by_name(act, text):
    with pytest.raises(Exception, match=re.escape(text)):
        act(Client(User()))


class Chat(StreamingUser):
    """A user without a run."""

    tasks = (print,)
    run = SimpleNamespace(task_errors={})

    def __init__(self) -> None:
        pass

    def wait_for_run(self) -> Any:
        return self.run


def test_exceptions_of_tasks_are_logged_once_a_line_and_all_are_counted(monkeypatch):
    """At two lines, again and again; and of another kind of user, as Locust does."""
    monkeypatch.setattr(task_errors, "PAUSE_S", 0.0)
    logged = []
    logger = logging.getLogger("locust.user.task")
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logger.addHandler(handler)
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(Chat.run, "task_errors", {})
    events = SimpleNamespace(user_error=EventHook())
    task_errors.TaskErrors([__file__]).attach(SimpleNamespace(events=events))

    def fail(user: Any, act: Any) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - as Locust does
            events.user_error.fire(user_instance=user, exception=error, tb=error.__traceback__)
            logger.error("%s", error)  # noqa: TRY400

    def divide() -> None:
        _ = 1 // 0

    for number in range(4):
        fail(SimpleNamespace(user=Chat()), divide)
        fail(Chat(), lambda number=number: int(f"z{number}"))
        fail(SimpleNamespace(user=object()), divide)
    logger.removeHandler(handler)

    division = "integer division or modulo by zero"
    literal = "invalid literal for int() with base 10: 'z0'"
    assert sorted(logged) == sorted([division, literal, *[division] * 4])
    first, second = Chat.run.task_errors.items()
    assert (first[1], second[1]) == (4, 4)
    place = r" \(test_client\.py:\d+\)"
    assert re.fullmatch(f"ZeroDivisionError: {re.escape(division)}{place}", first[0])
    assert re.fullmatch(f"ValueError: {re.escape(literal)}{place}", second[0])
