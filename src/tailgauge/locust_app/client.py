"""`self.client` of a StreamingUser: what an HttpUser's file calls, sent by the transport that measures.

A POST to the path of the run's protocol is a request of the run: its body goes out as it is, and its answer becomes rows.
Other methods go through Locust's own client, into Locust's statistics only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from http.client import responses as REASONS  # noqa: N812 - a table
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from locust.clients import HttpSession, ResponseContextManager
from requests.exceptions import HTTPError

from tailgauge.call import GivenRequest
from tailgauge.locust_app.answer import SentRequest
from tailgauge.protocols.additions import KEY_HEADERS, check_header_name
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.redaction import name_value
from tailgauge.rows.schema import CANCELLED, WITH_ANSWER
from tailgauge.transport.http1 import ResponseHead, WireError

if TYPE_CHECKING:
    from tailgauge.transport.capture import Capture

log = logging.getLogger("tailgauge")
TOTAL = "total"  # types in Locust's statistics
TTFT = "TTFT"
HEADERS = "headers"  # what an HttpUser's stream=True measures
FINE = WITH_ANSWER | {CANCELLED}
LIMITS = ("max_tokens", "max_completion_tokens")
_SECRET_HEADERS = (*KEY_HEADERS, "cookie")
_SETTINGS = {  # arguments of HttpUser's client, and where they are set here
    "params": "put the query into host",
    "auth": "give the header Authorization, or target.api_key_env",
    "verify": "set target.ca_file",
    "cert": "client certificates are not supported",
    "proxies": "make the proxy the host",
    "cookies": "give the header Cookie",
    "files": "the body is JSON",
    "hooks": "look at the response that is returned",
}


class ClientError(ValueError):
    """A call of the client that cannot be sent; the text says what was expected."""


class EndedError(HTTPError):
    """How a request ended, for Locust's own statistics."""


class Sender(Protocol):
    """A user as its client needs it; see StreamingUser."""

    environment: Any

    def context(self) -> dict[str, Any]:
        """Return what Locust's listeners get of each request."""

    def base_url(self) -> str:
        """Address of the run's target."""

    def check_url(self, method: str, url: str) -> None:
        """Raise ClientError for an address that is not that of the run's calls."""

    def send_given(
        self,
        method: str,
        request: GivenRequest,
        limit: int | None,
        *,
        name: str,
        tags: Mapping[str, object] | None,
        timeout_s: float | None,
        is_checked: bool,
    ) -> SentRequest:
        """Send a body as it is, and wait for its answer."""

    def judge(self, sent: SentRequest, failure: str | None) -> None:
        """Record a request that was sent to be judged."""

    def report(
        self, request_meta: Mapping[str, Any], ttft_ms: float | None, headers_ms: float | None
    ) -> None:
        """Report a request to Locust. `headers_ms`: of a call with stream=True."""


class Client:
    """The client of one user."""

    def __init__(self, user: Sender) -> None:
        self._user = user
        self._session: Any = None
        self._unjudged: Response | None = None

    def post(
        self,
        url: str,
        data: Any = None,
        json: Any = None,
        *,
        name: str | None = None,
        catch_response: bool = False,
        headers: Mapping[str, str] | None = None,
        stream: bool = False,
        timeout: float | tuple[float, float] | None = None,
        context: Mapping[str, Any] | None = None,
        tags: Mapping[str, object] | None = None,
        **arguments: Any,
    ) -> Response:
        """Send a body of the run's protocol and wait for its whole answer, with HttpUser's arguments.

        `timeout`, in seconds, closes the call; `tags` become columns of the rows. An answer is always read as it comes: with
        `stream` Locust's statistics also have the time to its headers, which is what HttpUser measures then.
        """
        self.settle()
        method = f"client.post({url!r})"
        _check_arguments(method, arguments)
        self._user.check_url(method, url)
        body = _body_of(method, data, json)
        sent = self._user.send_given(
            method,
            _request_of(method, body, headers or {}),
            limit_of(body),
            name=name or urlsplit(url).path,
            tags=tags,
            timeout_s=_seconds(timeout),
            is_checked=catch_response,
        )
        response = Response.create(
            sent, self._user, stream=stream, catch_response=catch_response, context=context
        )
        if catch_response:
            self._unjudged = response
        else:
            response.__exit__(None, None, None)
        return response

    def settle(self) -> None:
        """Count the request before, where its task has not judged it: `catch_response=True` without a with-block."""
        response = self._unjudged
        self._unjudged = None
        if response is not None and not response.is_reported:
            if not response.has_entered:
                log.warning(
                    "catch_response=True without a with-block: the request counts as it ended. Write:"
                    " with self.client.post(..., catch_response=True) as response:"
                )
            response.report()

    def request(self, method: str, url: str, **arguments: Any) -> Any:
        """Send a request of any method; a POST as `post` does."""
        if method.upper() == "POST":
            return self.post(url, **arguments)
        if self._session is None:
            user = self._user
            self._session = HttpSession(
                user.base_url(), request_event=user.environment.events.request, user=user
            )
        return self._session.request(method.upper(), url, **arguments)

    def get(self, url: str, **arguments: Any) -> Any:
        """Send a GET by Locust's own client: it is in Locust's statistics, and in no row."""
        return self.request("GET", url, **{"allow_redirects": True, **arguments})

    def head(self, url: str, **arguments: Any) -> Any:
        """Send a HEAD, as `get`."""
        return self.request("HEAD", url, **{"allow_redirects": False, **arguments})

    def options(self, url: str, **arguments: Any) -> Any:
        """Send an OPTIONS, as `get`."""
        return self.request("OPTIONS", url, **arguments)

    def put(self, url: str, data: Any = None, **arguments: Any) -> Any:
        """Send a PUT, as `get`."""
        return self.request("PUT", url, data=data, **arguments)

    def patch(self, url: str, data: Any = None, **arguments: Any) -> Any:
        """Send a PATCH, as `get`."""
        return self.request("PATCH", url, data=data, **arguments)

    def delete(self, url: str, **arguments: Any) -> Any:
        """Send a DELETE, as `get`."""
        return self.request("DELETE", url, **arguments)


class Response(ResponseContextManager):
    """HttpUser's response, of an answer that was measured: beside it `answer`, with text, TTFT and token counts."""

    def __init__(self, sent: SentRequest, user: Sender) -> None:
        super().__init__(EndedError())
        self.error = None
        self.sent = sent
        self.answer = sent.answer
        self.user = user
        self.url = sent.url
        self.status_code = sent.answer.status or 0
        self.reason = REASONS.get(self.status_code, "")
        self.is_reported = False
        self.has_stream_argument = False
        self._content: bytes = b""
        self._content_consumed = True
        self._entered = False
        self._manual_result = None

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first content, since the task made the request; None without content."""
        return self.answer.ttft_ms

    @classmethod
    def create(
        cls,
        sent: SentRequest,
        user: Sender,
        *,
        stream: bool,
        catch_response: bool,
        context: Mapping[str, Any] | None = None,
    ) -> Response:
        """Return the response of a request that has ended, as HttpUser's would be.

        `stream`, `catch_response`: the arguments of the call. A request that failed with a status below 400 has an error
        of ours, so that Locust counts a failure. `request_meta` is what Locust's listeners get. Without an exchange there
        are no headers and no body.
        """
        response = cls(sent, user)
        response.has_stream_argument = stream
        answer = sent.answer
        exchange = sent.exchange
        if exchange is not None and exchange.status is not None:
            for name, value in exchange.headers:
                response.headers[name.decode("latin-1")] = value.decode("latin-1")
            if exchange.capture is not None:
                response._content = body_bytes(exchange.capture)
            response.encoding = "utf-8"
            sent_at_ns = exchange.left_at_ns or 0
            headers_at_ns = exchange.headers_at_ns or sent_at_ns
            response.elapsed = timedelta(microseconds=(headers_at_ns - sent_at_ns) / 1e3)
        if answer.ended not in FINE and response.status_code < 400:
            response.error = ended_error(answer.ended, answer.status)
        response._catch_response = catch_response
        response.request_meta = {
            "request_type": TOTAL,
            "name": sent.name,
            "response_time": answer.e2e_ms,
            "url": sent.url,
            "response_length": len(response._content),
            "response": response,
            "exception": None,
            "context": {**user.context(), **(context or {})},
        }
        return response

    @property
    def has_entered(self) -> bool:
        """Whether a with-block has judged it."""
        return bool(self._entered)

    def __exit__(self, *error: object) -> bool:  # type: ignore[override]
        """Judge it as HttpUser's response does; a request is also recorded if its with-block raises."""
        result = bool(super().__exit__(*error))  # type: ignore[no-untyped-call]
        self.report()
        return result

    def _report_request(self, exc: Any = None) -> None:  # noqa: ARG002 - the overridden signature
        self.report()

    def report(self) -> None:
        """Record the request, once: as it ended, or as the failure that its task found."""
        if self.is_reported:
            return
        self.is_reported = True
        exception = self.request_meta["exception"]
        failure = None
        if exception is not None and self.answer.ended in FINE:
            failure = str(exception) or type(exception).__name__
        self.user.judge(self.sent, failure)
        headers_ms = None
        if self.has_stream_argument:
            headers_ms = self.sent.headers_ms
        self.user.report(self.request_meta, self.answer.ttft_ms, headers_ms)


def ended_error(ended: str, status: int | None) -> EndedError:
    """Return the error of a request that failed."""
    text = f"{ended} (HTTP {status})" if status else ended
    return EndedError(text)


def body_bytes(capture: Capture) -> bytes:
    """Return the body of a captured answer, unframed; bytes beyond the bound of a capture are missing."""
    data = b"".join([piece for _, piece in capture.reads])
    while True:
        # An interim response, such as 100, has no body: the next head follows.
        head, end, data = data.partition(b"\r\n\r\n")
        if not end:
            return b""
        try:
            framing = ResponseHead.read(head).framing
            if framing is not None:
                return framing.body().feed(data)
        except WireError:
            return b""


def refused_path(method: str, url: str, address: str | None, protocol: str) -> str:
    """Return why a URL is not that of the run's calls; empty where it is.

    `method`: the call as it was written, which begins the text. `address`: full URL of the run's calls; `protocol`: of
    the run. A URL may leave out the host and the query.
    """
    parts = urlsplit(url)
    calls = urlsplit(address or "")
    if not PROTOCOLS[protocol].call_path:
        return f"{method}: not with target.protocol = {protocol!r}: use self.stream(...)"
    paths = {row.call_path: row.name for row in PROTOCOLS.values() if row.call_path}
    protocols = [name for path, name in paths.items() if parts.path.endswith(path)]
    if not protocols:
        choices = " and ".join(f"{path} ({name})" for path, name in paths.items())
        return f"{method}: a StreamingUser posts to {choices}: use an HttpUser for other paths"
    if protocols[0] != protocol:
        return f'{method}: this run speaks {protocol}: set protocol = "{protocols[0]}" on the class'
    is_other_host = parts.netloc not in {"", calls.netloc}
    is_other_query = parts.query not in {"", calls.query}
    if is_other_host or is_other_query or not calls.path.endswith(parts.path):
        return f"{method}: the calls of this run go to {address}: change host, or the path"
    return ""


def _check_arguments(method: str, arguments: Mapping[str, Any]) -> None:
    """Raise ClientError for an argument of HttpUser's client that has no meaning here."""
    for key, value in arguments.items():
        if value is not None and key != "allow_redirects":
            raise ClientError(f"{method}: {key}: {_SETTINGS.get(key, 'unknown argument')}")
    if arguments.get("allow_redirects"):
        raise ClientError(
            f"{method}: allow_redirects: a redirect is an answer here: give the final host"
        )


def _body_of(method: str, data: Any, tree: Any) -> dict[str, Any]:
    """Return the JSON object of a request."""
    if tree is None and isinstance(data, str | bytes):
        try:
            tree = json.loads(data)
        except ValueError as error:
            raise ClientError(f"{method}: expected JSON in data: {error}") from None
    if not isinstance(tree, dict):
        raise ClientError(
            f"{method}: expected a JSON object, as in json={{...}}, got {type(tree).__name__}"
        )
    if not isinstance(tree.get("messages"), list) or not tree["messages"]:
        raise ClientError(f"{method}: messages: expected a list of messages in the body")
    return tree


def _request_of(method: str, body: dict[str, Any], headers: Mapping[str, str]) -> GivenRequest:
    """Return the request as it is sent. A key in its headers is a secret from now on: no output repeats it.

    `method`: the call as it was written, for errors. ClientError for headers that HTTP does not have, and for a body that
    JSON does not have.
    """
    lines = []
    for name, value in headers.items():
        try:
            check_header_name(name)
            str(value).encode("latin-1")
        except ValueError as error:
            raise ClientError(f"{method}: headers: {name}: {error}") from None
        if "\r" in str(value) or "\n" in str(value):
            raise ClientError(f"{method}: headers: {name}: expected one line")
        if name.lower() in _SECRET_HEADERS:
            name_value(str(value).rpartition(" ")[2])
        lines.append((name, str(value)))
    try:
        text = json.dumps(body, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ClientError(f"{method}: expected what JSON has: {error}") from None
    model = body.get("model")
    return GivenRequest(
        body=text,
        headers=tuple(lines),
        model=model if isinstance(model, str) else None,
        stream=body.get("stream") is True,
        has_limit=limit_of(body) is not None,
    )


def limit_of(body: Mapping[str, Any]) -> int | None:
    """Return the most tokens of the answer, as the body says; None without a limit."""
    for key in LIMITS:
        limit = body.get(key)
        if isinstance(limit, int):
            return limit if limit > 0 else None
    return None


def _seconds(timeout: float | tuple[float, float] | None) -> float | None:
    """Return the seconds of a timeout; of a pair, as HttpUser takes it, those for the answer."""
    if isinstance(timeout, tuple):
        return timeout[-1]
    return timeout
