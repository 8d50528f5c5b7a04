"""An application's own stream of server-sent events, spoken as `target.sse` describes it; no SDK.

Rule: all that is particular of an application stands in the scenario. The stream is truncated where its end mark is
missing. What the application does not say (usage, model) stays null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import httpx2

from tailgauge.call import Call, Prompt
from tailgauge.protocols.api_keys import bearer
from tailgauge.protocols.decoder import KIND_CODE, StreamDecoder, error_of
from tailgauge.protocols.settings import PLACEHOLDER, Sse
from tailgauge.rows.schema import TEXT

_TEXT = KIND_CODE[TEXT]
_HEADERS = {"accept": "text/event-stream", "accept-encoding": "identity"}


class App:
    """The protocol of one application."""

    def __init__(self, sse: Sse) -> None:
        self._sse = sse
        self._token = sse.token_event.encode() or b"message"
        self._done = None if sse.done_event is None else sse.done_event.encode()
        self._done_data = None if sse.done_data is None else sse.done_data.encode()
        self._error = sse.error_event.encode()
        self._status = None if sse.status_event is None else sse.status_event.encode()
        self._citation = None if sse.citation_event is None else sse.citation_event.encode()
        self._text, self._status_name = steps(sse.text), steps(sse.status_name)
        usage = {"input_tokens": sse.input_tokens, "output_tokens": sse.output_tokens}
        self._usage = {name: steps(at) for name, at in usage.items() if at}
        self._parses = bool(self._text or self._status_name or self._usage)

    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """The HTTP client, with the address and the key for it."""
        http_client.base_url = base_url
        http_client.headers = httpx2.Headers({**_HEADERS, **bearer(key)})
        return http_client

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> AbstractContextManager[Any]:
        """One call; entering it sends the request."""
        words = {"prompt": said(call.prompt), "model": model, "call_id": call_id}
        headers = {name: _filled(value, words) for name, value in self._sse.headers.items()}
        opened: AbstractContextManager[Any] = sdk.stream(
            "POST",
            self._sse.path,
            json=_body(self._sse.body, words, call.max_tokens),
            headers={**headers, "x-client-request-id": call_id},
        )
        return opened

    def values(self, sdk: Any, call: Call, model: str) -> None:
        """Not told: the scenario may put anything anywhere."""

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Meaning of one event of the stream."""
        decoder.seen()
        name = name or b"message"
        tree = _tree(data) if self._parses else None
        if self._citation is not None and decoder.citations is None:
            decoder.citations = 0
        if name == self._done or data == self._done_data:
            decoder.stop()
        elif name == self._error:
            decoder.error = decoder.error or error_of(_tree(data) or _text(data))
        elif name == self._token:
            decoder.content(_TEXT, (at(tree, self._text) if self._text else _text(data)) or "")
        elif name == self._status:
            decoder.phase(str(at(tree, self._status_name) if self._status_name else _text(data)))
        elif name == self._citation:
            decoder.citations = (decoder.citations or 0) + 1
        for counter, path in self._usage.items():
            decoder.count(**{counter: at(tree, path)})

    def content_of(self, name: bytes, tree: Any) -> None:
        """Not told: an application's events are all read in full."""

    def on_whole(self, decoder: StreamDecoder, body: bytes) -> None:  # noqa: ARG002 - the interface
        """Never asked for: scenarios refuse it."""
        raise ValueError(f"an answer without a stream: {body[:80]!r}")


def said(prompt: Prompt) -> str:
    """The whole prompt as one text: system, then the conversation; one user's text is itself."""
    parts = [*prompt.system, *(part for message in prompt.messages for part in message.parts)]
    return "\n\n".join(part.text for part in parts)


def steps(pointer: str) -> tuple[str, ...]:
    """The steps of a JSON pointer; none for the data itself."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def at(tree: Any, path: tuple[str, ...]) -> Any:
    """What stands there; None where nothing does, as in the many events without a usage."""
    for step in path:
        try:
            tree = tree[int(step)] if isinstance(tree, list) else tree[step]
        except (ValueError, TypeError, LookupError):
            return None
    return tree


def _tree(data: bytes) -> Any:
    """The data as JSON; None where it is none."""
    try:
        return json.loads(data)
    except ValueError:
        return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _body(template: Any, words: Mapping[str, str], max_tokens: int) -> Any:
    if isinstance(template, str):
        return max_tokens if template == "{max_tokens}" else _filled(template, words)
    if isinstance(template, Mapping):
        return {key: _body(value, words, max_tokens) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [_body(value, words, max_tokens) for value in template]
    return template


def _filled(template: str, words: Mapping[str, str]) -> str:
    """The text with its placeholders replaced, each once: what a prompt says is no template."""
    return PLACEHOLDER.sub(lambda found: words.get(found[1], found[0]), template)
