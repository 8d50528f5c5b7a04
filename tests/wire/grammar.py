"""Streams as providers, engines and gateways send them, drawn from a seed, and what each of them means.

Rule: nothing here knows the harness. What a stream means stands in tables of its own: the class of each stop reason and
of each error, and `expected`. The two protocols' events are in `anthropic_events` and `openai_events`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

OK, EMPTY, CUT, REFUSED, FILTERED, ABORTED = "ok", "empty", "cut", "refused", "filtered", "aborted"
TRUNCATED, STREAM_ERROR = "truncated", "stream_error"
RATE_LIMITED, OVERLOADED, SERVER_ERROR, CLIENT_ERROR = (
    "rate_limited",
    "overloaded",
    "server_error",
    "client_error",
)
LIMIT = "limit"  # of a stop reason: ok where the answer is as long as planned, else cut

MOST_INPUT = 100_000  # tokens that a prompt here can have at most
BOM = b"\xef\xbb\xbf"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
UNTIL_CLOSE = HEAD + b"connection: close\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
TEXT_PIECES = (
    "the ", "of ", "answer", " is", " not", "\n\n", "\U0001f600", "你好", "é", '"', "\\", "{", "}", "data: ", "[DONE]", "error",
    "</think>", "<b>", "\u2028", "\t", " 42", "event: error\n", "message_stop", "null", " a", " b", ", ", ". ",
)  # fmt: skip

# What a response with the error's status would be: bodies of errors, without their message.
ERRORS: tuple[tuple[dict[str, Any], str | None], ...] = (
    ({"type": "overloaded_error"}, OVERLOADED),
    ({"type": "service_unavailable"}, OVERLOADED),
    ({"code": 503, "type": "ServiceUnavailableError"}, OVERLOADED),
    ({"code": 529}, OVERLOADED),
    ({"code": "503", "status": "UNAVAILABLE"}, OVERLOADED),
    ({"type": "rate_limit_error"}, RATE_LIMITED),
    ({"code": "rate_limit_exceeded", "type": "tokens"}, RATE_LIMITED),
    ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, RATE_LIMITED),
    ({"code": "429"}, RATE_LIMITED),
    ({"code": "insufficient_quota", "type": "insufficient_quota"}, RATE_LIMITED),
    ({"type": "api_error"}, SERVER_ERROR),
    ({"type": "timeout_error"}, SERVER_ERROR),
    ({"type": "server_error", "code": None}, SERVER_ERROR),
    ({"type": "InternalServerError", "param": None, "code": 500}, SERVER_ERROR),
    ({"code": 502}, SERVER_ERROR),
    ({"code": "504"}, SERVER_ERROR),
    ({"type": "invalid_request_error"}, CLIENT_ERROR),
    ({"type": "BadRequestError", "param": None, "code": 400}, CLIENT_ERROR),
    ({"type": "invalid_request_error", "code": "context_length_exceeded"}, CLIENT_ERROR),
    ({"type": "authentication_error"}, CLIENT_ERROR),
    ({"type": "permission_error"}, CLIENT_ERROR),
    ({"type": "request_too_large"}, CLIENT_ERROR),
    ({"type": "exceed_context_size_error", "code": 400, "n_ctx": 256}, CLIENT_ERROR),
    ({"type": "mystery"}, None),
    ({}, None),
)


@dataclass(frozen=True)
class Stop:
    """A stop reason and its class: one of the classes, or `LIMIT`."""

    reason: str
    meaning: str


@dataclass(frozen=True)
class Failure:
    """An event that makes the answer a failure; `error_class`: of an error, what its status would be."""

    error_class: str | None = None


@dataclass(frozen=True, kw_only=True)
class Event:
    """Bytes of one event, and what it brings to the answer."""

    wire: bytes
    text: str = ""
    thinking: str = ""
    tool_input: str = ""
    other: str = ""  # a person sees it, and it is no part of the text: refusals, audio
    has_tool_call: bool = False  # which may have no input
    has_hidden_thinking: bool = False
    has_refusal: bool = False
    stop: Stop | None = None
    is_end: bool = False
    is_open: bool = False  # its blank line is missing
    failure: Failure | None = None

    @property
    def is_content(self) -> bool:
        return bool(self.text or self.thinking or self.tool_input or self.other)


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    max_tokens: int
    ends_naturally: bool


@dataclass(frozen=True)
class Style:
    """How the events of one stream are written."""

    line_end: str
    space: str
    is_ascii: bool
    indent: int | None  # of JSON, whose lines become lines of data

    @classmethod
    def draw(cls, rng: random.Random) -> Style:
        return cls(
            line_end=rng.choices(["\n", "\r\n", "\r"], [8, 2, 1])[0],
            space=rng.choices([" ", ""], [6, 1])[0],
            is_ascii=rng.random() < 0.3,
            indent=1 if rng.random() < 0.08 else None,
        )

    def json(self, tree: Any) -> str:
        return json.dumps(tree, ensure_ascii=self.is_ascii, indent=self.indent)

    def lines(self, *fields: tuple[str, str]) -> bytes:
        """Return an event of these fields; a field of several lines comes in as many."""
        lines = []
        for name, value in fields:
            lines += [f"{name}:{self.space}{line}{self.line_end}" for line in value.split("\n")]
        return ("".join(lines) + self.line_end).encode()


class Draft:
    """A stream while it is drawn: its events so far, and the names of what is unusual in it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.style = Style.draw(rng)
        self.plan = Plan(rng.randint(1, 120), rng.random() < 0.2)
        self.events: list[Event] = []
        self.notes: set[str] = set()
        self.tokens: dict[str, int] = {}  # that are known of a complete answer
        self.marks: set[str] = set()
        self.tool_inputs: list[Any] = []
        self.is_noisy = rng.random() < 0.35

    def chance(self, probability: float, note: str = "") -> bool:
        """Return whether to do something unusual; if so, note its name."""
        happens = self.rng.random() < probability
        if happens and note:
            self.notes.add(note)
        return happens

    def choose(self, weights: dict[Any, float]) -> Any:
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def pieces_of_text(self, least: int = 1, most: int = 4) -> str:
        return "".join(self.rng.choice(TEXT_PIECES) for _ in range(self.rng.randint(least, most)))

    def pieces(self, text: str) -> list[str]:
        """Return a text in pieces."""
        pieces = []
        while text:
            size = self.rng.randint(1, 12)
            pieces.append(text[:size])
            text = text[size:]
        return pieces

    def output_tokens(self) -> int:
        if self.rng.random() < 0.4:
            return self.plan.max_tokens
        return self.rng.randint(1, self.plan.max_tokens)

    def arguments(self) -> dict[str, Any]:
        """Return the input of a tool."""
        keys = self.rng.sample(["city", "query", "n", "deep"], self.rng.randint(1, 3))
        values: list[Any] = [
            self.pieces_of_text(),
            self.rng.randint(0, 99),
            [1, "a", None],
            {"a": True},
        ]
        return {key: self.rng.choice(values) for key in keys}

    def send(self, tree: Any, name: str = "", **brings: Any) -> None:
        """Add an event with JSON."""
        if self.is_noisy:
            self.send_noise()
        if isinstance(tree, dict) and self.rng.random() < 0.05:
            tree = {**tree, "x_future": {"nothing": [1, None]}}
        data = tree if isinstance(tree, str) else self.style.json(tree)
        fields = [("event", name)] if name else []
        if self.rng.random() < 0.03:
            self.notes.add("id_field")
            fields.append(("id", str(len(self.events))))
        self.events.append(Event(wire=self.style.lines(*fields, ("data", data)), **brings))

    def send_raw(self, wire: bytes, **brings: Any) -> None:
        """Add bytes as they are."""
        self.events.append(Event(wire=wire, **brings))

    def send_noise(self) -> None:
        """Add, now and then, what brings nothing."""
        lines = self.style.lines
        if self.chance(0.06, "comment"):
            comment = self.rng.choice(["ping", "", "OPENROUTER PROCESSING"])
            self.send_raw(f": {comment}{self.style.line_end}".encode() + lines())
        elif self.chance(0.02, "retry_field"):
            self.send_raw(lines(("retry", "3000")))
        elif self.chance(0.02, "empty_data"):
            self.send_raw(lines(("data", "")))

    def send_error(self, shapes: Sequence[str]) -> None:
        """Add an error in one of the shapes that are sent, and what comes behind it."""
        body, error_class = self.rng.choice(ERRORS)
        error = {"message": self.rng.choice(["Overloaded", "engine died", "é\U0001f600"]), **body}
        shape = self.rng.choice(shapes)
        self.notes.add(f"error:{shape}")
        lines, text = self.style.lines, self.style.json
        failure = Failure(error_class)
        unknown = Failure(None)
        match shape:
            case "named":
                wire = lines(("event", "error"), ("data", text({"type": "error", "error": error})))
            case "named_flat":
                wire = lines(("event", "error"), ("data", text(error)))
            case "named_bare":
                wire = lines(("event", "error"), ("data", text({"error": error})))
            case "named_text":
                wire = lines(("event", "error"), ("data", "upstream connect error"))
                failure = unknown
            case "typed":
                wire = lines(("data", text({"type": "error", "error": error})))
            case "bare":
                wire = lines(("data", text({"error": error})))
            case "object":
                wire = lines(("data", text({"object": "error", **error})))
            case "gateway":
                wire = lines(("data", text({"message": "Bad gateway", "code": 502})))
                failure = Failure(SERVER_ERROR)
            case "detail":
                wire = lines(("data", text({"detail": "Internal Server Error"})))
                failure = unknown
            case "string":
                wire = lines(("data", text({"error": "something went wrong"})))
                failure = unknown
            case _:
                wire = lines(("error", json.dumps(error)))
        self.send_raw(wire, failure=failure)
        if self.rng.random() < 0.5:
            self.send_raw(lines(("data", "[DONE]")))

    def place(self) -> int:
        """Return the number of an event, often one of the first."""
        most = len(self.events) if self.rng.random() < 0.6 else min(2, len(self.events))
        return self.rng.randint(0, most)

    def leave_open(self) -> None:
        """Take the blank line from behind the last event."""
        last = self.events[-1]
        end = self.style.line_end.encode()
        wire = last.wire.removesuffix(end * 2)
        if self.rng.random() < 0.5:
            wire += end
        self.notes.add("no_blank_line")
        self.events[-1] = Event(wire=wire, is_end=last.is_end, stop=last.stop, is_open=True)

    def mark_beginning(self) -> None:
        """Begin the stream with a byte order mark."""
        first = self.events[0]
        self.notes.add("byte_order_mark")
        self.events[0] = Event(**{**vars(first), "wire": BOM + first.wire})


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One answer as it comes over a connection."""

    protocol: str
    seed: str
    plan: Plan
    events: tuple[Event, ...]
    reads: tuple[bytes, ...]  # what the client reads, head included
    is_reset: bool
    is_whole: bool  # the body has the end that its head announces
    arrived: int  # events that came completely
    notes: frozenset[str]
    tokens: dict[str, int]
    marks: frozenset[str]
    tool_inputs: list[Any]

    @property
    def wire(self) -> bytes:
        return b"".join(self.reads)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What is right to say of a stream."""

    ended: str
    error_class: str | None = None
    text: str = ""
    thinking: str = ""
    tool_input: str = ""
    stop_reason: str | None = None
    is_complete: bool = False  # it came to its end, whatever the end is


@dataclass
class _Reading:
    """What came so far."""

    text: str = ""
    thinking: str = ""
    tool_input: str = ""
    other: str = ""
    has_tool_call: bool = False
    thinks: bool = False
    is_refusal: bool = False
    is_over: bool = False
    stop: Stop | None = None
    failure: Failure | None = None
    is_early: bool = field(default=True)

    def take(self, event: Event) -> None:
        if event.failure is not None and self.failure is None:
            self.failure = event.failure
            self.is_early = not (self.text or self.thinking or self.tool_input or self.other)
        if self.failure is not None:
            return
        self.text += event.text
        self.thinking += event.thinking
        self.tool_input += event.tool_input
        self.other += event.other
        self.has_tool_call |= event.has_tool_call
        self.thinks |= bool(event.has_hidden_thinking or event.thinking)
        self.is_refusal |= event.has_refusal
        self.is_over |= event.is_end
        self.stop = event.stop or self.stop


def expected(stream: Stream) -> Expected:
    """Return what is right to say of a stream: its class by its end, and what was in it."""
    reading = _Reading()
    for event in stream.events[: stream.arrived]:
        reading.take(event)
    failure = reading.failure
    if failure is not None:
        early_class = failure.error_class if reading.is_early else None
        ended = early_class or STREAM_ERROR
    elif not _is_over(stream, reading):
        ended = TRUNCATED
    else:
        ended = _by_stop(stream, reading)
    return Expected(
        ended=ended,
        error_class=None if failure is None else failure.error_class,
        text=reading.text,
        thinking=reading.thinking,
        tool_input=reading.tool_input,
        stop_reason=None if reading.stop is None else reading.stop.reason,
        is_complete=failure is None and ended != TRUNCATED,
    )


def _is_over(stream: Stream, reading: _Reading) -> bool:
    """Return whether the answer has its end: its mark, or a body that ends as its head announces, with a reason.

    A client of chat completions reads nothing behind [DONE].
    """
    if stream.protocol == "openai" and reading.is_over:
        return True
    return stream.is_whole and (reading.is_over or reading.stop is not None)


def _by_stop(stream: Stream, reading: _Reading) -> str:
    meaning = ABORTED if reading.stop is None else reading.stop.meaning
    if reading.is_refusal and meaning in {OK, LIMIT}:
        return REFUSED
    if meaning not in {OK, LIMIT}:
        return meaning
    visible = reading.text + reading.thinking + reading.tool_input + reading.other
    if not visible and not reading.has_tool_call:
        return EMPTY
    if meaning == OK:
        return OK
    # Without a count an answer is cut only where it surely is: it has no more tokens than characters.
    output = stream.tokens.get("output_tokens") or (10**9 if reading.thinks else len(visible))
    is_reached = output >= stream.plan.max_tokens
    return OK if is_reached and not stream.plan.ends_naturally else CUT


def deliver(draft: Draft, protocol: str, seed: str) -> Stream:
    """Return the stream of a draft: framed, cut or not, split over reads."""
    rng = draft.rng
    pieces = [event.wire for event in draft.events]
    payload = b"".join(pieces)
    frame = draft.choose({"event": 14, "random": 3, "length": 1, "close": 2})
    is_cut = draft.chance(0.2, "cut")
    match frame:
        case "length":
            head = HEAD + b"content-length: %d\r\n\r\n" % len(payload)
            parts = pieces
        case "close":
            head, parts = UNTIL_CLOSE, pieces
        case _:
            contents = pieces if frame == "event" else _split(rng, payload, 200)
            head = CHUNKED
            parts = [b"%x\r\n%b\r\n" % (len(content), content) for content in contents if content]
            parts.append(LAST_CHUNK)
    body = b"".join(parts)
    end = len(body)
    if is_cut and body:
        end = _cut(rng, parts)
        if head == UNTIL_CLOSE and _hides_its_usage(draft.events, end):
            end = len(body)
    kind = draft.choose(
        {b"text/event-stream": 30, b"text/plain; charset=utf-8": 1, b"application/json": 1, b"": 1}
    )
    if is_cut and head == UNTIL_CLOSE:
        kind = b"text/event-stream"  # what has come of a stream may be nothing
    typed_head = head.replace(b"text/event-stream", kind)
    if kind != b"text/event-stream":
        draft.notes.add("other_content_type")
    received = end if head != CHUNKED else _payload_size(body[:end])
    is_reset = is_cut and head != UNTIL_CLOSE and rng.random() < 0.3
    is_whole = end == len(body) or (head == UNTIL_CLOSE and not is_reset)
    return Stream(
        protocol=protocol,
        seed=seed,
        plan=draft.plan,
        events=tuple(draft.events),
        reads=tuple(_reads(rng, typed_head, body[:end], parts)),
        is_reset=is_reset,
        is_whole=is_whole,
        arrived=_arrived(draft, received, is_whole=is_whole),
        notes=frozenset(draft.notes),
        tokens=draft.tokens,
        marks=frozenset(draft.marks),
        tool_inputs=draft.tool_inputs,
    )


def _hides_its_usage(events: list[Event], received: int) -> bool:
    """Return whether an answer that ends with the connection seems complete without all of its events."""
    size = 0
    has_stop = False
    for event in events:
        size += len(event.wire)
        if size > received:
            return has_stop and not event.is_end
        has_stop |= event.stop is not None
    return False


def _cut(rng: random.Random, parts: list[bytes]) -> int:
    """Return where a body is cut: anywhere, between two pieces, or before its last."""
    sizes = [len(part) for part in parts]
    size = sum(sizes)
    match rng.choice(["anywhere", "between", "end"]):
        case "anywhere":
            return rng.randrange(size)
        case "between":
            return sum(sizes[: rng.randrange(len(sizes))])
    return size - sizes[-1]


def _payload_size(body: bytes) -> int:
    """Return how many bytes of payload came in a part of a chunked body."""
    size, position = 0, 0
    while (line_end := body.find(b"\r\n", position)) >= 0:
        length = int(body[position:line_end], 16)
        begin = line_end + 2
        size += len(body[begin : begin + length])
        position = begin + length + 2
        if not length:
            break
    return size


def _arrived(draft: Draft, received: int, *, is_whole: bool) -> int:
    """Return how many events came completely: with their blank line, whose last line feed need not come.

    The end mark of a body that ends as its head announces needs no blank line: nothing is missing.
    """
    slack = 1 if draft.style.line_end == "\r\n" else 0
    begin = 0
    for number, event in enumerate(draft.events):
        needed = len(event.wire) - slack
        if event.is_open or (event.is_end and is_whole):
            needed = len(event.wire.rstrip(b"\r\n"))
        is_missing = event.is_open and not is_whole
        if is_missing or begin + needed > received:
            return number
        begin += len(event.wire)
    return len(draft.events)


def _reads(rng: random.Random, head: bytes, body: bytes, parts: list[bytes]) -> list[bytes]:
    """Return the reads in which a response comes."""
    whole = head + body
    form = rng.choices(["whole", "parts", "bytes", "small", "large"], [2, 5, 1, 2, 2])[0]
    if form == "parts":
        reads, position = [head], 0
        for part in parts:
            reads.append(body[position : position + len(part)])
            position += len(part)
        return [read for read in reads if read]
    if form == "bytes" and len(whole) < 3000:
        return [whole[place : place + 1] for place in range(len(whole))]
    if form in {"small", "bytes"}:
        return _split(rng, whole, 40)
    return _split(rng, whole, 1400) if form == "large" else [whole]


def _split(rng: random.Random, data: bytes, most: int) -> list[bytes]:
    pieces = []
    position = 0
    while position < len(data):
        size = rng.randint(1, most)
        pieces.append(data[position : position + size])
        position += size
    return pieces
