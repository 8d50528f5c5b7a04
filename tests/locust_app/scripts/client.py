"""Script: the client of a StreamingUser: what it sends, what it refuses, and what it makes of an answer."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

from locust.env import Environment
from locust.event import EventHook
from starting.script import case, print_facts

from tailgauge.locust_app import task_errors as task_errors_module
from tailgauge.locust_app.answer import Answer, SentRequest
from tailgauge.locust_app.client import Client, refused_path
from tailgauge.locust_app.streaming_user import StreamingUser
from tailgauge.protocols.target import with_headers
from tailgauge.redaction import shown
from tailgauge.transport.capture import Capture, OpenBytes

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
            [given.body, list(given.headers), given.model, given.stream, limit, more["name"]]
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


def error_of(act: Any) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - its text is the fact
        return f"{type(error).__name__}: {error}"
    return ""


@case
def response() -> Any:
    user = User()
    answer = Client(user).post(
        PATH, json={**BODY, "stream": True}, headers={"Authorization": f"Bearer {KEY}"}
    )
    whole = Client(User(pieces=(b'{"a": 1}',))).post(PATH, data=b'{"messages": [1]}', name="whole")
    return {
        "status": answer.status_code, "text": answer.text, "lines": [line.decode() for line in answer.iter_lines()],
        "headers": answer.headers["x-kind"], "ok": answer.ok, "elapsed": answer.elapsed.total_seconds(),
        "ttft": answer.ttft_ms, "json": whole.json(), "sent": user.sent[0], "judged": user.judged,
        "reported": user.reported, "secret": shown(f"the target says {KEY}", 100), "raises": error_of(answer.raise_for_status),
    }  # fmt: skip


@case
def stream_argument() -> dict[str, Any]:
    """A call without it, with it, and a failed call with it; the lines of an answer, read twice."""
    user = User()
    client = Client(user)
    client.post(PATH, json=BODY)
    answer = client.post(PATH, json=BODY, stream=True)
    with client.post(PATH, json=BODY, stream=True, catch_response=True) as caught:
        caught.failure("no end mark")
    lost = User("connect_error", None)
    Client(lost).post(PATH, json=BODY, stream=True)
    environment = Environment(events=SimpleNamespace(request=EventHook()))
    meta = {"name": "chat"}
    for headers_ms in (None, 2.0, 4.0):
        StreamingUser.report(SimpleNamespace(environment=environment), meta, 12.5, headers_ms)  # type: ignore[arg-type]
    return {
        "headers_ms": user.headers_ms + lost.headers_ms,
        "lines": [[line.decode() for line in answer.iter_lines() if line] for _ in range(2)],
        "pieces": b"".join(answer.iter_content(3)).decode(),
        "statistics": {
            kind: entry.num_requests for (_, kind), entry in environment.stats.entries.items()
        },
        "sum": environment.stats.total.num_requests,
    }


@case
def failures() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, ended, status in (
        ("rejected", "rate_limited", 429), ("cut off", "truncated", 200), ("no answer", "connect_error", None),
    ):  # fmt: skip
        user = User(ended, status)
        answer = Client(user).post(PATH, json=BODY)
        found[name] = [answer.status_code, answer.ok, user.reported[0][2][:20], user.judged]
    return found


@case
def with_block() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def judged(name: str, act: Any, user: User) -> None:
        client = Client(user)
        error = ""
        try:
            with client.post(PATH, json=BODY, catch_response=True) as answer:
                act(answer)
        except ZeroDivisionError as raised:
            error = str(raised)
        found[name] = [user.judged, [exception for _, _, exception in user.reported], error]

    judged("failure", lambda answer: answer.failure("no end mark"), User())
    judged("nothing", lambda _: None, User())
    judged("success of a failure", lambda answer: answer.success(), User("rate_limited", 429))
    judged("failure of a failure", lambda answer: answer.failure("no"), User("rate_limited", 429))
    judged("raises", lambda _: 1 // 0, User())
    user = User()
    client = Client(user)
    answer = client.post(PATH, json=BODY, catch_response=True)
    outside = error_of(lambda: answer.failure("x"))
    before = list(user.judged)
    client.post(PATH, json=BODY)
    found["without"] = [outside.splitlines()[0], before, user.judged]
    found["with, unasked"] = error_of(lambda: Client(User()).post(PATH, json=BODY).__enter__())
    return found


@case
def mistakes() -> dict[str, str]:
    client = Client(User())
    return {
        "path": error_of(lambda: client.post("/v1/embeddings", json={})),
        "protocol": error_of(lambda: client.post("/v1/messages", json=BODY)),
        "host": error_of(lambda: client.post(f"http://other{PATH}", json=BODY)),
        "query": error_of(lambda: client.post(f"{PATH}?v=1", json=BODY)),
        "prefix": error_of(lambda: client.post(f"/azure{PATH}", json=BODY)),
        "no body": error_of(lambda: client.post(PATH)),
        "no json": error_of(lambda: client.post(PATH, data="{")),
        "a list": error_of(lambda: client.post(PATH, json=[1])),
        "no messages": error_of(lambda: client.post(PATH, json={"prompt": "x"})),
        "a set": error_of(lambda: client.post(PATH, json={"messages": [{1}]})),
        "verify": error_of(lambda: client.post(PATH, json=BODY, verify=False)),
        "unknown": error_of(lambda: client.post(PATH, json=BODY, jsn=1)),
        "redirects": error_of(lambda: client.post(PATH, json=BODY, allow_redirects=True)),
        "gzip": error_of(lambda: client.post(PATH, json=BODY, headers={"Accept-Encoding": "gzip"})),
        "two lines": error_of(lambda: client.post(PATH, json=BODY, headers={"X-A": "a\r\nX-B: b"})),
    }


class Chat(StreamingUser):
    """A user without a run."""

    tasks = (print,)
    run = SimpleNamespace(task_errors={})

    def __init__(self) -> None:
        pass

    def wait_for_run(self) -> Any:
        return self.run


@case
def task_errors() -> Any:
    """What is logged and counted of exceptions at two lines, raised again and again; and of another kind of user."""
    task_errors_module.PAUSE_S = 0.0
    logged: list[str] = []
    logger = logging.getLogger("locust.user.task")
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.propagate = False
    environment = SimpleNamespace(events=SimpleNamespace(user_error=EventHook()))
    task_errors_module.TaskErrors([__file__]).attach(environment)

    def fail(user: Any, act: Any) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - as Locust does
            environment.events.user_error.fire(
                user_instance=user, exception=error, tb=error.__traceback__
            )
            logger.error("%s", error)  # noqa: TRY400

    def divide() -> None:
        _ = 1 // 0

    for number in range(4):
        fail(SimpleNamespace(user=Chat()), divide)
        fail(Chat(), lambda number=number: int(f"z{number}"))
        fail(SimpleNamespace(user=object()), divide)
    return {"logged": logged, "counts": list(Chat.run.task_errors.items())}


@case
def request_head() -> str:
    request = b"POST / HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer sdk\r\n\r\n{}"
    return with_headers(request, [("authorization", "Bearer mine"), ("X-A", "b")]).decode()


print_facts()
