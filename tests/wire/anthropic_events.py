"""Messages streams, drawn: of the provider, and of gateways and engines that speak it."""

from __future__ import annotations

import json
import random
from typing import Any

from wire.grammar import (
    ABORTED,
    CUT,
    FILTERED,
    LIMIT,
    MOST_INPUT,
    OK,
    REFUSED,
    Draft,
    Event,
    Failure,
    Stop,
    Stream,
    deliver,
)

STOPS: dict[Stop | None, float] = {
    Stop("end_turn", OK): 30,
    Stop("stop_sequence", OK): 3,
    Stop("tool_use", OK): 3,
    Stop("max_tokens", LIMIT): 14,
    Stop("model_context_window_exceeded", LIMIT): 2,
    Stop("pause_turn", CUT): 2,
    Stop("compaction", CUT): 1,
    Stop("refusal", REFUSED): 4,
    Stop("content_filter", FILTERED): 1,  # this and the next four: gateways
    Stop("stop", OK): 1,
    Stop("length", LIMIT): 1,
    Stop("abort", ABORTED): 1,
    Stop("error", ABORTED): 1,
    Stop("zxcv", ABORTED): 1,
    None: 2,
}
ERROR_SHAPES = (
    "named", "named", "named", "named_flat", "named_bare", "named_text", "typed", "bare", "object", "gateway", "detail", "string",
    "field",
)  # fmt: skip
BLOCKS = {
    "text": 20, "thinking": 6, "redacted": 2, "tool": 8, "server_tool": 3, "fallback": 1, "compaction": 1, "unknown": 1,
}  # fmt: skip
USAGES = {
    "start_full": 10, "delta_full": 5, "start_zero": 4, "delta_zero": 3, "start_missing": 2, "delta_missing": 2, "delta_null": 1,
    "delta_empty": 1, "growing": 2, "malformed": 2, "zero_output": 1, "zero_input": 1,
}  # fmt: skip
MALFORMED: tuple[Any, ...] = ("twelve", -1, 1.5, True, 1 << 40, [], {"n": 1})
Tree = dict[str, Any]


class Messages(Draft):
    """A Messages stream while it is drawn."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.is_unnamed = self.chance(0.03, "unnamed_events")
        self.has_fallback = False
        self.is_explained = False  # tokens beyond those requested
        self.index = 0
        self.usage_form = self.choose(USAGES)
        self.notes.add(f"usage:{self.usage_form}")
        self.input_counts: dict[str, int] = {}

    def event(self, kind: str, tree: Tree, **brings: Any) -> None:
        if self.is_noisy and self.chance(0.06, "ping"):
            self.send({"type": "ping"}, "ping")
        if self.is_noisy and self.chance(0.02, "unknown_event"):
            name = "" if self.is_unnamed else "message_hint"
            self.send({"type": "message_hint", "hint": {"text": "x"}}, name)
        self.send({"type": kind, **tree}, "" if self.is_unnamed else kind, **brings)

    # --- blocks -------------------------------------------------------------------------------------------------

    def start(self, block: Tree, **brings: Any) -> None:
        self.event("content_block_start", {"index": self.index, "content_block": block}, **brings)

    def delta(self, kind: str, key: str, value: Any, **brings: Any) -> None:
        delta = {"type": kind, key: value}
        self.event("content_block_delta", {"index": self.index, "delta": delta}, **brings)

    def stop(self) -> None:
        self.event("content_block_stop", {"index": self.index})
        self.index += 1

    def text(self) -> None:
        first = self.pieces_of_text() if self.chance(0.08, "content_in_start") else ""
        self.start({"type": "text", "text": first}, text=first)
        for _ in range(self.rng.randint(0 if first else 1, 8)):
            if self.rng.random() < 0.04:
                self.delta("text_delta", "text", "")
            if self.chance(0.03, "citation"):
                citation = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None,
                            "start_char_index": 0, "end_char_index": 1, "file_id": None}  # fmt: skip
                self.delta("citations_delta", "citation", citation)
            piece = self.pieces_of_text()
            self.delta("text_delta", "text", piece, text=piece)
        self.stop()

    def thinking(self) -> None:
        first = self.pieces_of_text() if self.chance(0.08, "content_in_start") else ""
        block = {"type": "thinking", "thinking": first, "signature": ""}
        self.start(block, thinking=first, has_hidden_thinking=True)
        for _ in range(self.rng.randint(0, 5)):
            piece = self.pieces_of_text()
            self.delta("thinking_delta", "thinking", piece, thinking=piece)
        self.delta("signature_delta", "signature", "EqQB", has_hidden_thinking=True)
        self.stop()

    def redacted(self) -> None:
        self.start({"type": "redacted_thinking", "data": "EmwK"}, has_hidden_thinking=True)
        self.stop()

    def tool(self) -> None:
        block = {"type": "tool_use", "id": f"toolu_{self.index}", "name": "look_up", "input": {}}
        form = self.choose({"pieces": 6, "in_start": 1, "without_input": 1})
        value = {} if form == "without_input" else self.arguments()
        self.tool_inputs.append(value)
        if form == "in_start":
            self.notes.add("tool_input_in_start")
            self.start({**block, "input": value}, tool_input=json.dumps(value), has_tool_call=True)
        else:
            self.start(block, has_tool_call=True)
            self.delta("input_json_delta", "partial_json", "")
        if form == "without_input":
            self.notes.add("tool_without_input")
        if form == "pieces":
            for piece in self.pieces(self.style.json(value)):
                self.delta("input_json_delta", "partial_json", piece, tool_input=piece)
        self.stop()

    def server_tool(self) -> None:
        self.is_explained = True
        call = {
            "type": "server_tool_use",
            "id": f"srvtoolu_{self.index}",
            "name": "web_search",
            "input": {},
        }
        self.start(call)
        for piece in self.pieces('{"query": "weather"}'):
            self.delta("input_json_delta", "partial_json", piece)
        self.stop()
        found = {
            "type": "web_search_result",
            "url": "https://a.example",
            "title": "t",
            "encrypted_content": "E",
            "page_age": None,
        }
        self.start(
            {"type": "web_search_tool_result", "tool_use_id": call["id"], "content": [found]}
        )
        self.stop()

    def fallback(self) -> None:
        self.has_fallback = self.is_explained = True
        after = {
            "from": {"model": "claude-x"},
            "to": {"model": "claude-y"},
            "trigger": {"type": "refusal"},
        }
        self.start({"type": "fallback", **after})
        self.stop()
        self.text()

    def compaction(self) -> None:
        self.is_explained = True
        self.start({"type": "compaction", "content": None})
        self.delta("compaction_delta", "content", "what came before")
        self.stop()

    def unknown(self) -> None:
        self.notes.add("unknown_block")
        self.start({"type": "diagram", "source": ""})
        self.delta("diagram_delta", "source", "a -> b")
        self.stop()

    # --- the message --------------------------------------------------------------------------------------------

    def counts(self) -> tuple[Tree, int]:
        """Return the counts of the input, and of the output."""
        counts: Tree = {"input_tokens": self.rng.randint(1, 5000)}
        if self.rng.random() < 0.7:
            counts["cache_read_input_tokens"] = self.rng.choice([0, 1200])
            counts["cache_creation_input_tokens"] = self.rng.choice([0, 340])
        if self.chance(0.02, "input_beyond"):
            counts["input_tokens"] = 2 * MOST_INPUT
        if self.usage_form == "zero_input":
            counts = dict.fromkeys(counts, 0)
        output = self.output_tokens()
        if self.chance(0.02, "output_beyond"):
            output = self.plan.max_tokens + 50
        return counts, output

    def begin(self, counts: Tree) -> None:
        message: Tree = {
            "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x", "content": [], "stop_reason": None,
            "stop_sequence": None,
        }  # fmt: skip
        match self.usage_form:
            case "start_missing":
                pass
            case "start_zero":
                message["usage"] = {**dict.fromkeys(counts, 0), "output_tokens": 0}
            case _:
                message["usage"] = {
                    **counts,
                    "output_tokens": self.rng.choice([1, 2]),
                    **self.details(counts),
                }
        self.event("message_start", {"message": message})

    def details(self, counts: Tree) -> Tree:
        """Return other fields of a usage."""
        more: Tree = {}
        if self.rng.random() < 0.2:
            more |= {"service_tier": "standard", "inference_geo": "us"}
        written = counts.get("cache_creation_input_tokens")
        if written and self.rng.random() < 0.5:
            more["cache_creation"] = {
                "ephemeral_5m_input_tokens": written - 40,
                "ephemeral_1h_input_tokens": 40,
            }
            self.tokens |= {
                "cache_creation_5m_input_tokens": written - 40,
                "cache_creation_1h_input_tokens": 40,
            }
        if self.chance(0.03, "unknown_count"):
            more["dream_tokens"] = 3
        return more

    def end(self, counts: Tree, output: int) -> None:
        """Add the message_delta, with the counts that the way of the usage has there."""
        usage: Any = {"output_tokens": output}
        known = True
        match self.usage_form:
            case "delta_full" | "start_zero" | "start_missing":
                usage |= counts
            case "delta_zero":
                usage |= dict.fromkeys(counts, 0)
            case "delta_empty":
                usage, known = {}, False
            case "delta_null" | "delta_missing":
                usage, known = None, False
            case "zero_output":
                usage["output_tokens"] = 0
            case "malformed":
                usage[self.rng.choice(["output_tokens", "input_tokens"])] = self.rng.choice(
                    MALFORMED
                )
            case "growing":
                for share in (0, 3):
                    early = {"output_tokens": output * share // 4}
                    delta = {"stop_reason": None, "stop_sequence": None}
                    self.event("message_delta", {"delta": delta, "usage": early})
        if known and self.has_fallback:
            usage["iterations"] = [
                {"type": "message", "model": "claude-x", "input_tokens": 1, "output_tokens": 9},
                {
                    "type": "fallback_message",
                    "model": "claude-y",
                    "input_tokens": 1,
                    "output_tokens": output,
                },
            ]
        if (
            known
            and self.usage_form not in {"malformed", "zero_output"}
            and self.rng.random() < 0.1
        ):
            thought = self.rng.randint(0, output)
            usage["output_tokens_details"] = {"thinking_tokens": thought}
            self.tokens["thinking_tokens"] = thought
        stop = self.reason()
        delta = {"stop_reason": None if stop is None else stop.reason, "stop_sequence": None}
        tree: Tree = {"delta": delta, "usage": usage}
        if self.usage_form == "delta_missing":
            del tree["usage"]
        if self.chance(0.02, "no_delta"):
            self.event("message_delta", {"usage": usage or {}})
        self.event("message_delta", tree, stop=stop)
        self.know(counts, output if known else None)

    def reason(self) -> Stop | None:
        if self.tool_inputs and self.rng.random() < 0.7:
            return Stop("tool_use", OK)
        stop: Stop | None = self.choose(STOPS)
        return stop

    def know(self, counts: Tree, output: int | None) -> None:
        """Note what is known of the counts."""
        if self.usage_form == "malformed":
            self.tokens = {}
            return
        if output is not None and self.usage_form != "zero_output":
            self.tokens["output_tokens"] = output
            thought = self.tokens.get("thinking_tokens", 0)
            if output - thought > self.plan.max_tokens and not self.is_explained:
                self.marks.add("output")
        if self.usage_form == "zero_output":
            self.marks.discard("output")
        # Content without a token cannot be: the count is no count.
        if self.usage_form == "zero_output" and not self.has_content():
            self.tokens["output_tokens"] = 0
        if self.usage_form == "zero_input":
            self.tokens = {
                name: count for name, count in self.tokens.items() if "input" not in name
            }
            return
        self.tokens |= counts
        if sum(counts.values()) > MOST_INPUT and not self.is_explained:
            self.marks.add("input")

    def has_content(self) -> bool:
        return any(event.is_content for event in self.events)

    def fail(self) -> None:
        """End it, from some event on, as it must not end."""
        has_end = any(event.is_end for event in self.events)
        form = self.choose(
            {"error": 12, "malformed": 2, "second": 1, "behind": 1 if has_end else 0}
        )
        match form:
            case "error":
                del self.events[self.place() :]
                self.send_error(ERROR_SHAPES)
            case "malformed":
                self.notes.add("malformed_event")
                place = self.rng.randrange(len(self.events))
                wire = self.style.lines(
                    ("event", "content_block_delta"), ("data", '{"type": "content_bl')
                )
                self.events.insert(place, Event(wire=wire, failure=Failure()))
            case "second":
                self.notes.add("second_message")
                message = {
                    "id": "msg_2",
                    "model": "claude-x",
                    "content": [],
                    "usage": {"input_tokens": 1, "output_tokens": 1},
                }
                self.event("message_start", {"message": message}, failure=Failure())
            case _:
                self.notes.add("content_behind_end")
                self.delta("text_delta", "text", "more", failure=Failure())


def draw(seed: str) -> Stream:
    """Return the stream of a seed."""
    draft = Messages(random.Random(seed))
    if draft.chance(0.05, "ping"):
        draft.send({"type": "ping"}, "ping")
    counts, output = draft.counts()
    draft.begin(counts)
    for _ in range(draft.rng.choices([0, 1, 2, 3, 4], [1, 10, 6, 3, 1])[0]):
        getattr(draft, draft.choose(BLOCKS))()
    draft.end(counts, output)
    if draft.rng.random() < 0.96:
        draft.event("message_stop", {}, is_end=True)
    if draft.rng.random() < 0.2:
        draft.fail()
    elif draft.events[-1].is_end:
        _behind(draft)
    if draft.chance(0.02):
        draft.mark_beginning()
    return deliver(draft, "anthropic", seed)


def _behind(draft: Messages) -> None:
    """Add what some send behind the end."""
    if draft.chance(0.08, "done_behind_stop"):
        draft.send_raw(draft.style.lines(("data", "[DONE]")))
    elif draft.rng.random() < 0.04:
        draft.leave_open()
