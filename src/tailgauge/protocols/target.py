"""A target as the traffic sees it: one protocol, one SDK client, one pool of connections.

The SDK builds each kind of request twice, under two ids. From these a template is made: the request line, the headers and
the order of the body's keys. It gives the other requests, with their ids and bodies, and is used only if it gives the first
two byte for byte; otherwise the SDK builds every request of that kind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import httpx2
from pydantic_core import to_json

from tailgauge.call import MESSAGE, Call, Prompt
from tailgauge.plugins.plugin import blamed
from tailgauge.protocols import shapes
from tailgauge.protocols.additions import (
    CURRENT,
    Additions,
    Current,
    TableAdds,
    additions,
    values_of,
)
from tailgauge.protocols.api_keys import key_of, without_keys_for_others
from tailgauge.protocols.decoder import AnswerSettings, OnWhole, StreamDecoder
from tailgauge.protocols.protocol import PLACEHOLDER_KEY, Adaptation, Opened, TargetSettings
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http1 import request_bytes
from tailgauge.transport.http_transport import HttpTransport, origin_of
from tailgauge.transport.reader import Departure

Values = Mapping[str, str | int]  # of the placeholders of a call
# Returns the body of a request with this id, and the lines of the headers that are added.
MakeParts = Callable[[str], tuple[Mapping[str, Any], bytes]]
# What an engine calls the text and the tokens around it in `POST /tokenize`, at the root of its host. Sources: vLLM's
# `entrypoints/serve/tokenize/protocol.py`, SGLang's `entrypoints/openai/serving_tokenize.py`, llama.cpp's server README.
_VLLM_FIELDS = ("prompt", "add_special_tokens")
_LLAMA_FIELDS = ("content", "add_special")
_IDS = ("a/0/0/0", "another/12/3/4")
_BLANK = b"\r\n\r\n"
_OTHER_NAMES = ("error",)  # of events that are never plain
_SDK_KEY_HEADERS = (b"authorization", b"x-api-key")
_PLAIN = Prompt.of("any")
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Endpoint:
    """Makes calls at one target; `url` is where it really is, of a simulated one too."""

    def __init__(
        self,
        url: str,
        target: TargetSettings,
        transport: HttpTransport,
        tables: Mapping[str, TableAdds] | None = None,
    ) -> None:
        """Prepare to make calls at a target, with the protocol, the key and the SDK that its table names; nothing is sent.

        `url`: where the target really is; of a simulated one the scenario does not say it. `tables`: what
        each traffic table adds to its requests. Raises TargetError if a key or a variable is missing.
        """
        self.protocol = target.protocol
        self.model = target.model
        self._target = target
        self._tables = tables or {}
        self._url = httpx2.URL(url)
        self.set_engine(target.engine)
        wire = PROTOCOLS[target.protocol](target, url)
        self._wire = wire
        self.longest_wait_s = wire.longest_wait_s  # before a retry; None: no limit
        self.obeys_max_tokens = wire.obeys_max_tokens
        self._shapes = shapes.compiled(wire.shapes, _OTHER_NAMES)
        self._transport = transport
        self._origin = origin_of(self._url)
        self._capture = Capture()
        self._key = key_of(target, url)
        # One client sends; the other one builds requests that are captured.
        with without_keys_for_others(url, target.protocol):
            self._sdk = self._client(url, transport)
            self._capturing_sdk = self._client(url, self._capture)

    def _client(self, url: str, transport: httpx2.BaseTransport) -> Any:
        """Return a client of the SDK over a transport."""
        wire = self._wire
        key = self._key
        key_headers = None
        if not wire.sends_key_as_sdk(key):
            key_headers = wire.key_headers(key)
        http_client = httpx2.Client(transport=Adding(transport, key_headers), trust_env=False)
        return wire.client(url, key, http_client)

    def set_engine(self, name: str | None) -> None:
        """Set the engine, whose own fields are sent where a table asks for exact answers."""
        target = self._target
        self._added = {table: additions(target, adds, name) for table, adds in self._tables.items()}
        self._added_to_all = additions(target, TableAdds(), None)
        self._templates: dict[Hashable, Template | None] = {}

    def adaptation(self, refusal: str) -> Adaptation | None:
        """Return what to send instead of what the target has refused with this text, where that is known."""
        return self._wire.adaptation(refusal)

    def adapt(self, adaptation: Adaptation) -> None:
        """Send what the preflight found that the target takes."""
        self._wire.adapt(adaptation)
        self._templates = {}

    def send(
        self,
        call: Call,
        call_id: str,
        request: bytes | None = None,
        *,
        request_id: int = 0,
        traffic: str = "",
    ) -> Opened:
        """Return one call. Entering it sends the request and returns with the response's head, or raises.

        `request`: its bytes, if `prepared` has given them before. The SDK builds the first request of each kind, and
        every one that no template gives. Raises ValueError for a body of the user's without a template.
        """
        request = request or self.prepared(call, call_id, request_id, traffic)
        if request is not None:
            return self._transport.sent(self._origin, request)
        if call.prompt.given is not None:
            raise ValueError(
                f"no request can be made of a body with target.protocol = {self.protocol!r}"
            )
        values = self._values_by_id(call, request_id, traffic)(call_id)
        return self._build(self._sdk, call, call_id, self._additions_of(traffic), values)

    def address(self, call: Call, traffic: str = "") -> str | None:
        """Return the full URL of a call; None if the SDK refuses to build it."""
        call_id = _IDS[0]
        values = self._values_by_id(call, 0, traffic)(call_id)
        added = self._additions_of(traffic)
        request = self._capture.request_of(
            self._build(self._capturing_sdk, call, call_id, added, values)
        )
        if request is None:
            return None
        path = request.split(b" ", 2)[1].decode("ascii")
        return f"{self._url.scheme}://{self._url.netloc.decode('ascii')}{path}"

    def _build(
        self, sdk: Any, call: Call, call_id: str, added: Additions | None, values: Values
    ) -> Opened:
        """Return a call whose request the SDK builds; what the scenario adds is filled in with the values."""
        current = Current(added, values, partial(self._wire.entries, call))
        send = partial(self._wire.send, sdk, call, call.model or self.model, call_id)
        return _opened(current, send)

    def _values_by_id(self, call: Call, request_id: int, traffic: str) -> Callable[[str], Values]:
        """Return a function that gives the values of the call's placeholders under an id of the call."""
        model = call.model or self.model
        return partial(
            values_of,
            request_id=request_id,
            traffic=traffic,
            model=model,
            max_tokens=call.max_tokens,
        )

    def _additions_of(self, traffic: str) -> Additions | None:
        return self._added.get(traffic, self._added_to_all)

    def blamed(self, error: Exception) -> Exception:
        """Return an error of a call that was not sent; of a plugin's protocol, one that names the plugin."""
        return blamed(self._wire.send, error)

    def rests(self) -> bool:
        """Return whether there is an idle connection."""
        return self._transport.rests(self._origin)

    def send_at_once(self, request: bytes, exchange: Exchange) -> bool:
        """Send a prepared request without waiting for anything; False: nothing was done, use `send`."""
        return self._transport.send_at_once(exchange, self._origin, request)

    @property
    def may_prepare(self) -> bool:
        """Return whether requests can be sent by `send_at` now."""
        return self._transport.may_prepare(self._origin)

    @property
    def ahead_ns(self) -> int:
        """Return how long before its due time a request may be prepared, in ns."""
        return self._transport.ahead_ns(self._origin)

    def send_at(
        self, due_ns: int, request: bytes, on_due: Callable[[Departure], object]
    ) -> Callable[[], bool] | None:
        """Let a prepared request leave at its due time; return what withdraws it, or None if it cannot be sent so."""
        return self._transport.prepare(self._origin, due_ns, request, on_due)

    def attach(self, exchange: Exchange, departure: Departure) -> None:
        """Time a prepared request that has left."""
        self._transport.attach(exchange, self._origin, departure)

    def prepared(
        self, call: Call, call_id: str, request_id: int = 0, traffic: str = ""
    ) -> bytes | None:
        """Return the bytes of a request by its template; None where there is no template, and the SDK has to build it.

        `call_id` stands in the request. `request_id` and `traffic` are values of placeholders, `traffic`
        also names the table whose additions the request gets. A template is made with the first request of
        its kind.
        """
        added = self._additions_of(traffic)
        given = call.prompt.given
        # The head of a call with the user's own body is that of any other call.
        if given is not None:
            call = replace(call, prompt=_PLAIN)
        body = None
        if call.kind == MESSAGE:
            body = self._wire.body(call, call.model or self.model)
        if body is None:
            return None
        values_by_id = self._values_by_id(call, request_id, traffic)

        def make_parts(call_id: str) -> tuple[Mapping[str, Any], bytes]:
            if added is None:
                return body, b""
            values = values_by_id(call_id)
            return added.body(body, values), added.lines(values)

        def capture(call_id: str) -> bytes | None:
            values = values_by_id(call_id)
            return self._capture.request_of(
                self._build(self._capturing_sdk, call, call_id, added, values)
            )

        full_body, lines = make_parts(call_id)
        # Requests of one kind have the same model, additions and keys of the body, and the same form of their contents.
        form = self._wire.template_key(call, full_body)
        kind = (call.model, added, call.stream, form, *full_body)
        template = self._template(kind, capture, make_parts)
        if template is None:
            return None
        if given is None:
            return template.request(full_body, call_id, lines)
        # The user's own body goes as it is, unless the scenario adds to it.
        text = given.body.encode("utf-8", "surrogatepass")
        if added is not None and added.changes_body:
            text = to_json(added.body(json.loads(text), values_by_id(call_id)))
        return with_headers(template.around(text, call_id, lines), given.headers)

    def _template(
        self, kind: Hashable, capture: Callable[[str], bytes | None], make_parts: MakeParts
    ) -> Template | None:
        if kind not in self._templates:
            self._templates[kind] = make_template(capture, make_parts)
        return self._templates[kind]

    def list_models(self) -> Opened | None:
        """Request the target's list of models; None where the protocol has no such list."""
        if self._wire.sdk is None:
            return None
        return _opened(
            self._current_without_call("models"), self._sdk.models.with_streaming_response.list
        )

    def tokenize(self, engine: str, text: str) -> Opened:
        """Request the tokens of a text, without those that the engine puts around a prompt."""
        text_field, special_field = _LLAMA_FIELDS if engine == "llama.cpp" else _VLLM_FIELDS
        client = httpx2.Client(transport=Adding(self._transport), trust_env=False)
        request = partial(
            client.stream,
            "POST",
            self._url.copy_with(raw_path=b"/tokenize"),
            headers={**self._wire.key_headers(self._key), "accept-encoding": "identity"},
            json={"model": self.model, text_field: text, special_field: False},
        )
        return _opened(self._current_without_call("tokenize"), request)

    def _current_without_call(self, call_id: str) -> Current:
        """Return what is added to a request about the target itself: headers, and nothing in a body."""
        values = values_of(call_id, request_id=0, traffic="", model=self.model, max_tokens=0)
        return Current(self._added_to_all, values, lambda _: [])

    def decoder(self, call: Call) -> StreamDecoder:
        """Return a decoder for the answer to one call."""
        wire = self._wire
        given = call.prompt.given
        obeys_max_tokens = wire.obeys_max_tokens and (given is None or given.has_limit)
        on_whole: OnWhole | None = wire.on_job
        if call.kind == MESSAGE:
            on_whole = None if call.stream else wire.on_whole
        settings = AnswerSettings(
            kind=call.kind,
            keep_text=call.keep_text,
            watch_field=call.watch_field,
            watch_chunks=call.watch_chunks,
            max_tokens=call.max_tokens,
            obeys_max_tokens=obeys_max_tokens,
            ends_naturally=call.ends_naturally,
            event_ids=call.event_ids,
            protocol=wire.name,
            shapes=self._shapes,
            takes_bare_names=wire.takes_bare_names,
            ends_at_mark=wire.ends_at_mark,
        )
        return StreamDecoder(wire.on_event, settings, on_whole=on_whole)


class Adding(httpx2.BaseTransport):
    """Adds to a request of an SDK what the scenario says, and passes it to the next transport.

    `key_headers`: replace the SDK's own header with the key; None: that header stays.
    """

    def __init__(
        self, transport: httpx2.BaseTransport, key_headers: Mapping[str, str] | None = None
    ) -> None:
        self._transport = transport
        self._key_headers = key_headers

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Add headers behind the SDK's own, whose namesakes are replaced, and fields of the body; then send the request."""
        if self._key_headers is not None:
            request.headers = _with_key(request.headers, self._key_headers)
        current = CURRENT.get()
        if current is not None and current.added is not None:
            request = _with_additions(request, current.added, current)
        return self._transport.handle_request(request)


def _with_key(headers: httpx2.Headers, key_headers: Mapping[str, str]) -> httpx2.Headers:
    """Return the headers with the key's where the SDK has put its own."""
    lines = []
    for name, value in headers.raw:
        if name.lower() in _SDK_KEY_HEADERS:
            lines += [(key.encode(), text.encode()) for key, text in key_headers.items()]
        else:
            lines.append((name, value))
    return httpx2.Headers(lines)


def _with_additions(request: httpx2.Request, added: Additions, current: Current) -> httpx2.Request:
    """Return the request with the additions to its headers and to the entries of its body.

    `current`: the call that is being built, with the values of its placeholders. An added header replaces
    that of the same name; of several messages in one body (`entries`) each gets the added fields.
    """
    body = request.read()
    if body and added.changes_body:
        tree = json.loads(body)
        for entry in current.entries(tree):
            entry.update(added.body(entry, current.values))
        body = _ENCODE(tree).encode()
    headers = []
    for name, value in request.headers.raw:
        lower_name = name.lower()
        if lower_name in added.names:
            continue
        if lower_name == b"content-length":
            headers.append((name, b"%d" % len(body)))
        else:
            headers.append((name, value))
    # Each line stands behind a line end, so that the first piece is empty.
    for line in added.lines(current.values).split(b"\r\n")[1:]:
        name, _, value = line.partition(b": ")
        headers.append((name, value))
    return httpx2.Request(request.method, request.url, headers=headers, content=body or None)


@contextmanager
def _opened(current: Current, call: Callable[[], Opened]) -> Iterator[Any]:
    """Open a call of the SDK; `Adding` finds in `current` what to add to its request."""
    token = CURRENT.set(current)
    try:
        with call() as response:
            yield response
    finally:
        CURRENT.reset(token)


class Capture(httpx2.BaseTransport):
    """A transport under an SDK that keeps the request's bytes instead of sending them."""

    def __init__(self) -> None:
        self.captured: bytes | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Keep the request; for the SDK it could not be sent."""
        path = request.url.raw_path
        headers = request.headers.raw
        self.captured = request_bytes(request.method, path, headers, request.read())
        raise httpx2.ConnectError("captured, not sent", request=request)

    def request_of(self, opened: Opened) -> bytes | None:
        """Return the bytes of a call's request; None if the SDK refused to build it."""
        self.captured = None
        with suppress(Exception), opened:
            raise AssertionError("a captured request was answered")
        return self.captured


def load_sdks(targets: Iterable[TargetSettings]) -> None:
    """Import the SDKs of these targets and build a request with each.

    That takes up to a second, and is done once for all workers that are forked later.
    """
    nowhere = "http://127.0.0.1"
    capture = Capture()
    for target in {target.protocol: target for target in targets}.values():
        wire = PROTOCOLS[target.protocol](target, nowhere)
        http_client = httpx2.Client(transport=capture, trust_env=False)
        with without_keys_for_others(nowhere, target.protocol):
            sdk = wire.client(nowhere, PLACEHOLDER_KEY, http_client)
        call = Call(Prompt.of("warm up"), 1)
        capture.request_of(wire.send(sdk, call, target.model, _IDS[0]))


@dataclass(frozen=True, slots=True)
class Template:
    """The head of a request around its id and its length, and the keys of the body in their order."""

    head: bytes
    behind_id: bytes
    names: tuple[str, ...]

    def request(self, body: Mapping[str, Any], call_id: str, lines: bytes = b"") -> bytes:
        """Return the request with this body; `lines`: added headers."""
        # Five times as fast as `json`. Some floats are written in another way: then there is no template.
        return self.around(to_json({name: body[name] for name in self.names}), call_id, lines)

    def around(self, text: bytes, call_id: str, lines: bytes = b"") -> bytes:
        """Return the request with this text as its body."""
        parts = (self.head, call_id.encode("ascii"), self.behind_id, len(text), lines, _BLANK, text)
        return b"%b%b%b%d%b%b%b" % parts


def with_headers(request: bytes, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the request with these headers, which replace its own of the same names."""
    added = [
        (name.lower().encode(), f"{name}: {value}".encode("latin-1")) for name, value in headers
    ]
    if not added:
        return request
    names = {name for name, _ in added}
    head, _, body = request.partition(_BLANK)
    lines = [line for line in head.split(b"\r\n") if line.partition(b":")[0].lower() not in names]
    lines += [line for _, line in added]
    return b"\r\n".join(lines) + _BLANK + body


def make_template(capture: Callable[[str], bytes | None], make_parts: MakeParts) -> Template | None:
    """Return a template of requests; None if it does not give the SDK's requests byte for byte.

    `capture` returns the SDK's request for an id, `make_parts` the body and the added headers of it. Both
    are called with two ids of different length, so that what depends on the id shows.
    """
    captured = [capture(call_id) for call_id in _IDS]
    if captured[0] is None:
        return None
    head, _, text = captured[0].partition(_BLANK)
    head_before_id, call_id, head_behind_id = head.partition(_IDS[0].encode())
    _, lines = make_parts(_IDS[0])
    # The added headers are the last ones.
    head_behind_id = head_behind_id.removesuffix(lines)
    length = b"%d" % len(text)
    if not call_id or not head_behind_id.lower().endswith(b"\r\ncontent-length: " + length):
        return None
    requests = []
    try:
        key_names = tuple(json.loads(text))
        template = Template(head_before_id, head_behind_id.removesuffix(length), key_names)
        for id_ in _IDS:
            body, lines = make_parts(id_)
            requests.append(template.request(body, id_, lines))
    except (ValueError, LookupError, AttributeError):
        return None
    return template if requests == captured else None
