"""How servers and gateways write what the provider writes otherwise: a row each, by protocol.

A spelling of a protocol that is not in its row changes nothing.
Sources: public issues and the engines' own documentation (2026-11), named in the rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.protocols import anthropic, openai
from tailgauge.simulator.protocols.request import Reply
from tailgauge.simulator.protocols.rewriting import DONE, Event, NewStep, Step, Tree, each

_BEYOND_PROMPT = 20  # times the tokens of the prompt
_BEYOND_LIMIT = 3  # times the tokens of the answer


def of_protocol(names: Iterable[str], protocol: str) -> frozenset[str]:
    """Return those of the spellings that a protocol has."""
    return frozenset(name for name in names if protocol in SPELLINGS[name])


def steps(names: Collection[str], protocol: str, reply: Reply) -> list[Step]:
    """Return the steps of the spellings of an answer, all of them of its protocol."""
    rows = (by_protocol for name, by_protocol in SPELLINGS.items() if name in names)
    return [by_protocol[protocol](reply) for by_protocol in rows]


# --- events that are no part of the protocol -------------------------------------------------------------------


class _AfterHead(Step):
    """One more event behind those before the content."""

    added = Event((), b"")

    def events(self, events: list[Event], *, is_head: bool) -> list[Event]:
        return [*events, self.added] if is_head else events


class _UnknownMessagesEvent(_AfterHead):
    added = Event((b"event: progress",), {"type": "progress", "percent": 50})


class _UnknownChatEvent(_AfterHead):
    added = Event((), {"object": "chat.completion.progress", "percent": 50})


class _NoModelFirst(Step):
    """A first chunk without choices and with an empty model, as Azure's."""

    def events(self, events: list[Event], *, is_head: bool) -> list[Event]:
        if not is_head:
            return events
        filtered = {"prompt_index": 0, "content_filter_results": {}}
        first = {"id": "", "object": "", "created": 0, "model": "", "choices": []}
        return [Event((), first | {"prompt_filter_results": [filtered]}), *events]


class _DoneAfterStop(Step):
    def event(self, event: Event) -> list[Event]:
        return [event, Event((), DONE)] if event.tree.get("type") == "message_stop" else [event]


class _DoneByPrefix(Step):
    def event(self, event: Event) -> list[Event]:
        return [Event(event.lines, DONE + b" ")] if event.data == DONE else [event]


class _NoDone(Step):
    def event(self, event: Event) -> list[Event]:
        return [] if event.data == DONE else [event]


# --- content ---------------------------------------------------------------------------------------------------


class _ContentInStart(Step):
    """The first text of a block comes with the block's start."""

    _start: Event | None = None

    def event(self, event: Event) -> list[Event]:
        tree = event.tree
        start = self._start
        if start is None:
            if tree.get("type") == "content_block_start" and tree["content_block"]["type"] == "text":
                self._start = event
                return []
            return [event]
        if not str(tree.get("type", "")).startswith("content_block"):
            return [event]
        self._start = None
        if tree["type"] == "content_block_delta":
            start.data["content_block"]["text"] = tree["delta"]["text"]
            return [start]
        return [start, event]


def _message(tree: Tree) -> Tree:
    """Return the delta of a chunk, or the message of a whole answer; an empty object without one."""
    choices = tree.get("choices") or [{}]
    return choices[0].get("delta") or choices[0].get("message") or {}


def _tool_calls(tree: Tree) -> list[Tree]:
    return _message(tree).get("tool_calls") or []


def _content_list(tree: Tree) -> None:
    """Write content as a list of parts, as Mistral's reasoning models do."""
    message = _message(tree)
    parts = []
    thought = message.pop("reasoning_content", None)
    if thought:
        parts.append({"type": "thinking", "thinking": [{"type": "text", "text": thought}]})
    if message.get("content"):
        parts.append({"type": "text", "text": message["content"]})
    if parts:
        message["content"] = parts


def _reasoning(tree: Tree) -> None:
    """Write thinking as `reasoning`, as vLLM and OpenRouter do."""
    message = _message(tree)
    if "reasoning_content" in message:
        message["reasoning"] = message.pop("reasoning_content")


def _reasoning_details(tree: Tree) -> None:
    """Write thinking as `reasoning_details`, as MiniMax and OpenRouter do."""
    message = _message(tree)
    if "reasoning_content" in message:
        detail = {"type": "reasoning.text", "text": message.pop("reasoning_content"), "index": 0}
        message["reasoning_details"] = [detail]


class _ThinkingInText(Step):
    """Thinking stands in the text between tags, where no parser of the engine takes it out."""

    _is_thinking = False

    def change(self, tree: Tree) -> None:
        message = _message(tree)
        text = ""
        thought = message.pop("reasoning_content", None)
        if thought:
            text = thought if self._is_thinking else f"<think>{thought}"
            self._is_thinking = True
        if self._is_thinking and message.get("content"):
            text += f"</think>\n\n{message['content']}"
            self._is_thinking = False
        if text:
            message["content"] = text


def _tool_without_index(tree: Tree) -> None:
    """Leave the index of tool calls out, as Gemini's endpoint does."""
    for call in _tool_calls(tree):
        call.pop("index", None)


def _tool_input_object(tree: Tree) -> None:
    """Write the input of a tool as an object, as older versions of Ollama do."""
    for call in _tool_calls(tree):
        arguments = call["function"].get("arguments")
        if arguments:
            call["function"]["arguments"] = json.loads(arguments)


# --- usage -----------------------------------------------------------------------------------------------------


_INPUTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


def _start_usage(tree: Tree) -> Tree:
    """Return the usage of message_start; an empty object without one."""
    return tree.get("message", {}).get("usage") or {}


def _usage(tree: Tree) -> Tree:
    """Return the usage at the top of an event or a whole answer; an empty object without one."""
    return tree.get("usage") or {}


def _no_messages_usage(tree: Tree) -> None:
    tree.pop("usage", None)
    tree.get("message", {}).pop("usage", None)


class _NoChatUsage(Step):
    def event(self, event: Event) -> list[Event]:
        has_usage = event.tree.pop("usage", None) is not None
        return [] if has_usage and not event.tree["choices"] else [event]

    def whole(self, tree: Tree) -> None:
        tree.pop("usage", None)


def _usage_zeros(tree: Tree) -> None:
    """Repeat the prompt's counts as zeros in message_delta (ai-gateway#1631)."""
    if tree.get("type") == "message_delta":
        tree["usage"] |= dict.fromkeys(_INPUTS, 0)


def _usage_only_in_delta(tree: Tree) -> None:
    """Leave the prompt's counts to message_delta: zeros in message_start (rig#2279)."""
    usage = _start_usage(tree)
    if usage:
        usage |= dict.fromkeys(_INPUTS, 0)
        usage.pop("cache_creation", None)


class _UsageMoved(Step):
    """The usage stands in the chunk with the finish reason; there is no chunk of its own."""

    def events(self, events: list[Event], *, is_head: bool) -> list[Event]:  # noqa: ARG002
        last = [event for event in events if _usage(event.tree) and not event.tree["choices"]]
        if not last:
            return events
        others = [event for event in events if event is not last[0]]
        for event in others:
            if event.tree:
                event.tree.pop("usage", None)
                self.put(event.tree, last[0].tree["usage"])
        return others

    def whole(self, tree: Tree) -> None:
        self.put(tree, tree.pop("usage"))

    def put(self, tree: Tree, usage: Tree) -> None:
        """Put it into the chunk."""


class _UsageInChoice(_UsageMoved):
    """As Moonshot's."""

    def put(self, tree: Tree, usage: Tree) -> None:
        tree["choices"][0]["usage"] = usage


class _UsageInGroq(_UsageMoved):
    def put(self, tree: Tree, usage: Tree) -> None:
        tree["x_groq"] = {"id": f"req_{self.reply.id}", "usage": usage}


class _UsageOnEveryChunk(Step):
    """As vLLM's `continuous_usage_stats`."""

    _tokens = 0

    def change(self, tree: Tree) -> None:
        if not self.reply.request.include_usage or not tree.get("choices"):
            return
        message = _message(tree)
        texts: list[Any] = [message.get("content"), message.get("reasoning_content"), message.get("refusal")]
        texts += [call["function"].get("arguments") for call in _tool_calls(tree)]
        self._tokens += sum(tokens.count(text) for text in texts if isinstance(text, str))
        self._tokens = min(self._tokens, self.reply.request.max_tokens)
        prompt = self.reply.request.input_tokens
        tree["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": self._tokens,
            "total_tokens": prompt + self._tokens,
        }

    def whole(self, tree: Tree) -> None:
        """Leave a whole answer as it is."""


def _cached(usage: Tree) -> Tree:
    """Take the counts of the cache out of a usage, as far as there are any."""
    return usage.pop("prompt_tokens_details", None) or {}


def _usage_deepseek(tree: Tree) -> None:
    usage = _usage(tree)
    if usage:
        hit = _cached(usage).get("cached_tokens", 0)
        usage["prompt_cache_hit_tokens"] = hit
        usage["prompt_cache_miss_tokens"] = usage["prompt_tokens"] - hit


def _usage_kimi(tree: Tree) -> None:
    usage = _usage(tree)
    if usage:
        usage["cached_tokens"] = _cached(usage).get("cached_tokens", 0)


def _usage_litellm(tree: Tree) -> None:
    usage = _usage(tree)
    if usage:
        details = _cached(usage)
        usage["cache_read_input_tokens"] = details.get("cached_tokens", 0)
        usage["cache_creation_input_tokens"] = details.get("cache_write_tokens", 0)
        usage["prompt_tokens_details"] = {"cached_tokens": details.get("cached_tokens", 0)}


def _usage_vllm(tree: Tree) -> None:
    details = _usage(tree).get("prompt_tokens_details") or {}
    if "cache_write_tokens" in details:
        details["created_cache_tokens"] = details.pop("cache_write_tokens")


def _multiply(usage: Tree, names: Iterable[str], factor: int) -> None:
    for name in names:
        if name in usage:
            usage[name] *= factor
    if "total_tokens" in usage:
        usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]


def _input_beyond_prompt(tree: Tree) -> None:
    for usage in (_start_usage(tree), _usage(tree)):
        _multiply(usage, ("input_tokens", "prompt_tokens"), _BEYOND_PROMPT)


def _output_beyond_limit(tree: Tree) -> None:
    _multiply(_usage(tree), ("output_tokens", "completion_tokens"), _BEYOND_LIMIT)


_MESSAGES = anthropic.NAME
_CHAT = openai.NAME
SPELLINGS: Mapping[str, Mapping[str, NewStep]] = {
    "usage_on_every_chunk": {_CHAT: _UsageOnEveryChunk},  # before what changes its texts
    "empty_data": {_MESSAGES: _AfterHead, _CHAT: _AfterHead},
    "unknown_event": {_MESSAGES: _UnknownMessagesEvent, _CHAT: _UnknownChatEvent},
    "done_after_stop": {_MESSAGES: _DoneAfterStop},
    "content_in_start": {_MESSAGES: _ContentInStart},
    "reasoning": {_CHAT: each(_reasoning)},
    "reasoning_details": {_CHAT: each(_reasoning_details)},
    "thinking_in_text": {_CHAT: _ThinkingInText},
    "tool_without_index": {_CHAT: each(_tool_without_index)},
    "done_by_prefix": {_CHAT: _DoneByPrefix},
    "no_done": {_CHAT: _NoDone},
    "no_model_first": {_CHAT: _NoModelFirst},
    "tool_input_object": {_CHAT: each(_tool_input_object)},
    "content_list": {_CHAT: each(_content_list)},
    "input_beyond_prompt": {_MESSAGES: each(_input_beyond_prompt), _CHAT: each(_input_beyond_prompt)},
    "output_beyond_limit": {_MESSAGES: each(_output_beyond_limit), _CHAT: each(_output_beyond_limit)},
    "usage_zeros": {_MESSAGES: each(_usage_zeros)},
    "usage_only_in_delta": {_MESSAGES: each(_usage_only_in_delta)},
    "usage_deepseek": {_CHAT: each(_usage_deepseek)},
    "usage_kimi": {_CHAT: each(_usage_kimi)},
    "usage_litellm": {_CHAT: each(_usage_litellm)},
    "usage_vllm": {_CHAT: each(_usage_vllm)},
    "usage_in_choice": {_CHAT: _UsageInChoice},
    "usage_in_x_groq": {_CHAT: _UsageInGroq},
    "no_usage": {_MESSAGES: each(_no_messages_usage), _CHAT: _NoChatUsage},  # after what reads it
}
