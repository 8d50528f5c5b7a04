"""A target as the traffic sees it: one protocol, one SDK client, one pool of connections.

The SDK builds each kind of request, twice, under two ids. A template of its line, headers and order of the body makes
the others, with another id and another body; it is used only if it gives the two byte for byte. Kinds whose template does
not are built by the SDK every time.
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
from tailgauge.protocols.api_keys import key_of, only_for_the_provider
from tailgauge.protocols.decoder import StreamDecoder
from tailgauge.protocols.protocol import PLACEHOLDER_KEY, Adaptation, Opened, TargetSettings
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.transport.exchange import Exchange
from tailgauge.transport.http1 import request_bytes
from tailgauge.transport.reader import Due
from tailgauge.transport.stopwatch import Stopwatch, origin_of

Made = Callable[[str], tuple[Mapping[str, Any], bytes]]
# What an engine calls the text and the tokens around it in `POST /tokenize`, at the root of its host. Sources: vLLM's
# `entrypoints/serve/tokenize/protocol.py`, SGLang's `entrypoints/openai/serving_tokenize.py`, llama.cpp's server README.
_OF_VLLM = ("prompt", "add_special_tokens")
_OF_LLAMA = ("content", "add_special")
_IDS = ("a/0/0/0", "another/12/3/4")
_BLANK = b"\r\n\r\n"
_OTHER_NAMES = ("error",)  # of events that are never plain
_SDK_KEY_HEADERS = (b"authorization", b"x-api-key")
_PLAIN = Prompt.of("any")
_ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Endpoint:
    """Makes calls at one target; `url` is where it really is, of a simulated one too."""

    def __init__(
        self, url: str, target: TargetSettings, transport: Stopwatch,
        tables: Mapping[str, TableAdds] | None = None,
    ) -> None:  # fmt: skip
        self.protocol = target.protocol
        self.model = target.model
        self._target = target
        self._tables = tables or {}
        self._url = httpx2.URL(url)
        self.engine(target.engine)
        self._wire = PROTOCOLS[target.protocol](target, url)
        self.longest_wait_s = self._wire.longest_wait_s
        self.obeys_max_tokens = self._wire.obeys_max_tokens
        self._transport = transport
        self._origin = origin_of(httpx2.URL(url))
        wire = self._wire
        self._shapes = shapes.compiled(wire.shapes, _OTHER_NAMES)
        self._capture = Capture()
        self._key = key_of(target, url)
        key = self._key
        key_headers = None if wire.sends_key_as_sdk(key) else wire.key_headers(key)
        with only_for_the_provider(url, target.protocol):
            self._sdk, self._unsent = (
                wire.client(
                    url, key, httpx2.Client(transport=Adding(under, key_headers), trust_env=False)
                )
                for under in (transport, self._capture)
            )

    def engine(self, name: str | None) -> None:
        """Send what this engine understands, where a table asks for exact answers."""
        target = self._target
        self._added = {table: additions(target, adds, name) for table, adds in self._tables.items()}
        self._added_to_all = additions(target, TableAdds(), None)
        self._templates: dict[Hashable, Template | None] = {}

    def adaptation(self, refusal: str) -> Adaptation | None:
        """What to send instead of what the target has refused with this text, where that is known."""
        return self._wire.adaptation(refusal)

    def adapt(self, adaptation: Adaptation) -> None:
        """Send what the preflight found that the target takes."""
        self._wire.adapt(adaptation)
        self._templates = {}

    def send(
        self, call: Call, call_id: str, request: bytes | None = None, *, request_id: int = 0,
        traffic: str = "",
    ) -> Opened:  # fmt: skip
        """One call; entering it sends the request and returns with the response's head, or raises.

        The SDK builds the first request of each kind, and every one that no template gives. `request`: as `prepared`.
        """
        request = request or self.prepared(call, call_id, request_id, traffic)
        if request is not None:
            return self._transport.sent(self._origin, request)
        if call.prompt.given is not None:
            raise ValueError(
                f"no request can be made of a body with target.protocol = {self.protocol!r}"
            )
        return self._built(self._sdk, call, call_id, self._added_of(traffic), request_id, traffic)

    def address(self, call: Call, traffic: str = "") -> str | None:
        """The full URL of a call; None if the SDK refuses to build it."""
        opened = self._built(self._unsent, call, _IDS[0], self._added_of(traffic), 0, traffic)
        head = self._capture.of(opened)
        if head is None:
            return None
        path = head.split(b" ", 2)[1].decode("ascii")
        return f"{self._url.scheme}://{self._url.netloc.decode('ascii')}{path}"

    def _built(
        self,
        sdk: Any,
        call: Call,
        call_id: str,
        added: Additions | None,
        request_id: int,
        traffic: str,
    ) -> Opened:
        """A call that the SDK builds, with what is added to it."""
        model = call.model or self.model
        values = values_of(call_id, request_id, traffic, model, call.max_tokens)
        current = Current(added, values, partial(self._wire.entries, call))
        return _opened(current, partial(self._wire.send, sdk, call, model, call_id))

    def _added_of(self, traffic: str) -> Additions | None:
        return self._added.get(traffic, self._added_to_all)

    def blamed(self, error: Exception) -> Exception:
        """Return an error of a call that was not sent; of a plugin's protocol, one that names the plugin."""
        return blamed(self._wire.send, error)

    def rests(self) -> bool:
        """Whether there is an idle connection."""
        return self._transport.rests(self._origin)

    def send_at_once(self, request: bytes, exchange: Exchange) -> bool:
        """Send a prepared request without waiting for anything; False: nothing was done, use `send`."""
        return self._transport.send_at_once(exchange, self._origin, request)

    @property
    def may_prepare(self) -> bool:
        """Whether requests can be sent by `send_at` now."""
        return self._transport.may_prepare(self._origin)

    @property
    def ahead_ns(self) -> int:
        """How long before it is due a request may be prepared."""
        return self._transport.ahead_ns(self._origin)

    def send_at(
        self, due_ns: int, request: bytes, on_due: Callable[[Due], object]
    ) -> Callable[[], bool] | None:
        """Let a prepared request leave at its due time; returns what withdraws it, None where it cannot be."""
        return self._transport.prepare(self._origin, due_ns, request, on_due)

    def attach(self, exchange: Exchange, due: Due) -> None:
        """Time a prepared request that has left."""
        self._transport.attach(exchange, self._origin, due)

    def prepared(
        self, call: Call, call_id: str, request_id: int = 0, traffic: str = ""
    ) -> bytes | None:
        """A request by its template; None where there is none."""
        model = call.model or self.model
        added = self._added_of(traffic)
        given = call.prompt.given
        if given is not None:  # the head is that of any other call
            call = replace(call, prompt=_PLAIN)
        body = self._wire.body(call, model) if call.kind == MESSAGE else None
        if body is None:
            return None

        def made(call_id: str) -> tuple[Mapping[str, Any], bytes]:
            if added is None:
                return body, b""
            values = values_of(call_id, request_id, traffic, model, call.max_tokens)
            return added.body(body, values), added.lines(values)

        whole, lines = made(call_id)
        like = self._template(call, whole, added, request_id, traffic, made)
        if like is None:
            return None
        if given is None:
            return like.request(whole, call_id, lines)
        text = given.body.encode("utf-8", "surrogatepass")
        if added is not None and added.changes_body:
            values = values_of(call_id, request_id, traffic, model, call.max_tokens)
            text = to_json(added.body(json.loads(text), values))
        return with_headers(like.around(text, call_id, lines), given.headers)

    def list_models(self) -> Opened | None:
        """Request the target's list of models; None where the protocol has no such list."""
        if self._wire.sdk is None:
            return None
        current = Current(
            self._added_to_all, values_of("models", 0, "", self.model, 0), lambda _: []
        )
        return _opened(current, self._sdk.models.with_streaming_response.list)

    def tokenize(self, engine: str, text: str) -> Opened:
        """Request the tokens of a text, without those that the engine puts around a prompt."""
        field, special = _OF_LLAMA if engine == "llama.cpp" else _OF_VLLM
        client = httpx2.Client(transport=Adding(self._transport), trust_env=False)
        headers = {**self._wire.key_headers(self._key), "accept-encoding": "identity"}
        request = partial(
            client.stream, "POST", self._url.copy_with(raw_path=b"/tokenize"), headers=headers,
            json={"model": self.model, field: text, special: False},
        )  # fmt: skip
        current = Current(
            self._added_to_all, values_of("tokenize", 0, "", self.model, 0), lambda _: []
        )
        return _opened(current, request)

    def _template(
        self, call: Call, body: Mapping[str, Any], added: Additions | None, request_id: int, traffic: str,
        made: Made,
    ) -> Template | None:  # fmt: skip
        """The template of calls of this kind: the same model, additions and keys of the body, and what the protocol adds."""
        kind = (call.model, added, call.stream, self._wire.template_key(call, body), *body)
        if kind not in self._templates:

            def capture(call_id: str) -> bytes | None:
                return self._capture.of(
                    self._built(self._unsent, call, call_id, added, request_id, traffic)
                )

            self._templates[kind] = template(capture, made)
        return self._templates[kind]

    def decoder(self, call: Call) -> StreamDecoder:
        """A decoder for the answer to one call."""
        wire = self._wire
        given = call.prompt.given
        obeys_max_tokens = wire.obeys_max_tokens and (given is None or given.has_limit)
        on_whole = None if call.stream else wire.on_whole
        return StreamDecoder(
            wire.on_event, on_whole=on_whole if call.kind == MESSAGE else wire.on_job, kind=call.kind,
            shapes=self._shapes, event_ids=call.event_ids, keep_text=call.keep_text,
            watch_field=call.watch_field, watch_chunks=call.watch_chunks,
            max_tokens=call.max_tokens, obeys_max_tokens=obeys_max_tokens,
            protocol=wire.name, ends_naturally=call.ends_naturally,
            takes_bare_names=wire.takes_bare_names, ends_at_mark=wire.ends_at_mark,
        )  # fmt: skip


class Adding(httpx2.BaseTransport):
    """Under an SDK: the transport, and what the scenario adds to a request.

    `key_headers`: what replaces the SDK's own header with the key; None where that is to stay.
    """

    def __init__(
        self, under: httpx2.BaseTransport, key_headers: Mapping[str, str] | None = None
    ) -> None:
        self._under = under
        self._key_headers = key_headers

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Add it, behind the SDK's own headers; those of the same name are replaced."""
        if self._key_headers is not None:
            request.headers = _with_key(request.headers, self._key_headers)
        current = CURRENT.get()
        if current is not None and current.added is not None:
            request = _with(request, current.added, current)
        return self._under.handle_request(request)


def _with_key(headers: httpx2.Headers, key_headers: Mapping[str, str]) -> httpx2.Headers:
    """Return the headers with the key's where the SDK has put its own."""
    lines = []
    for name, value in headers.raw:
        if name.lower() in _SDK_KEY_HEADERS:
            lines += [(key.encode(), text.encode()) for key, text in key_headers.items()]
        else:
            lines.append((name, value))
    return httpx2.Headers(lines)


def _with(request: httpx2.Request, added: Additions, current: Current) -> httpx2.Request:
    body = request.read()
    if body and added.changes_body:
        tree = json.loads(body)
        for one in current.entries(tree):
            one.update(added.body(one, current.values))
        body = _ENCODE(tree).encode()
    lines = [line.partition(b": ") for line in added.lines(current.values).split(b"\r\n")[1:]]
    length = b"%d" % len(body)
    headers = [
        (name, length if name.lower() == b"content-length" else value)
        for name, value in request.headers.raw
        if name.lower() not in added.names
    ]
    headers += [(name, value) for name, _, value in lines]
    return httpx2.Request(request.method, request.url, headers=headers, content=body or None)


@contextmanager
def _opened(current: Current, call: Callable[[], Opened]) -> Iterator[Any]:
    """A call of the SDK, with what is added to it."""
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
        """Keep it; to the SDK it was not sent."""
        path = request.url.raw_path
        headers = request.headers.raw
        self.captured = request_bytes(request.method, path, headers, request.read())
        raise httpx2.ConnectError("captured, not sent", request=request)

    def of(self, opened: Opened) -> bytes | None:
        """The bytes of a request; None if the SDK refused to build it."""
        self.captured = None
        with suppress(Exception), opened:
            raise AssertionError("a captured request was answered")
        return self.captured


def load_sdks(targets: Iterable[TargetSettings]) -> None:
    """Import the SDKs of these targets and build a request with each: up to a second, once for all workers forked later."""
    nowhere = "http://127.0.0.1"
    capture = Capture()
    for target in {target.protocol: target for target in targets}.values():
        wire = PROTOCOLS[target.protocol](target, nowhere)
        with only_for_the_provider(nowhere, target.protocol):
            sdk = wire.client(
                nowhere, PLACEHOLDER_KEY, httpx2.Client(transport=capture, trust_env=False)
            )
        capture.of(wire.send(sdk, Call(Prompt.of("warm up"), 1), target.model, _IDS[0]))


@dataclass(frozen=True, slots=True)
class Template:
    """The head of a request around its id and its length, and the keys of the body in their order."""

    head: bytes
    behind_id: bytes
    names: tuple[str, ...]

    def request(self, body: Mapping[str, Any], call_id: str, lines: bytes = b"") -> bytes:
        """The request with this body; `lines`: added headers."""
        # Five times as fast as `json`. Some floats are written in another way: then there is no template.
        return self.around(to_json({name: body[name] for name in self.names}), call_id, lines)

    def around(self, text: bytes, call_id: str, lines: bytes = b"") -> bytes:
        """The request with this text as its body."""
        parts = (self.head, call_id.encode("ascii"), self.behind_id, len(text), lines, _BLANK, text)
        return b"%b%b%b%d%b%b%b" % parts


def with_headers(request: bytes, headers: Iterable[tuple[str, str]]) -> bytes:
    """The request with these headers, instead of its own of the same names."""
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


def template(capture: Callable[[str], bytes | None], made: Made) -> Template | None:
    """A template of the requests that `capture` gives for an id, if there is one; `made`: their bodies and added headers."""
    first, second = map(capture, _IDS)
    if first is None:
        return None
    head, _, text = first.partition(_BLANK)
    before, call_id, behind = head.partition(_IDS[0].encode())
    behind = behind.removesuffix(made(_IDS[0])[1])
    length = b"%d" % len(text)
    if not call_id or not behind.lower().endswith(b"\r\ncontent-length: " + length):
        return None
    try:
        found = Template(before, behind.removesuffix(length), tuple(json.loads(text)))
        both = [(one, *made(one)) for one in _IDS]
        same = [found.request(body, one, lines) for one, body, lines in both] == [first, second]
    except (ValueError, LookupError, AttributeError):
        return None
    return found if same else None
