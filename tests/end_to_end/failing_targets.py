"""Targets that fail on real sockets, and what an expert would do next about each.

Rule: the expected advice was written before any report about the case was seen, as a pattern that it must have and one that it must not have. A server answers the preflight fairly, unless its case is `at_once`.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hostile.answers import CHUNKED, CLOSE, RESET, WAIT, Request, Sent, chunk, fair, whole
from hostile.server import PROTOCOLS, perform
from wire.answering import read_request

FAIR_FIRST = 2  # calls of the preflight
KEY = "TG_TEST_KEY"  # the variable with the key of cases that have one
# Words that blame the load.
LOAD = r"lower the rate|fewer users|headroom|curve|run longer"
HEADROOM = r"experiment\.kind=headroom"
CURVE = r"experiment\.kind=curve"
PAGE = (
    b"<html><head><title>Sign in - Corporate Proxy</title></head><body>Please sign in</body></html>"
)


@dataclass(frozen=True)
class Call:
    """A call of the load: its number, seconds since the first one, how many are being answered, and its body."""

    number: int
    at_s: float
    open: int
    request: Request
    body: Mapping[str, Any]

    @property
    def chance(self) -> float:
        """Return a number from 0 to 1 that is the call's own."""
        return random.Random(self.number).random()


Behaviour = Callable[[Call], Sent]


@dataclass(frozen=True, kw_only=True)
class Case:
    """What fails, how a run reaches it, and the expected advice."""

    behave: Behaviour
    must: str
    """a pattern that the advice has; empty: there is none"""
    must_not: str = LOAD
    protocol: str = "openai"
    at_once: bool = False
    sets: Sequence[str] = ()
    path: str = ""
    scheme: str = "http"
    host: str = "127.0.0.1"
    serves_tls: bool = False
    gone: Sequence[tuple[float, float]] = field(default=())
    """seconds of the load from which, and until which, nobody listens"""


class Server:
    """A listener on loopback with the behaviour of one case; `paths` notes each call."""

    def __init__(self, case: Case, certificate: str = "") -> None:
        self._case = case
        self._began: float | None = None
        self._number = 0
        self._open = 0
        self._lock = threading.Lock()
        self._tls = None
        if case.serves_tls:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate)
        self.paths: list[str] = []
        self._clients: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self._is_closed = False
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def url(self) -> str:
        """Return what the scenario names."""
        return f"{self._case.scheme}://{self._case.host}:{self.port}{self._case.path}"

    def close(self) -> None:
        """Stop listening, and hang up."""
        self._is_closed = True
        self._leave()

    def _leave(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            clients = list(self._clients)
        for client in clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _come_and_go(self) -> None:
        for from_s, to_s in self._case.gone:
            time.sleep(max(0.0, (self._began or 0.0) + from_s - time.monotonic()))
            self._leave()
            if to_s == float("inf"):
                return
            time.sleep(to_s - from_s)
            if not self._is_closed:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
                threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, ValueError):
            client.settimeout(30)
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._clients.add(client)
            try:
                while (request := read_request(client)) is not None:
                    self._answer(client, *request)
            finally:
                with self._lock:
                    self._clients.discard(client)

    def _answer(self, client: socket.socket, head: str, body: bytes) -> None:
        path = head.split(" ", 2)[1]
        protocol = PROTOCOLS.get(path.rpartition("/")[2], "sse")
        request = Request(protocol, "")
        if not body:  # a list of models
            self.paths.append(path)
            client.sendall(whole(404, b'{"error": {"message": "no such path"}}'))
            return
        with self._lock:
            number = self._number
            self._number += 1
            self._open += 1
            if number == FAIR_FIRST:
                self._began = time.monotonic()
                threading.Thread(target=self._come_and_go, daemon=True).start()
            at_s = time.monotonic() - (self._began or time.monotonic())
            call = Call(number - FAIR_FIRST, at_s, self._open, request, json.loads(body))
            self.paths.append(path)
        is_fair = number < FAIR_FIRST and not self._case.at_once
        try:
            for piece in fair(request) if is_fair else self._case.behave(call):
                perform(client, piece)
        finally:
            with self._lock:
                self._open -= 1


# --- what servers do --------------------------------------------------------------------------------------------------


def error_answer(
    status: int, message: str, kind: str = "", code: str = "", *headers: bytes
) -> Callable[[Call], Iterator[bytes]]:
    """Return a behaviour that answers every call so, with an error of the protocol."""

    def behave(call: Call) -> Iterator[bytes]:
        error: dict[str, Any] = {"type": kind or "error", "message": message}
        if call.request.protocol == "anthropic":
            tree: dict[str, Any] = {"type": "error", "error": error}
        else:
            tree = {"error": {**error, "code": code or kind or None}}
        yield whole(status, json.dumps(tree).encode(), *headers)

    return behave


def begun(call: Call, chunks: int, pause_s: float = 0.0) -> Sent:
    """An answer's opening and some words of it."""
    yield CHUNKED + call.request.opening()
    for _ in range(chunks):
        yield call.request.word("word ")
        yield pause_s


def page(status: int, body: bytes = PAGE) -> Behaviour:
    """Return a behaviour that answers with an HTML page."""

    def behave(_: Call) -> Sent:
        yield whole(status, body, kind=b"text/html")

    return behave


def ok(call: Call) -> Sent:
    """Answer fairly."""
    yield from fair(call.request)


def mixed(*parts: tuple[float, Behaviour], rest: Behaviour = ok) -> Behaviour:
    """Return a behaviour that takes each of these with its share, by chance."""

    def behave(call: Call) -> Sent:
        left = call.chance
        for part, chosen in parts:
            if left < part:
                yield from chosen(call)
                return
            left -= part
        yield from rest(call)

    return behave


def since(at_s: float, then: Behaviour, before: Behaviour = ok) -> Behaviour:
    """Return a behaviour that becomes another one at a moment of the load."""

    def behave(call: Call) -> Sent:
        yield from (then if call.at_s >= at_s else before)(call)

    return behave


def limited(per_s: float, burst: float, refusal: Behaviour) -> Behaviour:
    """Return a token bucket in front of fair answers."""
    level = [burst]
    last_s = [0.0]
    lock = threading.Lock()

    def behave(call: Call) -> Sent:
        with lock:
            level[0] = min(burst, level[0] + per_s * max(0.0, call.at_s - last_s[0]))
            last_s[0] = max(last_s[0], call.at_s)
            is_admitted = level[0] >= 1
            level[0] -= is_admitted
        yield from (ok if is_admitted else refusal)(call)

    return behave


def slots(
    number: int, service_s: float, *, queue: int = 10**6, refusal: Behaviour = ok
) -> Behaviour:
    """Return an engine with so many slots; beyond its queue it refuses."""
    free = threading.Semaphore(number)

    def behave(call: Call) -> Sent:
        if call.open > number + queue:
            yield from refusal(call)
            return
        with free:
            yield CHUNKED + call.request.opening()
            yield service_s / 2
            yield call.request.word("two ")
            yield service_s / 2
            yield call.request.word("text") + call.request.closing()

    return behave


def cut_after(seconds: float) -> Behaviour:
    """Return a behaviour whose connection is closed after some seconds of an answer."""

    def behave(call: Call) -> Sent:
        end_s = time.monotonic() + seconds
        yield CHUNKED + call.request.opening()
        while time.monotonic() < end_s:
            yield call.request.word("word ")
            yield 0.025
        yield CLOSE

    return behave


def cut_at_random(call: Call) -> Sent:
    """Close the connection anywhere in the answer."""
    yield from begun(call, int(1 + 10 * random.Random(call.number + 10_000).random()), 0.03)
    yield RESET


def silent(chunks: int = 0) -> Behaviour:
    """Return a behaviour that says no more, before its headers or after some chunks."""

    def behave(call: Call) -> Sent:
        if chunks:
            yield from begun(call, chunks)
        yield WAIT

    return behave


def late(first_s: float, chunks: int = 4) -> Behaviour:
    """Return a behaviour whose first content is late."""

    def behave(call: Call) -> Sent:
        yield first_s
        yield from begun(call, chunks, 0.02)
        yield call.request.closing()

    return behave


def ends(reason: str, chunks: int = 2) -> Behaviour:
    """Return a behaviour whose answers end for this reason."""

    def behave(call: Call) -> Sent:
        yield from begun(call, chunks)
        yield call.request.closing(reason)

    return behave


def inside(message: str, kind: str, chunks: int = 0) -> Behaviour:
    """Return a behaviour with an error inside a 200."""

    def behave(call: Call) -> Sent:
        yield from begun(call, chunks)
        tree = {"error": {"type": kind, "code": kind, "message": message}}
        if call.request.protocol == "anthropic":
            tree = {"type": "error", **tree}
        yield chunk(b"event: error\ndata: " + json.dumps(tree).encode() + b"\n\n")
        yield CLOSE

    return behave


def without_usage(call: Call) -> Sent:
    """Answer fairly, without counts."""
    yield from begun(call, 4)
    yield call.request.closing(usage="null")


SLOW_SLO = ("slo.first.metric=ttft", "slo.first.quantile=0.5", "slo.first.max_ms=300")
KEYED = (f"target.api_key_env={KEY}",)
FOREVER = float("inf")
TOO_MANY = error_answer(
    429, "Rate limit reached for requests per min (RPM): Limit 300", "rate_limit_exceeded"
)
TOKENS = error_answer(
    429, "Rate limit reached on tokens per min (TPM): Limit 30000", "tokens", "rate_limit_exceeded"
)
OVERLOADED = error_answer(529, "Overloaded", "overloaded_error")
BUSY = error_answer(503, "The engine's queue is full", "service_unavailable")
BROKEN = error_answer(500, "CUDA error: device-side assert triggered", "internal_error")

CASES: Mapping[str, Case] = {
    # The key
    "auth_401": Case(behave=error_answer(401, "Incorrect API key provided", "invalid_api_key"), at_once=True, sets=KEYED, must=KEY),
    "auth_403": Case(behave=error_answer(403, "not allowed", "permission_error"), protocol="anthropic", at_once=True, sets=KEYED, must=KEY),
    "no_key": Case(behave=error_answer(401, "missing bearer", "unauthorized"), at_once=True, must="api_key_env"),
    "key_expires": Case(behave=since(1.5, error_answer(401, "token expired", "invalid_api_key")), sets=KEYED, must=rf"(?s){KEY}.*1\.[4-9]|1\.[4-9].*{KEY}"),
    "key_for_some": Case(behave=mixed((0.3, error_answer(403, "region not allowed", "permission_error"))), sets=KEYED, must=KEY),
    # What is asked
    "model_404": Case(behave=error_answer(404, "The model `gpt-x` does not exist", "model_not_found"), at_once=True, must=r"model"),
    "model_400": Case(behave=error_answer(400, "unknown model gpt-x", "invalid_request_error"), protocol="anthropic", at_once=True, must=r"unknown model gpt-x"),
    "model_unloaded": Case(behave=since(1.5, error_answer(404, "The model `m` was unloaded", "model_not_found")), must=r"The model `m` was unloaded"),
    "context_400": Case(behave=mixed((0.4, error_answer(400, "This model's maximum context length is 4096 tokens", "context_length_exceeded"))), must=r"maximum context length"),
    "field_422": Case(behave=error_answer(422, "extra fields not permitted: top_k", "validation_error"), at_once=True, must=r"extra fields not permitted|top_k"),
    "path_404": Case(behave=page(404, b"<html><body>404 Not Found nginx</body></html>"), at_once=True, path="/wrong", must=r"URL|address|path"),
    "billing_429": Case(behave=error_answer(429, "You exceeded your current quota, please check your plan and billing details", "insufficient_quota"), must=r"(?i)quota|billing|credit"),
    # The way to it
    "html_200": Case(behave=page(200), at_once=True, must=r"(?i)address|URL|path"),
    "html_later": Case(behave=since(1.0, page(200)), must=r"(?i)page|address"),
    "proxy_403_page": Case(behave=mixed((0.5, page(403, b"<html><body>Blocked by WAF</body></html>"))), must=r"(?i)proxy|gateway|firewall|page"),
    "redirect": Case(behave=error_answer(307, "moved", "", "", b"location: http://127.0.0.1:9/v1/chat/completions"), at_once=True, must=r"--target http://127\.0\.0\.1:9$"),
    "redirect_later": Case(behave=since(1.0, error_answer(302, "sign in", "", "", b"location: https://login.example/")), must=r"https://login\.example/"),
    "https_to_http": Case(behave=ok, at_once=True, scheme="https", must=r"http://"),
    "http_to_https": Case(behave=ok, at_once=True, serves_tls=True, must=r"https://"),
    "dns": Case(behave=ok, at_once=True, host="no-such-host.invalid", must=r"(?i)host name"),
    "refused": Case(behave=ok, at_once=True, host="127.0.0.2", must=r"(?i)running|port"),
    "protocol_of_some": Case(behave=mixed((0.5, lambda _: fair(Request("anthropic", "")))), must=r"another protocol.*target\.protocol", must_not=r"silence|time limit"),
    "wrong_protocol": Case(behave=lambda _: fair(Request("anthropic", "")), at_once=True, must=r"use --protocol anthropic"),
    # The gateway before it
    "gateway_502": Case(behave=mixed((0.5, page(502, b"<html><body><h1>502 Bad Gateway</h1></body></html>"))), must=r"(?i)gateway|proxy"),
    "gateway_504": Case(behave=mixed((0.5, lambda _: iter((1.0, whole(504, b"<html>504 Gateway Time-out</html>", kind=b"text/html"))))), must=r"(?i)time ?out|time limit", sets=("arrival.rate_per_s=8",)),
    "cut_by_time": Case(behave=cut_after(1.0), must=r"(?i)after 1(\.[0-4]\d?)? s.*time limit"),
    "cut_after_silence": Case(behave=mixed((0.5, lambda call: iter((CHUNKED + call.request.opening() + call.request.word("a"), 1.2, CLOSE)))), must=r"(?i)silen.*1\.2|1\.2 s.*(?:silen|idle|without)"),
    "cut_at_random": Case(behave=mixed((0.6, cut_at_random)), must=r"(?i)log"),
    "connection_resets": Case(behave=mixed((0.4, lambda _: iter((RESET,)))), must=r"(?i)connections?"),
    # The target itself
    "broken_500": Case(behave=BROKEN, must=r"(?i)log"),
    "broken_some": Case(behave=mixed((0.3, BROKEN)), must=r"(?i)log"),
    "broken_later": Case(behave=since(1.5, BROKEN), must=r"(?i)since 1\.[4-9].*log|log.*1\.[4-9]"),
    "hang_before_headers": Case(behave=mixed((0.5, silent())), must=r"(?i)hang|silent|no answer|nothing", must_not=r"lower the rate|headroom|run longer"),
    "hang_after_content": Case(behave=mixed((0.5, silent(2))), must=r"(?i)hang|silent|stop|nothing", must_not=r"lower the rate|headroom|run longer"),
    "hang_later": Case(behave=since(1.5, silent()), must=r"(?i)1\.[3-9]", must_not=r"lower the rate|headroom|run longer"),
    "gone": Case(behave=ok, gone=((2.0, FOREVER),), must=r"(?i)gone since (1\.9|2\.[0-4])"),
    "gone_with_streams": Case(behave=late(0.2, chunks=40), gone=((2.0, FOREVER),), must=r"gone since (1\.9|2\.[0-3]) s.*open calls broke off"),
    "restart": Case(behave=ok, gone=((1.0, 2.0),), sets=("slo.complete.metric=complete", "slo.complete.min=0.99"), must=r"1\.[0-3] s.*(1\.[7-9]|2\.[0-4]) s"),
    "empty": Case(behave=ends("stop", 0), must=r"(?i)content"),
    "filtered": Case(behave=mixed((0.4, ends("content_filter"))), must=r"(?i)filter"),
    "refusals": Case(behave=mixed((0.5, ends("refusal"))), protocol="anthropic", must=r"(?i)prompts|filter"),
    "aborted": Case(behave=mixed((0.5, ends("abort"))), must=r"(?i)engine.*log|log.*engine"),
    "inside_500": Case(behave=mixed((0.5, inside("CUDA out of memory", "internal_error", 2))), must=r"(?i)log|CUDA out of memory"),
    "impatient": Case(behave=late(1.0), sets=("traffic.chat.cancel.share=1", "traffic.chat.cancel.after_s=0.5", "arrival.rate_per_s=8"), must=r"(?i)patience"),
    "deadline": Case(behave=late(2.5), sets=("limits.attempt_deadline_s=2", "arrival.rate_per_s=6"), must=r"(?i)attempt_deadline_s", must_not=r"lower the rate|headroom|run longer"),
    "slow": Case(behave=late(0.6), sets=SLOW_SLO, must=r"", must_not=r"headroom|run longer|lower the rate"),
    # The load
    "limit_requests": Case(behave=limited(5, 5, TOO_MANY), must=HEADROOM, must_not=CURVE),
    "limit_tokens": Case(behave=limited(8, 4, TOKENS), must=HEADROOM, must_not=CURVE),
    "limit_concurrent": Case(behave=slots(2, 0.4, queue=0, refusal=error_answer(429, "Too many concurrent requests", "rate_limit_error")), protocol="anthropic", must=HEADROOM, must_not=CURVE),
    "limit_inside": Case(behave=limited(5, 5, inside("Rate limit reached", "rate_limit_exceeded")), must=HEADROOM, must_not=CURVE),
    "limit_and_timeouts": Case(behave=mixed((0.3, TOO_MANY), (0.05, silent())), must=HEADROOM, must_not=CURVE),
    "overloaded_529": Case(behave=slots(2, 0.3, queue=0, refusal=OVERLOADED), protocol="anthropic", must=CURVE, must_not=HEADROOM),
    "overloaded_503": Case(behave=slots(2, 0.3, queue=2, refusal=BUSY), must=CURVE, must_not=HEADROOM),
    "overloaded_inside": Case(behave=slots(2, 0.3, queue=0, refusal=inside("Overloaded", "overloaded_error")), protocol="anthropic", must=CURVE, must_not=HEADROOM),
    "queue_grows": Case(behave=slots(2, 0.3), must=CURVE, must_not=HEADROOM, sets=("arrival.rate_per_s=25", "stages.duration_s=10")),
    "queue_times_out": Case(behave=slots(2, 0.3), must=CURVE, must_not=HEADROOM, sets=("limits.attempt_deadline_s=1.5", "arrival.rate_per_s=15", "stages.duration_s=6")),
    # Nothing
    "healthy": Case(behave=ok, must=""),
    "no_usage": Case(behave=without_usage, must=""),
}  # fmt: skip
