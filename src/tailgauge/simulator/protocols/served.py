"""What an answer says of how it was served, in its events: facts, and the blocks that come before its text.

A block before the text has the first index, and moves those of the text.
"""

from __future__ import annotations

from typing import Any

from tailgauge.simulator.behaviours.search import Search
from tailgauge.simulator.behaviours.served import ServedAs
from tailgauge.simulator.protocols import anthropic
from tailgauge.simulator.protocols.request import Reply
from tailgauge.simulator.protocols.rewriting import Event, Step, Tree

_USAGE_FACTS = ("service_tier", "speed", "inference_geo")
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")


def steps(protocol: str, reply: Reply, served: ServedAs | None, search: Search | None) -> list[Step]:
    """Return the steps of an answer that was served so, and searched before its text."""
    found: list[Step] = []
    if protocol != anthropic.NAME:
        return [] if served is None else [_ChatFacts(reply, served)]
    if served is not None:
        found.append(_MessagesFacts(reply, served))
        if served.fallback:
            found.append(_Fallback(reply, served))
    if search is not None:
        found.append(_Search(reply, search))
    return found


class _Facts(Step):
    def __init__(self, reply: Reply, served: ServedAs) -> None:
        super().__init__(reply)
        self.served = served


class _ChatFacts(_Facts):
    """Each chunk names the model that serves it; there is no mark of another one's end."""

    def change(self, tree: Tree) -> None:
        model = self.served.fallback or self.served.model
        if model and "model" in tree:
            tree["model"] = model
        if self.served.service_tier and "model" in tree:
            tree["service_tier"] = self.served.service_tier


class _MessagesFacts(_Facts):
    def change(self, tree: Tree) -> None:
        message = tree.get("message") or tree
        if message.get("type") != "message":
            return
        if self.served.model:
            message["model"] = self.served.model
        for name in _USAGE_FACTS:
            value = getattr(self.served, name)
            if value:
                message["usage"][name] = value


class _Before(Step):
    """Blocks before the text, `count` of them."""

    count = 0

    def shift(self, event: Event) -> Event:
        """Move the index of a content block's event."""
        if str(event.tree.get("type", "")).startswith("content_block"):
            event.data["index"] += self.count
        return event


class _Fallback(_Before, _Facts):
    """The requested model has declined before its first token, and another one goes on."""

    count = 1
    _has_begun = False

    def event(self, event: Event) -> list[Event]:
        tree = event.tree
        if tree.get("type") == "message_delta":
            self._add_iterations(tree["usage"])
        is_first = tree.get("type") == "content_block_start" and not self._has_begun
        if not is_first:
            return [self.shift(event)]
        self._has_begun = True
        return [*_block_events(0, self._block()), self.shift(event)]

    def whole(self, tree: Tree) -> None:
        tree["content"] = [self._block(), *tree["content"]]
        self._add_iterations(tree["usage"])

    def _block(self) -> Tree:
        asked = {"model": self.reply.request.model}
        to = {"model": self.served.fallback}
        return {"type": "fallback", "from": asked, "to": to, "trigger": {"type": "refusal"}}

    def _add_iterations(self, usage: Tree) -> None:
        counts = {name: usage.get(name, 0) for name in _COUNTS}
        declined = {"type": "message", "model": self.reply.request.model, **counts, "output_tokens": 0}
        served = {"type": "fallback_message", "model": self.served.fallback, **counts}
        usage["iterations"] = [declined, served]


class _Search(_Before):
    """A search: its input at once, and when it is over its results in front of the text."""

    count = 2

    def __init__(self, reply: Reply, search: Search) -> None:
        super().__init__(reply)
        self._search = search
        self._held: list[Event] = []  # starts of blocks, until the search is over

    def events(self, events: list[Event], *, is_head: bool) -> list[Event]:
        if is_head:
            return self._begin(events)
        changed: list[Event] = []
        if self._held:
            changed += _block_events(1, self._results())
            changed += map(self.shift, self._held)
            self._held = []
        for event in events:
            self._add_usage(event.tree)
            changed.append(self.shift(event))
        return changed

    def whole(self, tree: Tree) -> None:
        query = {"query": "".join(self._search.query[1:-1])}
        tree["content"] = [self._call() | {"input": query}, self._results(), *tree["content"]]
        self._add_usage(tree)

    def _begin(self, events: list[Event]) -> list[Event]:
        sent = []
        for event in events:
            if str(event.tree.get("type", "")).startswith("content_block"):
                self._held.append(event)
            else:
                sent.append(event)
        start, end = _block_events(0, self._call())
        deltas = map(_input_delta, self._search.query)
        return [*sent, start, *deltas, end]

    def _call(self) -> Tree:
        return {"type": "server_tool_use", "id": self._id, "name": "web_search", "input": {}}

    def _results(self) -> Tree:
        page = {
            "type": "web_search_result",
            "title": "A page",
            "url": "https://example.com/",
            "encrypted_content": "",
            "page_age": None,
        }
        return {"type": "web_search_tool_result", "tool_use_id": self._id, "content": [page]}

    def _add_usage(self, tree: Tree) -> None:
        usage: Any = tree.get("usage")
        if usage:
            usage["server_tool_use"] = {"web_search_requests": 1, "web_fetch_requests": 0}
            usage["input_tokens"] += self._search.result_tokens

    @property
    def _id(self) -> str:
        return f"srvtoolu_{self.reply.id}"


def _block_events(index: int, block: Tree) -> list[Event]:
    """Return the start and the end of a block without deltas."""
    start = {"type": "content_block_start", "index": index, "content_block": block}
    return [_messages_event(start), _messages_event({"type": "content_block_stop", "index": index})]


def _input_delta(piece: str) -> Event:
    delta = {"type": "input_json_delta", "partial_json": piece}
    return _messages_event({"type": "content_block_delta", "index": 0, "delta": delta})


def _messages_event(tree: Tree) -> Event:
    return Event((b"event: " + tree["type"].encode(),), tree)
