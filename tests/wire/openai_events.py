"""Chat completion streams, drawn: of the provider, and of engines and gateways that speak it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from wire.grammar import (
    ABORTED,
    FILTERED,
    LIMIT,
    MOST_INPUT,
    OK,
    SERVER_ERROR,
    Draft,
    Event,
    Failure,
    Stop,
    Stream,
    deliver,
)

STOPS: dict[Stop | None, float] = {
    Stop("stop", OK): 34,
    Stop("length", LIMIT): 14,
    Stop("tool_calls", OK): 2,
    Stop("function_call", OK): 1,
    Stop("content_filter", FILTERED): 3,
    Stop("abort", ABORTED): 2,
    Stop("error", ABORTED): 2,
    Stop("insufficient_system_resource", ABORTED): 1,
    Stop("network_error", ABORTED): 1,
    Stop("sensitive", FILTERED): 1,
    Stop("SAFETY", FILTERED): 1,
    Stop("RECITATION", FILTERED): 1,
    Stop("MALFORMED_FUNCTION_CALL", ABORTED): 1,
    Stop("STOP", OK): 1,  # these three: gateways that pass on what is behind them
    Stop("MAX_TOKENS", LIMIT): 1,
    Stop("eos", OK): 1,
    Stop("zxcv", ABORTED): 1,
    None: 3,
}
ERROR_SHAPES = (
    "bare", "bare", "bare", "bare", "named", "named_flat", "named_bare", "named_text", "typed", "object", "gateway", "detail",
    "string", "field",
)  # fmt: skip
THOUGHTS = (
    "reasoning_content",
    "reasoning",
    "both",
    "details",
    "summary",
    "encrypted",
    "parts",
    "parts",
    "parts",
    "tags",
)
TOOLS = (
    "pieces",
    "pieces",
    "whole",
    "without_index",
    "index_0",
    "index_0_pieces",
    "object",
    "repeated_id",
    "function_call",
    "without_input",
)
USAGES = {
    "last": 12, "on_finish": 4, "growing": 4, "choice": 2, "groq": 2, "missing": 3, "zero_then_real": 2, "real_then_zero": 2,
    "malformed": 2, "thinking_beside": 1, "as_text": 1, "as_float": 1,
}  # fmt: skip
CACHES = ("none", "none", "openai", "openai_writes", "deepseek", "kimi", "litellm", "vllm", "null")
MALFORMED: tuple[Any, ...] = ("twelve", -1, 1.5, True, 1 << 40, [])
TAGS = (
    ("<think>", "</think>"), ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
)  # fmt: skip
Tree = dict[str, Any]


class Completion(Draft):
    """A chat completion stream while it is drawn."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.usage_form = self.choose(USAGES)
        self.notes.add(f"usage:{self.usage_form}")
        self.usage: Tree | None = None
        self.tools = 0
        self.is_counted = False  # the last usage was sent
        self.has_empty_reasons = self.chance(0.06, "empty_finish_reason")
        self.has_null_usage = rng.random() < 0.2

    def chunk(self, choices: list[Tree], **more: Any) -> Tree:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": choices,
            **more,
        }

    def delta(
        self, delta: Tree, reason: str | None = None, usage: Any = None, **brings: Any
    ) -> None:
        """Add a chunk with one choice."""
        if reason is None and self.has_empty_reasons:
            reason = ""
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        more: Tree = {}
        if usage is not None or self.has_null_usage:
            more["usage"] = usage
        if usage is None and self.usage_form == "growing" and self.usage is not None:
            more["usage"] = self.usage if self.is_counted else self.usage_so_far(self.usage)
        self.send(self.chunk([choice], **more), **brings)

    def usage_so_far(self, usage: Tree) -> Tree:
        so_far = {**usage, "completion_tokens": min(len(self.events), usage["completion_tokens"])}
        del so_far["total_tokens"]
        return so_far

    # --- content ------------------------------------------------------------------------------------------------

    def text(self) -> None:
        for _ in range(self.rng.randint(1, 8)):
            if self.rng.random() < 0.04:
                self.delta({"content": ""})
            if self.chance(0.02, "content_list"):
                piece = self.pieces_of_text()
                self.delta({"content": [{"type": "text", "text": piece}]}, text=piece)
            piece = self.pieces_of_text()
            self.delta({"content": piece}, text=piece)
        if self.chance(0.03, "lone_surrogates"):
            self.surrogates()

    def surrogates(self) -> None:
        """Add a character whose two halves come in two chunks, as escapes."""
        for half in ("\\ud83d", "\\ude00"):
            tree = self.chunk([{"index": 0, "delta": {"content": "HALF"}, "finish_reason": None}])
            data = json.dumps(tree).replace("HALF", half)
            self.send(data, text="?")

    def thinking(self) -> None:
        form = self.rng.choice(THOUGHTS)
        self.notes.add(f"thinking:{form}")
        if form == "tags":
            self.tags()
            return
        for _ in range(self.rng.randint(1, 5)):
            piece = self.pieces_of_text()
            detail = {"type": "reasoning.text", "text": piece, "format": "x", "index": 0}
            shapes: dict[str, Tree] = {
                "reasoning_content": {"reasoning_content": piece},
                "reasoning": {"content": "", "reasoning": piece},
                "both": {"reasoning": piece, "reasoning_content": piece},
                "details": {"content": "", "reasoning_details": [detail]},
                "summary": {"reasoning_details": [{"type": "reasoning.summary", "summary": piece}]},
                "encrypted": {"reasoning_details": [{"type": "reasoning.encrypted", "data": "E"}]},
                "parts": {
                    "content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]
                },
            }
            shown = "" if form == "encrypted" else piece
            self.delta(shapes[form], thinking=shown, has_hidden_thinking=True)

    def tags(self) -> None:
        """Add thinking as a part of the text; only at its beginning it is known as such."""
        tag, closing_tag = self.rng.choice(TAGS)
        self.delta({"content": self.rng.choice([tag, f"\n{tag}"])}, has_hidden_thinking=True)
        for _ in range(self.rng.randint(1, 4)):
            piece = self.pieces_of_text().replace(closing_tag, "")
            self.delta({"content": piece}, thinking=piece)
        rest = self.rng.choice(["", "\n\n", "\n\nSo "])
        begun = closing_tag[: self.rng.choice([0, 0, 1, 4])]
        if begun:
            self.delta({"content": begun}, thinking=begun)
        self.delta({"content": closing_tag.removeprefix(begun) + rest}, text=rest.lstrip("\n"))

    def tool_calls(self) -> None:
        """Add some calls, all in the same spelling."""
        form = self.rng.choice(TOOLS)
        count = self.rng.choices([1, 2, 3], [4, 3, 1])[0]
        if form == "function_call":
            form = "whole" if "tool:function_call" in self.notes else form
            count = 1  # the protocol had no more, when it had this field
        self.notes.add(f"tool:{form}")
        for _ in range(count):
            self.tool(form)

    def tool(self, form: str) -> None:
        value = {} if form == "without_input" else self.arguments()
        text = self.style.json(value) if self.style.indent is None else json.dumps(value)
        pieces = self.pieces(text)
        call_id = f"call_{self.tools}"
        index = 0 if form.startswith("index_0") else self.tools
        self.tools += 1
        self.tool_inputs.append(value)
        call: Tree = {"index": index, "id": call_id, "type": "function"}
        match form:
            case "whole" | "index_0":
                call["function"] = {"name": "look_up", "arguments": text}
                self.delta({"tool_calls": [call]}, tool_input=text, has_tool_call=True)
            case "without_index":
                call["function"] = {"name": "look_up", "arguments": text}
                del call["index"]
                self.delta({"tool_calls": [call]}, tool_input=text, has_tool_call=True)
            case "object":
                call["function"] = {"name": "look_up", "arguments": value}
                self.delta({"tool_calls": [call]}, tool_input=json.dumps(value), has_tool_call=True)
            case "without_input":
                call["function"] = {"name": "look_up", "arguments": ""}
                self.delta({"tool_calls": [call]}, has_tool_call=True)
            case "function_call":
                self.delta(
                    {"function_call": {"name": "look_up", "arguments": ""}}, has_tool_call=True
                )
                for piece in pieces:
                    self.delta({"function_call": {"arguments": piece}}, tool_input=piece)
            case _:
                call["function"] = {"name": "look_up", "arguments": ""}
                self.delta({"tool_calls": [call]}, has_tool_call=True)
                for piece in pieces:
                    more: Tree = {"index": index, "function": {"arguments": piece}}
                    if form == "repeated_id":
                        more |= {"id": call_id, "type": "function"}
                        more["function"] = {"name": "look_up", "arguments": piece}
                    self.delta({"tool_calls": [more]}, tool_input=piece)

    def refusal(self) -> None:
        self.notes.add("refusal_delta")
        for _ in range(self.rng.randint(1, 3)):
            piece = self.pieces_of_text()
            self.delta({"refusal": piece}, other=piece, has_refusal=True)

    def audio(self) -> None:
        self.notes.add("audio")
        piece = self.pieces_of_text()
        self.delta({"audio": {"id": "audio_1", "transcript": piece}}, other=piece)

    # --- the answer ---------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Draw the usage, and what is known by it."""
        prompt = self.rng.randint(10, 5000)
        output = self.output_tokens()
        if self.chance(0.02, "output_beyond"):
            output = self.plan.max_tokens + 50
        if self.chance(0.02, "input_beyond"):
            prompt = 2 * MOST_INPUT
        usage: Tree = {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        }
        cache = self.rng.choice(CACHES)
        self.notes.add(f"cache:{cache}")
        read = self.rng.choice([0, prompt // 2])
        written = self.rng.choice([0, prompt // 4])
        fields, counts = self.caches(read, written)[cache]
        usage |= fields
        if self.rng.random() < 0.2:
            thought = self.rng.randint(0, output)
            usage["completion_tokens_details"] = {"reasoning_tokens": thought}
            counts["thinking_tokens"] = thought
        if self.usage_form == "thinking_beside":
            thought = self.rng.randint(1, 40)
            usage["completion_tokens_details"] = {"reasoning_tokens": thought}
            usage["total_tokens"] = prompt + output + thought
            counts["thinking_tokens"] = thought
            output += thought
        if self.chance(0.03, "unknown_count"):
            usage["dream_tokens"] = 3
        if self.usage_form == "malformed":
            usage[self.rng.choice(["completion_tokens", "prompt_tokens"])] = self.rng.choice(
                MALFORMED
            )
        if self.usage_form in {"as_text", "as_float"}:
            spell = str if self.usage_form == "as_text" else float
            usage |= {name: spell(usage[name]) for name in ("prompt_tokens", "completion_tokens")}
        self.usage = None if self.usage_form == "missing" else usage
        if self.usage_form in {"missing", "malformed"}:
            return
        cached = sum(count for name, count in counts.items() if name.startswith("cache_"))
        self.tokens = {**counts, "input_tokens": prompt - cached, "output_tokens": output}
        if prompt > MOST_INPUT:
            self.marks.add("input")
        if output - counts.get("thinking_tokens", 0) > self.plan.max_tokens:
            self.marks.add("output")

    def caches(self, read: int, written: int) -> dict[str, tuple[Tree, dict[str, int]]]:
        """Return the fields of each dialect, and the counts that they mean."""
        both = {"cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        only_read = {"cache_read_input_tokens": read}
        return {
            "none": ({}, {}),
            "null": ({"prompt_tokens_details": None}, {}),
            "openai": ({"prompt_tokens_details": {"cached_tokens": read, "audio_tokens": 0}}, only_read),
            "openai_writes": ({"prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written}}, both),
            "deepseek": ({"prompt_cache_hit_tokens": read, "prompt_cache_miss_tokens": 1}, only_read),
            "kimi": ({"cached_tokens": read}, only_read),
            "litellm": (
                {"cache_read_input_tokens": read, "cache_creation_input_tokens": written,
                 "prompt_tokens_details": {"cached_tokens": read}}, both),
            "vllm": ({"prompt_tokens_details": {"cached_tokens": read, "created_cache_tokens": written}}, both),
        }  # fmt: skip

    def begin(self) -> None:
        if self.chance(0.05, "azure_first_chunk"):
            filters = [{"prompt_index": 0, "content_filter_results": {}}]
            self.send(
                {
                    "id": "",
                    "object": "",
                    "created": 0,
                    "model": "",
                    "choices": [],
                    "prompt_filter_results": filters,
                }
            )
        if self.rng.random() < 0.9:
            content = self.rng.choice([{"content": ""}, {"content": None}, {}])
            self.delta({"role": "assistant", **content})

    def end(self) -> None:
        """Add the finish reason and the usage."""
        stop = self.reason()
        usage = self.usage
        zero = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        if self.usage_form == "zero_then_real":
            self.send(self.chunk([], usage=zero))
        if stop is not None:
            delta = self.rng.choice([{}, {"content": ""}, {"content": None}])
            is_here = self.usage_form in {"on_finish", "thinking_beside", "growing"}
            self.delta(delta, stop.reason, usage if is_here else None, stop=stop)
            if is_here:
                self.is_counted = True
                usage = None
            if self.chance(0.03, "content_behind_finish"):
                piece = self.pieces_of_text()
                self.delta({"content": piece}, text=piece)
            if self.chance(0.04, "finish_again"):
                self.delta({}, stop.reason, stop=stop)
        if usage is None:
            return
        match self.usage_form:
            case "choice":
                self.send(
                    self.chunk([{"index": 0, "delta": {}, "finish_reason": None, "usage": usage}])
                )
            case "groq":
                self.send(self.chunk([], x_groq={"id": "req_1", "usage": usage}))
            case _:
                self.send(self.chunk([], usage=usage))
        if self.usage_form == "real_then_zero":
            self.send(self.chunk([], usage=zero))

    def reason(self) -> Stop | None:
        if self.tool_inputs and self.rng.random() < 0.7:
            return self.rng.choice([Stop("tool_calls", OK), Stop("stop", OK)])
        stop: Stop | None = self.choose(STOPS)
        return stop

    def done(self) -> None:
        """Add the end mark, and what some send with it or behind it."""
        lines = self.style.lines
        match self.choose({"plain": 20, "prefix": 1, "missing": 2, "open": 2, "data_behind": 1}):
            case "prefix":
                self.notes.add("done_by_prefix")
                self.send_raw(lines(("data", "[DONE] bye")), is_end=True)
            case "missing":
                self.notes.add("no_done")
            case "open":
                self.send_raw(lines(("data", "[DONE]")), is_end=True)
                self.leave_open()
            case "data_behind":
                self.notes.add("data_behind_done")
                self.send_raw(lines(("data", "[DONE]")), is_end=True)
                self.is_noisy = False
                self.delta({"content": "nobody reads this"})
            case _:
                self.send_raw(lines(("data", "[DONE]")), is_end=True)

    def fail(self) -> None:
        """End it, from some event on, as it must not end."""
        lines = self.style.lines
        place = self.place()
        ends = [number for number, event in enumerate(self.events) if event.is_end]
        if ends:  # what comes behind it nobody reads
            place = min(place, ends[0])
        may_think = "thinking:tags" in self.notes  # what came next would be thinking
        form = self.choose(
            {"error": 12, "malformed": 2, "second": 0 if may_think else 1, "chunk": 2}
        )
        self.notes.add(f"failure:{form}")
        match form:
            case "error":
                del self.events[place:]
                self.send_error(ERROR_SHAPES)
            case "malformed":
                self.events.insert(
                    place, Event(wire=lines(("data", '{"choices": [{"del')), failure=Failure())
                )
            case "second":
                del self.events[place:]
                self.delta({"content": "a"}, text="a")
                self.delta({}, "stop", stop=Stop("stop", OK))
                tree = self.chunk([{"index": 0, "delta": {"content": "b"}, "finish_reason": None}])
                self.send({**tree, "id": "chatcmpl-2"}, failure=Failure())
                self.send_raw(lines(("data", "[DONE]")), is_end=True)
            case _:
                del self.events[place:]
                error = {
                    "code": 502,
                    "message": "Provider disconnected",
                    "metadata": {"error_type": "provider_unavailable"},
                }
                choice = {"index": 0, "delta": {"content": ""}, "finish_reason": "error"}
                self.send(self.chunk([choice], error=error), failure=Failure(SERVER_ERROR))
                self.send_raw(lines(("data", "[DONE]")), is_end=True)


def draw(seed: str) -> Stream:
    """Return the stream of a seed."""
    draft = Completion(random.Random(seed))
    draft.count()
    draft.begin()
    parts: dict[Callable[[], None], float] = {
        draft.text: 20, draft.thinking: 6, draft.tool_calls: 8, draft.refusal: 1, draft.audio: 1,
    }  # fmt: skip
    for number in range(draft.rng.choices([0, 1, 2, 3, 4], [1, 10, 6, 3, 1])[0]):
        part = draft.choose(parts)
        if part == draft.thinking and number:
            continue  # it comes first
        part()
    draft.end()
    draft.done()
    if draft.rng.random() < 0.2:
        draft.fail()
    if draft.chance(0.02):
        draft.mark_beginning()
    return deliver(draft, "openai", seed)
