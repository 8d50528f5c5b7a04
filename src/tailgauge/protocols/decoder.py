"""Folds a stream's events into what the attempt's rows need; a protocol supplies the meaning of one event.

No clock is read here. Times are those of the read that completed an event. If something else came later in the
same read, the event is only known to lie after the previous read, and `low` is set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jiter

from tailgauge import protocol_violations as violations
from tailgauge import vendors
from tailgauge.call import MESSAGE
from tailgauge.plugins.plugin import fault
from tailgauge.protocols import sse_parser
from tailgauge.protocols.errors import MAX_ERROR_TEXT, MAX_KIND, class_of_error, error_of
from tailgauge.protocols.event_ids import EventIds, id_of
from tailgauge.protocols.sse_parser import EventSizeError, IdSplitter, Splitter, check_values
from tailgauge.protocols.usage import Usage
from tailgauge.redaction import shown
from tailgauge.rows.schema import CHUNK_KINDS, STREAM_ERROR, TEXT, THINKING, TOOL_JSON, Chunks
from tailgauge.transport.answer import Columns, News

KIND_CODE = {kind: code for code, kind in enumerate(CHUNK_KINDS)}
_TEXT = KIND_CODE[TEXT]
_THINKING = KIND_CODE[THINKING]
_TOOL = KIND_CODE[TOOL_JSON]

MANY_EVENTS = 50_000  # of one answer, whose application may ignore `max_tokens`, and
EVENTS_PER_TOKEN = (
    64  # so many more for each token of `max_tokens`; the widest honest streams have some ten
)
MANY_MALFORMED = 100  # events, after which a stream is not followed any further
MAX_TEXT = (
    128 << 10
)  # bytes of an answer that is kept, whose application may ignore `max_tokens`, and
TEXT_PER_TOKEN = 64  # so many more for each token of `max_tokens`; text has some four
MAX_CONVERSATIONS = 48 << 20  # bytes of answers that the conversations of a worker keep
_MAY_END = frozenset('",}]')  # only a piece with one of these can complete a value
_OPENS = frozenset(("", "{", "["))
_NUMBER_GOES_ON = frozenset("0123456789+-.eE")
MAX_FOLLOWED = (
    65_536  # characters of an answer whose first field is sought: each piece parses all before it
)
MAX_PHASES = 50  # of one answer
MAX_TOOLS = 50  # calls of one answer whose times are kept
MAX_NAME = 100  # characters of a phase's name
_MOST_OPENING = 100  # characters, with the blanks before it
_MOST_OF_AN_END = 1000  # bytes of an end mark
_TAGS = vendors.TABLE["thinking"]["tags"]
_SHOWN = 200  # characters of what was wrong, and of names

OnEvent = Callable[["StreamDecoder", bytes, Any], None]
OnWhole = Callable[["StreamDecoder", bytes], None]


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error inside an answer: the name and text of it, and the class that it gives the attempt.

    `error_class`: what a response of its status would be; None of a violation, or where nothing tells.
    """

    kind: str
    text: str
    ended: str = STREAM_ERROR
    error_class: str | None = None


@dataclass(slots=True)
class ServedAs:
    """What an answer says of how it was served. None: it does not say."""

    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None
    fallback: str | None = None  # the model that was replaced
    iterations: str | None = None  # JSON
    cache_miss_reason: str | None = None
    cache_missed_input_tokens: int | None = None
    stop_details: str | None = None
    server_tool_calls: int | None = None


@dataclass(slots=True)
class Stamp:
    """When an event arrived: at most `at`; `low` is None if exactly then; `read_at` is our own clock."""

    at: int
    low: int | None
    read_at: int


class StreamDecoder:
    """State of one stream: stamps of its landmarks, usage, errors, and the chunks not yet taken by the recorder.

    With `on_whole` no stream is expected but one body: `whole` takes it. While `watching`, a pattern waits for what
    comes next: the first content, or the chunk with number `watch_chunks`.
    """

    # What an answer begins with; here it costs nothing for each.
    _in_conversations = _malformed = 0
    _at = _low = _read_at = _read_index = 0
    _taken_chars = 0
    _closing_tag: str | None = None  # while the answer thinks between tags in its text
    _tail = ""  # of the thinking, which may be a part of that tag
    _opening = ""  # text so far, which may be a part of an opening tag
    watching = True
    broken = False  # it is not followed any further; `error` has the reason
    events = chunks = taken = 0
    intervals = 0  # of the chunks, interval-stamped
    has_content = False
    first_event: Stamp | None = None
    first_content: Stamp | None = None
    first_text: Stamp | None = None
    first_thinking: Stamp | None = None
    last_thinking: Stamp | None = None
    first_tool_json: Stamp | None = None
    tool_ready: Stamp | None = None
    first_field: Stamp | None = None
    last_content: Stamp | None = None
    watched: Stamp | None = None  # of the chunk with number `watch_chunks`
    stopped: Stamp | None = None
    finished = False  # the protocol's end mark, or its equivalent, was seen
    has_started = False  # the message of the answer has begun
    names_role_once = False  # content has come without a role
    is_refusal = False  # its text says that the model refuses
    message_id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    citations: int | None = None  # null: the protocol has none
    answer: str | None = None  # what a call without content brought, as JSON

    def __init__(
        self, on_event: OnEvent, *, on_whole: OnWhole | None = None, shapes: Any = None,
        keep_text: bool = False, watch_field: bool = False, watch_chunks: int = 0, max_tokens: int = 0,
        obeys_max_tokens: bool = False, kind: str = MESSAGE, event_ids: EventIds | None = None,
        protocol: str = "", ends_naturally: bool = False, takes_bare_names: bool = False,
        ends_at_mark: bool = False,
    ) -> None:  # fmt: skip
        self.kind = kind  # of the call
        self.ends_naturally = ends_naturally
        self.protocol = protocol
        self.ends_at_mark = ends_at_mark
        self.statuses = _OK if kind == MESSAGE else _OF_JOBS
        self._on_event = on_event
        self._splitter: Splitter
        if event_ids is None:
            self._splitter = Splitter(takes_bare_names=takes_bare_names)
        else:
            id_splitter = IdSplitter(takes_bare_names=takes_bare_names)
            self._splitter = id_splitter
            self._on_event = _noting(event_ids, id_splitter, on_event)
        self._on_whole = on_whole
        self.shapes = shapes
        self.streams = on_whole is None
        self._watch_chunks = watch_chunks
        self._most = MANY_EVENTS + EVENTS_PER_TOKEN * max_tokens
        self.max_tokens = max_tokens if obeys_max_tokens else None
        self._most_text = MAX_TEXT + TEXT_PER_TOKEN * max_tokens
        self._has_fields = watch_field
        self._field = FirstField() if watch_field else None
        self._kept = {_TEXT: bytearray(), _TOOL: bytearray()} if keep_text else None
        self._event_ids = event_ids
        self.fresh = Chunks()
        self.error: StreamError | None = None
        if event_ids is not None and (problem := event_ids.connect()) is not None:
            self.error = StreamError(*problem)
        self.usage = Usage(protocol)
        self.served = ServedAs()
        self.tools = ToolCalls()
        self.server_blocks: set[Any] = set()  # blocks whose input is for a tool of the target
        self.phases: dict[str, int] = {}  # when each began first
        self.tolerated: dict[str, None] = {}  # names, in the order in which they came

    @property
    def text(self) -> str | None:
        """The answer so far, where it is kept: its text, or else the input of its tools."""
        if self._kept is None:
            return self.answer
        return (self._kept[_TEXT] or self._kept[_TOOL]).decode()

    @property
    def valid_json(self) -> bool | None:
        """Whether a whole answer whose fields are watched for is JSON; None of others."""
        if not self._has_fields or not self.finished or self.text is None:
            return None
        try:
            jiter.from_json(self.text.encode())
        except ValueError:
            return False
        return True

    @property
    def held(self) -> int:
        """Bytes that it keeps of the answer."""
        kept = 0 if self._kept is None else len(self._kept[_TEXT]) + len(self._kept[_TOOL])
        ids = 0 if self._event_ids is None else self._event_ids.held
        return (
            len(self._splitter.pending)
            + kept
            + ids
            + (0 if self._field is None else self._field.held)
        )

    def share_memory(self, in_conversations: int) -> None:
        """So many bytes of other answers are kept already."""
        self._in_conversations = in_conversations

    def feed(
        self,
        payload: bytes,
        low: int,
        arrived: int,
        read_at: int,
        read_index: int,
        *,
        at_rest: bool,
    ) -> None:
        """Payload of one read; see `Exchange`. Never raises for what the peer sent: it is recorded as an error."""
        if self.broken:
            return
        try:
            events = self._splitter.feed(payload)
        except EventSizeError:
            most = f"{sse_parser.MAX_EVENT >> 20} MiB, {sse_parser.MAX_LINES:,} lines or {sse_parser.MAX_VALUES:,} values"
            self._give_up(violations.EVENT_TOO_LARGE, f"over {most}")
            return
        exact = len(events) - 1 if at_rest and self._splitter.ended_with_event else -1
        self._at = arrived
        self._read_at = read_at
        self._read_index = read_index
        for number, (name, data) in enumerate(events):
            self._low = 0 if number == exact else low
            self.events += 1
            try:
                self._on_event(self, name, data)
            except Exception as error:  # noqa: BLE001 - raised again where it is ours
                self._note(error, violations.MALFORMED_EVENT, shown(data, _SHOWN))
                self._malformed += 1
                self.broken |= self._malformed >= MANY_MALFORMED
            if self.events > self._most:
                self._give_up(violations.TOO_MANY_EVENTS, f"over {self._most:,}")
            if self.broken:
                return
        if self._splitter.is_marked:
            self.violate(violations.MALFORMED_EVENT, "a byte order mark inside the stream")

    def end_of_body(self) -> None:
        """Read an end mark without the blank line behind it, where the body has ended as it should.

        The standard drops such an event; to the SDKs, too, the answer is over.
        """
        if self.broken or self.stopped is not None or not self._splitter.pending:
            return
        if len(self._splitter.pending) > _MOST_OF_AN_END:
            return
        for name, data in self._splitter.feed(b"\n\n"):
            if _is_end_mark(data):
                self.tolerate(violations.NO_BLANK_LINE)
                self._on_event(self, name, data)

    def _note(self, error: Exception, kind: str, where: str) -> None:
        """Note an error in what the peer sent, or in a plugin's code; others are ours, and raised."""
        found = fault(error)
        if not (isinstance(error, _MALFORMED) or found):
            raise error
        self.violate(kind, f"{found or _what_is_wrong(error)}: {where}")

    def error_event(self, event: Any) -> None:
        """Note an error of the target's, in any shape; the first is kept."""
        kind, text = error_of(event)
        self._fail(kind, text, class_of_error(event))

    def named_error(self, data: bytes) -> None:
        """Note an error of the target's by the data of an event that is named so: JSON, or a plain text.

        Raises ValueError for JSON that is broken.
        """
        self.seen()
        if data.lstrip().startswith((b"{", b"[")):
            self.error_event(tree_of(data))
        else:
            self.fail("error", data.decode("utf-8", "replace"))

    def fail(self, kind: str, text: str, status: int | None = None) -> None:
        """Note an error of the target's whose status is known, or its name alone; the first is kept."""
        kind = violations.quoted(shown(kind, MAX_KIND))
        self._fail(kind, shown(text, MAX_ERROR_TEXT), vendors.class_of_error(status, kind))

    def _fail(self, kind: str, text: str, error_class: str | None) -> None:
        if self.error is not None:
            return
        # After content the user has seen a part of it: the stream is broken, whatever broke it.
        is_early = error_class is not None and not self.has_content
        ended = error_class if is_early and error_class is not None else STREAM_ERROR
        self.error = StreamError(kind, text, ended, error_class)

    def violate(self, kind: str, text: str) -> None:
        """Note a violation of the protocol; the first error is kept."""
        if self.error is None:
            self.error = StreamError(kind, text)

    def tolerate(self, name: str) -> None:
        """Note what is not the protocol's and is read as the SDK reads it."""
        self.tolerated[name] = None

    def _give_up(self, kind: str, text: str) -> None:
        """Follow it no further; the first error is kept."""
        self.violate(kind, text)
        self.broken = True

    def receive(self, news: News) -> None:
        """What has come of the stream: chunks that the compiled reader has decoded, and pieces that are decoded here."""
        columns = news.columns
        chunks = None if columns is None else _chunks_of(columns)
        done = 0
        kept = (0,) * len(news.kept or ())
        self.events += news.events
        for piece in news.pieces:
            if chunks is not None and piece.chunks_before > done:
                self._add(chunks, done, piece.chunks_before)
                done = piece.chunks_before
            if news.kept is not None:
                self._keep_plain(news.kept, kept, piece.kept_before)
                kept = piece.kept_before
            self.feed(
                piece.payload,
                piece.low,
                piece.arrived,
                piece.read_at,
                piece.read_index,
                at_rest=piece.rests,
            )
        if chunks is not None and len(chunks) > done:
            self._add(chunks, done, len(chunks))
        if news.kept is not None:
            self._keep_plain(news.kept, kept, tuple(map(len, news.kept)))
        if self.events > self._most:
            self._give_up(violations.TOO_MANY_EVENTS, f"over {self._most:,}")

    def _add(self, chunks: Chunks, begin: int, end: int) -> None:
        """Chunks that were decoded, as `content` would have added them."""
        fresh = self.fresh
        fresh.kind += chunks.kind[begin:end]
        fresh.arrived += chunks.arrived[begin:end]
        fresh.low += chunks.low[begin:end]
        fresh.read_at += chunks.read_at[begin:end]
        fresh.read_index += chunks.read_index[begin:end]
        fresh.chars += chunks.chars[begin:end]
        count = end - begin
        self.chunks += count
        self.intervals += count - chunks.low[begin:end].count(0)
        last = end - 1
        self._at = chunks.arrived[last]
        self._low = chunks.low[last]
        self._read_at = chunks.read_at[last]
        self._read_index = chunks.read_index[last]
        self.last_content = self.stamp()
        last_thinking = chunks.kind.rfind(_THINKING, begin, end)
        if last_thinking >= 0:
            at = chunks.arrived[last_thinking]
            self.last_thinking = Stamp(
                at, chunks.low[last_thinking] or None, chunks.read_at[last_thinking]
            )

    def _keep_plain(
        self, texts: tuple[bytes, ...], begins: tuple[int, ...], ends: tuple[int, ...]
    ) -> None:
        """Keep a part of each text, which stands there as in JSON."""
        if self._kept is None:
            return
        for kind, kept in self._kept.items():
            text = texts[kind][begins[kind] : ends[kind]]
            if text:
                self._keep(kept, json.loads(b'"%b"' % text))

    @property
    def kept_kinds(self) -> int:
        """Kinds of content whose text is kept, a bit each."""
        return 0 if self._kept is None else sum(1 << kind for kind in self._kept)

    @property
    def plain_kinds(self) -> int:
        """Kinds of content, a bit each, that are no more than a chunk now: nothing here needs to see their events."""
        if not (self._is_plain and self._splitter.resting and self.stopped is None) or self.broken:
            return 0
        firsts = {
            _TEXT: self.first_text,
            _THINKING: self.first_thinking,
            _TOOL: self.first_tool_json,
        }
        return sum(1 << kind for kind, first in firsts.items() if first is not None)

    @property
    def _is_plain(self) -> bool:
        """Whether no pattern waits for content, its model is known, and no content is special."""
        waits = (
            self.watching
            or self._field is not None
            or self.model is None
            or self._event_ids is not None
        )
        is_special = (
            self.server_blocks or self._opening or self._closing_tag or self.tools.count > 1
        )
        return not (waits or is_special or self.finished)

    def whole(self, body: bytes, arrived: int, read_at: int, read_index: int, low: int = 0) -> None:
        """The whole answer, with the times of the read that completed it. Never raises for what the peer sent."""
        assert self._on_whole is not None
        self._at = arrived
        self._low = low
        self._read_at = read_at
        self._read_index = read_index
        try:
            check_values(body)
            self._on_whole(self, body)
        except EventSizeError:
            self._give_up(violations.TOO_LARGE, f"over {sse_parser.MAX_VALUES:,} values")
        except Exception as error:  # noqa: BLE001 - raised again where it is ours
            self._note(error, violations.MALFORMED_ANSWER, shown(body, _SHOWN))
        else:
            self.stop()

    def seen(self) -> None:
        """An event that counts as the first event of the stream (pings do not)."""
        if self.first_event is None:
            self.first_event = self.stamp()

    def stamp(self) -> Stamp:
        """Stamp of the event being handled."""
        return Stamp(self._at, self._low or None, self._read_at)

    def text_delta(self, text: str) -> None:
        """Take text of an answer, which may begin with its thinking between tags, each cut anywhere."""
        if self._closing_tag is not None:
            self._thinking_in_text(text)
        elif self.first_text is None or self._opening:
            self._begin_text(text)
        else:
            self.content(_TEXT, text)

    def _begin_text(self, text: str) -> None:
        """Take text that may be a part of an opening tag: it is text until it has become one."""
        so_far = (self._opening + text).lstrip()
        for tag, closing_tag in _TAGS.items():
            if so_far.startswith(tag):
                self._begin_thinking_in_text(closing_tag)
                self._thinking_in_text(so_far.removeprefix(tag))
                return
        may_open = any(tag.startswith(so_far) for tag in _TAGS)
        self._opening = (self._opening + text)[-_MOST_OPENING:] if may_open else ""
        self.content(_TEXT, text)

    def _begin_thinking_in_text(self, closing_tag: str) -> None:
        self.tolerate(violations.THINKING_IN_TEXT)
        self._closing_tag = closing_tag
        self._tail = ""
        self.thinks()
        if not self._opening:
            return
        # What came of the tag was taken for text.
        self._opening = ""
        self.first_thinking = self.first_thinking or self.first_text
        self.first_text = None
        if self._kept is not None:
            self._kept[_TEXT].clear()
        if self._field is not None:
            self._field = FirstField()

    def _thinking_in_text(self, text: str) -> None:
        assert self._closing_tag is not None
        thinking, closed, rest = (self._tail + text).partition(self._closing_tag)
        self.thinks()
        self.content(_THINKING, thinking[len(self._tail) :])
        if closed:
            self._closing_tag = None
            self.content(_TEXT, rest.lstrip("\n"))
        else:
            self._tail = thinking[1 - len(self._closing_tag) :]

    def content(self, kind: int, text: str, *, is_answer: bool = True) -> None:
        """A content delta; empty ones are no chunks. A person sees it, also where it is no part of the answer's text."""
        if not isinstance(text, str):
            raise TypeError(f"content is no text but {type(text).__name__}")
        if not text:
            return
        if self.stopped is not None:
            self.violate(violations.CONTENT_AFTER_END, "content after the end of the answer")
            return
        if self.chunks >= self._most:
            self._give_up(violations.TOO_MANY_EVENTS, f"over {self._most:,}")
            return
        fresh = self.fresh
        fresh.kind.append(kind)
        fresh.arrived.append(self._at)
        fresh.low.append(self._low)
        self.intervals += self._low > 0
        fresh.read_at.append(self._read_at)
        fresh.read_index.append(self._read_index)
        fresh.chars.append(len(text))
        self.chunks += 1
        self.last_content = stamp = self.stamp()
        if self.watching:
            self._watch(stamp)
        if kind == _TEXT:
            self.first_text = self.first_text or stamp
        elif kind == _TOOL:
            self.first_tool_json = self.first_tool_json or stamp
        else:
            self.first_thinking = self.first_thinking or stamp
            self.last_thinking = stamp
        if kind != _THINKING and is_answer:
            self._read(kind, text, stamp)

    def _watch(self, stamp: Stamp) -> None:
        if self.first_content is None:
            self.first_content = stamp
            self.has_content = True
        if self.chunks == self._watch_chunks:
            self.watched = stamp
        self.watching = self.chunks < self._watch_chunks

    def _read(self, kind: int, text: str, stamp: Stamp) -> None:
        if self._kept is not None:
            self._keep(self._kept[kind], text)
        if self._field is not None and self._field.feed(kind, text):
            self.first_field = stamp
            self._field = None

    def _keep(self, kept: bytearray, text: str) -> None:
        kept += text.encode(
            "utf-8", "replace"
        )  # pieces would take ten times as much as their characters
        if len(kept) > self._most_text:
            self._give_up(violations.TOO_LARGE, f"a text of over {self._most_text:,} bytes")
        elif len(kept) + self._in_conversations > MAX_CONVERSATIONS:
            most = f"over {MAX_CONVERSATIONS >> 20} MiB"
            self._give_up(
                violations.TOO_LARGE, f"the conversations of this worker keep {most} of answers"
            )

    def whole_content(self, text: str, tool_json: str) -> None:
        """Content of an answer that came at once: its text, else the input of its tools, as one chunk."""
        if tool_json:
            self.tool(0)
            self.tool_done(0)
        if text or tool_json:
            self.content(_TEXT if text else _TOOL, text or tool_json)

    def thinks(self) -> None:
        """Thinking begins, whether or not its content is shown."""
        self.last_thinking = self.stamp()

    def tool(self, key: Any, call_id: Any = None, *, has_input: bool = True) -> None:
        """Note a piece of the tool call `key`; the first piece of another call means that those before are complete."""
        self.tools.piece(key, call_id, has_input=has_input)
        if self.tools.is_new:
            self._tools_ready(self.tools.others(key))

    def tool_done(self, key: Any) -> None:
        """Note that the tool call `key` is complete."""
        if key in self.tools.open:
            self._tools_ready([key])

    def tools_done(self) -> None:
        """Note that whatever tool call was open is complete."""
        self._tools_ready(list(self.tools.open))

    def _tools_ready(self, keys: list[Any]) -> None:
        for key in keys:
            self.tools.ready(key, self._at)
        if keys and self.tool_ready is None:
            self.tool_ready = self.stamp()

    def server_tool(self, name: Any) -> None:
        """Note a call of a tool that the target itself makes: a phase, and no content."""
        self.served.server_tool_calls = (self.served.server_tool_calls or 0) + 1
        self.usage.explained = True
        self.phase(f"server_tool:{name if isinstance(name, str) else 'unnamed'}")

    def phase(self, name: str) -> None:
        """A phase begins; one that comes again is not counted twice."""
        if len(self.phases) < MAX_PHASES:
            self.phases.setdefault(shown(name, MAX_NAME), self._at)

    def stop(self) -> None:
        """The protocol's end mark."""
        self.finished = True
        self.stopped = self.stamp()
        if self._event_ids is not None and self._event_ids.count and not self.has_content:
            self.answer = ""  # all of it had come before

    def count(self, **counters: Any) -> None:
        """Take counts by the names of their columns."""
        for name, value in counters.items():
            self.usage.count(name, value)

    def read_usage(self, usage: Any) -> None:
        """Take a usage object of the protocol's, by the table of vendors."""
        self.usage.read(usage)

    @property
    def characters(self) -> int:
        """Characters of content so far."""
        return self._taken_chars + sum(self.fresh.chars)

    def take(self) -> tuple[int, Chunks]:
        """Chunks since the last call, with the index of the first."""
        first = self.taken
        chunks = self.fresh
        self._taken_chars += sum(chunks.chars)
        self.taken += len(chunks)
        self.fresh = Chunks()
        return first, chunks


def _noting(event_ids: EventIds, splitter: IdSplitter, on_event: OnEvent) -> OnEvent:
    """`on_event`, which then notes the id of the event, and what that shows."""

    def noted(decoder: StreamDecoder, name: bytes, data: Any) -> None:
        had = decoder.chunks
        value = splitter.ids.popleft()
        try:
            on_event(decoder, name, data)
        finally:
            event_ids.receive(
                None if value is None else id_of(value), has_content=decoder.chunks > had
            )
            if event_ids.problem is not None:
                decoder.violate(*event_ids.problem)

    return noted


def _chunks_of(columns: Columns) -> Chunks:
    chunks = Chunks(kind=bytearray(columns.kind))
    chunks.arrived.frombytes(columns.arrived)
    chunks.low.frombytes(columns.low)
    chunks.read_at.frombytes(columns.read_at)
    chunks.read_index.frombytes(columns.read_index)
    chunks.chars.frombytes(columns.chars)
    return chunks


_OK = frozenset({200})
_OF_JOBS = frozenset({200, 201, 202, 204})  # accepted, or done without a body
_MALFORMED = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


def tree_of(data: bytes) -> Any:
    """The JSON of an event. jiter reads it five times as fast as Python's parser, which decides about what jiter refuses."""
    try:
        return jiter.from_json(data)
    except ValueError:
        return json.loads(
            data.decode()
        )  # as bytes it could be UTF-16, or have a mark: no SDK would take it


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "no JSON"
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"no field {shown(error.args[0], _SHOWN)!r}"
    if isinstance(error, RecursionError):
        return "JSON nested too deep"
    return "a field is not what the protocol says"


def text_or_none(value: Any) -> str | None:
    """A short string of the peer's, or None where it is something else."""
    return shown(value, _SHOWN) if isinstance(value, str) else None


def stop_details_text(details: dict[str, Any]) -> str | None:
    """Return the category of a refusal and its explanation, as Messages have them in `stop_details`."""
    category = text_or_none(details.get("category")) or text_or_none(details.get("type"))
    explanation = text_or_none(details.get("explanation"))
    return ": ".join(filter(None, (category, explanation))) or None


def _is_end_mark(data: bytes) -> bool:
    if data.strip() == b"[DONE]":
        return True
    try:
        tree = tree_of(data)
    except ValueError:
        return False
    return isinstance(tree, dict) and tree.get("type") == "message_stop"


class ToolCalls:
    """The tool calls of one answer, by a key: the index of a block, or what stands for one."""

    def __init__(self) -> None:
        self.open: dict[Any, str] = {}  # the call's id, where it has one
        self.shares_index = False  # two calls have had one index
        self._at_index: dict[Any, tuple[Any, Any]] = {}  # the key of the last call
        self.ready_at_ns: dict[str, int] = {}  # by id
        self.is_new = False  # the last piece began a call
        self._names: dict[Any, str] = {}  # of all calls

    def key(self, index: Any, call_id: Any, *, has_name: bool) -> tuple[Any, Any]:
        """Return the key of a piece: a new one where another call begins at an index that was used, or without one."""
        last = self._at_index.get(index)
        if last is None:
            self._at_index[index] = (index, call_id or 0)
        elif has_name and call_id != last[1] and call_id:
            self.shares_index = True
            self._at_index[index] = (index, call_id)
        elif has_name and not call_id and isinstance(last[1], int):
            # Without ids, a name begins a call: only its first piece has one.
            self.shares_index |= index is not None
            self._at_index[index] = (index, last[1] + 1)
        return self._at_index[index]

    @property
    def count(self) -> int:
        """How many calls have begun."""
        return len(self._names)

    def piece(self, key: Any, call_id: Any, *, has_input: bool) -> None:
        """Take a piece of a call. More input of one that seemed complete opens it again: calls may be interleaved."""
        self.is_new = key not in self._names
        if self.is_new and len(self._names) < MAX_TOOLS:
            name = call_id if isinstance(call_id, str) and call_id else f"#{len(self._names)}"
            self._names[key] = shown(name, MAX_NAME)
            self.open[key] = self._names[key]
        elif has_input and key in self._names and key not in self.open:
            self.open[key] = self._names[key]
            self.ready_at_ns.pop(self._names[key], None)

    def others(self, key: Any) -> list[Any]:
        """Return the open calls but this one."""
        return [other for other in self.open if other != key]

    def ready(self, key: Any, at_ns: int) -> None:
        """Note that a call is complete."""
        self.ready_at_ns.setdefault(self.open.pop(key), at_ns)


class FirstField:
    """When the first field of a JSON answer is usable, found while the answer still comes.

    A field is its first complete plain value: a string that is closed, or a number, true, false or null whose end is
    certain. Whatever is no JSON has no field. The parser is jiter's, which reads unfinished JSON. It follows the answer's
    text, or else its tool's input: prose before a tool call has no field.
    """

    def __init__(self) -> None:
        # By kind of content; None: no JSON, or none that can be followed.
        self._texts: dict[int, str | None] = {}

    @property
    def held(self) -> int:
        """Bytes of the texts, about."""
        return sum(map(len, filter(None, self._texts.values())))

    def feed(self, kind: int, text: str) -> bool:
        """Take the next piece; whether it completed the first field."""
        before = self._texts.get(kind, "")
        if before is None:
            return False
        self._texts[kind] = read = before + text
        if len(read) > MAX_FOLLOWED:
            self._texts[kind] = None
            return False
        if _MAY_END.isdisjoint(text) and read.lstrip()[:1] in _OPENS:
            return False
        try:
            tree = jiter.from_json(read.encode("utf-8", "replace"), partial_mode="on")
        except ValueError:
            tree = None
        if not isinstance(tree, dict | list):
            self._texts[kind] = None
            return False
        return _has_value(tree, read[-1])


def _has_value(tree: Any, last: str) -> bool:
    """Whether the first plain value is complete; `last` is the last character that came."""
    first = next(leaves := _leaves(tree), _NONE)
    second = next(leaves, _NONE)
    number = isinstance(first, int | float) and not isinstance(first, bool)
    return first is not _NONE and not (number and second is _NONE and last in _NUMBER_GOES_ON)


_NONE = object()


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict | list):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(item)
    else:
        yield tree
