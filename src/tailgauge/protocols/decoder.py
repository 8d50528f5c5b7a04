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

# Bounds of one answer: a fixed part, because applications may ignore `max_tokens`, and a part for each token of it.
MANY_EVENTS = 50_000
EVENTS_PER_TOKEN = 64  # the widest honest streams have some ten
MAX_TEXT = 128 << 10  # bytes, of an answer that is kept
TEXT_PER_TOKEN = 64  # bytes; text has some four

MANY_MALFORMED = 100  # events, after which a stream is not followed any further
MAX_CONVERSATIONS = 48 << 20  # bytes of answers that the conversations of a worker keep
_MAY_END = frozenset('",}]')  # only a piece with one of these can complete a value
_OPENS = frozenset(("", "{", "["))
_NUMBER_GOES_ON = frozenset("0123456789+-.eE")
# Characters of an answer whose first field is sought: each piece parses all before it again.
MAX_FOLLOWED = 65_536
MAX_PHASES = 50  # of one answer
MAX_TOOLS = 50  # calls of one answer whose times are kept
MAX_NAME = 100  # characters of a phase's name
_MAX_OPENING = 100  # characters of an opening tag, with the blanks before it
_MAX_END_MARK = 1000  # bytes
_TAGS = vendors.TABLE["thinking"]["tags"]
_SHOWN = 200  # characters of what was wrong, and of names

OnEvent = Callable[["StreamDecoder", bytes, Any], None]
OnWhole = Callable[["StreamDecoder", bytes], None]


@dataclass(frozen=True, slots=True)
class StreamError:
    """An error inside an answer: its name, its text, and the class that it gives the attempt (`ended`).

    `error_class`: the class of a response with the error's status; None for a violation, or where no status is known.
    """

    kind: str
    text: str
    ended: str = STREAM_ERROR
    error_class: str | None = None


@dataclass(slots=True)
class ServedAs:
    """What an answer says about how it was served. None: it does not say."""

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
    """When an event arrived, in ns: between `low` and `at`, or exactly at `at` where `low` is None.

    `read_at`: when the process read it, by its own clock.
    """

    at: int
    low: int | None
    read_at: int


@dataclass(slots=True, kw_only=True)
class AnswerSettings:
    """How the answer to one call is decoded, by the call and by its protocol."""

    kind: str = MESSAGE  # of the call
    keep_text: bool = False
    watch_field: bool = False  # stamp the first usable field of a JSON answer
    watch_chunks: int = 0  # stamp the chunk with this number; 0: none
    max_tokens: int = 0  # that the call allows
    obeys_max_tokens: bool = False  # a longer answer breaks the protocol
    ends_naturally: bool = False  # the answer should end before `max_tokens`
    event_ids: EventIds | None = None  # collects the ids of the events
    protocol: str = ""  # its part of the table of vendors
    shapes: Any = None  # plain events, for the compiled reader
    takes_bare_names: bool = False  # an event without data counts where it has a name
    ends_at_mark: bool = False  # the SDK reads nothing behind the end mark


_DEFAULTS = AnswerSettings()


class StreamDecoder:
    """State of one stream: stamps of its landmarks, usage, errors, and the chunks not yet taken by the recorder.

    `on_event` gives each event its meaning. With `on_whole`, the answer is one body, which `whole` takes, and no stream.
    While `watching`, a pattern waits for the first content, or for the chunk with number `watch_chunks`.
    """

    # The state at the start of an answer, as class attributes: they take no time for each request.
    _in_conversations = 0
    _malformed = 0
    # The times of the event that is being handled.
    _at = 0
    _low = 0
    _read_at = 0
    _read_index = 0
    _taken_chars = 0
    _closing_tag: str | None = None  # while the answer thinks between tags in its text
    _tail = ""  # end of the thinking so far, which may be a part of the closing tag
    _opening = ""  # text so far, which may be a part of an opening tag
    watching = True
    broken = False  # it is not followed any further; `error` has the reason
    events = 0
    chunks = 0
    taken = 0  # chunks that `take` has returned
    intervals = 0  # chunks whose arrival is an interval
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
    watched: Stamp | None = None  # stamp of the chunk with number `watch_chunks`
    stopped: Stamp | None = None
    finished = False  # the protocol's end mark, or its equivalent, was seen
    has_started = False  # the message of the answer has begun
    names_role_once = False  # content has come without a role
    is_refusal = False  # its text says that the model refuses
    message_id: str | None = None
    model: str | None = None
    stop_reason: str | None = None
    citations: int | None = None  # None: the protocol has none
    answer: str | None = None  # what a call without content brought, as JSON

    def __init__(
        self,
        on_event: OnEvent,
        settings: AnswerSettings = _DEFAULTS,
        *,
        on_whole: OnWhole | None = None,
    ) -> None:
        """Begin the answer to one call. `on_event` is called with the decoder, an event's name and its data.

        `on_whole` decodes a body that is no stream; None: the answer is a stream. A stream with `event_ids`
        goes on with those of earlier connections, and with their problem as its error.
        """
        self.kind = settings.kind
        self.ends_naturally = settings.ends_naturally
        self.protocol = settings.protocol
        self.ends_at_mark = settings.ends_at_mark
        self.statuses = _MESSAGE_STATUSES if settings.kind == MESSAGE else _JOB_STATUSES
        self.shapes = settings.shapes
        self.streams = on_whole is None
        self._on_whole = on_whole
        self._on_event = on_event
        self._splitter: Splitter
        self._event_ids = settings.event_ids
        self.error: StreamError | None = None
        if self._event_ids is None:
            self._splitter = Splitter(takes_bare_names=settings.takes_bare_names)
        else:
            id_splitter = IdSplitter(takes_bare_names=settings.takes_bare_names)
            self._splitter = id_splitter
            # Each event also has its id noted.
            self._on_event = _with_event_ids(self._event_ids, id_splitter, on_event)
            # A problem of an earlier connection is one of the answer.
            problem = self._event_ids.connect()
            if problem is not None:
                self.error = StreamError(*problem)
        self.max_tokens = settings.max_tokens if settings.obeys_max_tokens else None
        # Beyond these bounds an answer is not followed further.
        self._max_events = MANY_EVENTS + EVENTS_PER_TOKEN * settings.max_tokens
        self._max_text = MAX_TEXT + TEXT_PER_TOKEN * settings.max_tokens
        # The chunk that a pattern waits for, by its number; 0: the first content only.
        self._watch_chunks = settings.watch_chunks
        self._has_fields = settings.watch_field
        self._field = FirstField() if settings.watch_field else None
        # The answer's text as UTF-8 by kind of content: as a list of pieces it would take ten times the memory.
        self._texts: dict[int, bytearray] | None = None
        if settings.keep_text:
            self._texts = {_TEXT: bytearray(), _TOOL: bytearray()}
        self.fresh = Chunks()  # not yet taken by the recorder
        self.usage = Usage(settings.protocol)
        self.served = ServedAs()
        self.tools = ToolCalls()
        self.server_blocks: set[Any] = set()  # blocks whose input is for a tool of the target
        self.phases: dict[str, int] = {}  # first start of each
        self.tolerated: dict[str, None] = {}  # names, in the order in which they came

    @property
    def text(self) -> str | None:
        """Return the answer so far, where it is kept: its text, or else the input of its tools."""
        if self._texts is None:
            return self.answer
        return (self._texts[_TEXT] or self._texts[_TOOL]).decode()

    @property
    def valid_json(self) -> bool | None:
        """Return whether a complete answer is JSON; None where no field is watched for, or it is not complete."""
        if not self._has_fields or not self.finished or self.text is None:
            return None
        try:
            jiter.from_json(self.text.encode())
        except ValueError:
            return False
        return True

    @property
    def held(self) -> int:
        """Return how many bytes of the answer are kept in memory."""
        size = len(self._splitter.pending)
        if self._texts is not None:
            size += len(self._texts[_TEXT]) + len(self._texts[_TOOL])
        if self._event_ids is not None:
            size += self._event_ids.held
        if self._field is not None:
            size += self._field.held
        return size

    def share_memory(self, in_conversations: int) -> None:
        """Count the bytes of other answers, which the conversations of the worker keep, towards the limit."""
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
        """Decode the payload of one read; times in ns, see `Exchange`.

        `at_rest`: the read has emptied the socket, so that an event at its end arrived exactly at `arrived`. Never
        raises for what the peer sent: it is recorded as an error.
        """
        if self.broken:
            return
        try:
            events = self._splitter.feed(payload)
        except EventSizeError:
            limits = f"{sse_parser.MAX_EVENT >> 20} MiB, {sse_parser.MAX_LINES:,} lines or {sse_parser.MAX_VALUES:,} values"
            self._give_up(violations.EVENT_TOO_LARGE, f"over {limits}")
            return
        # The number of the event whose arrival is exact; -1: all have an interval from `low` to
        # `arrived`.
        exact_index = len(events) - 1 if at_rest and self._splitter.ended_with_event else -1
        self._at = arrived
        self._read_at = read_at
        self._read_index = read_index
        for index, (name, data) in enumerate(events):
            self._low = 0 if index == exact_index else low
            self.events += 1
            try:
                self._on_event(self, name, data)
            except Exception as error:  # noqa: BLE001 - raised again where it is ours
                self._note_error(error, violations.MALFORMED_EVENT, shown(data, _SHOWN))
                self._malformed += 1
                self.broken |= self._malformed >= MANY_MALFORMED
            if self.events > self._max_events:
                self._give_up(violations.TOO_MANY_EVENTS, f"over {self._max_events:,}")
            if self.broken:
                return
        if self._splitter.has_late_byte_order_mark:
            # No field begins so: bytes before it are missing.
            self.violate(violations.MALFORMED_EVENT, "a byte order mark inside the stream")

    def end_of_body(self) -> None:
        """Read an end mark without the blank line behind it, where the body has ended as it should.

        The standard drops such an event; to the SDKs, too, the answer is over.
        """
        if self.broken or self.stopped is not None:
            return
        if not 0 < len(self._splitter.pending) <= _MAX_END_MARK:
            return
        for name, data in self._splitter.feed(b"\n\n"):
            if _is_end_mark(data):
                self.tolerate(violations.NO_BLANK_LINE)
                self._on_event(self, name, data)

    def _note_error(self, error: Exception, kind: str, where: str) -> None:
        """Note an error in what the peer sent, or in a plugin's code; others are our own, and raised."""
        plugin_fault = fault(error)
        if not isinstance(error, _MALFORMED) and not plugin_fault:
            raise error
        self.violate(kind, f"{plugin_fault or _what_is_wrong(error)}: {where}")

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
        # After content, the user has seen a part of the answer: the stream is broken, whatever broke it.
        ended = STREAM_ERROR
        if error_class is not None and not self.has_content:
            ended = error_class
        self.error = StreamError(kind, text, ended, error_class)

    def violate(self, kind: str, text: str) -> None:
        """Note a violation of the protocol; the first error is kept."""
        if self.error is None:
            self.error = StreamError(kind, text)

    def tolerate(self, name: str) -> None:
        """Note something outside the protocol that is read as the SDK reads it."""
        self.tolerated[name] = None

    def _give_up(self, kind: str, text: str) -> None:
        """Follow the stream no further; the first error is kept."""
        self.violate(kind, text)
        self.broken = True

    def receive(self, news: News) -> None:
        """Take what has come: chunks that the compiled reader has decoded, and pieces, which are decoded here.

        Both are taken in the order in which they arrived: a piece says how many chunks and bytes of text came before it.
        """
        columns = news.columns
        chunks = None if columns is None else _chunks_of(columns)
        added_chunks = 0
        text_ends = (0,) * len(news.kept or ())
        self.events += news.events
        for piece in news.pieces:
            if chunks is not None and piece.chunks_before > added_chunks:
                self._add_chunks(chunks, added_chunks, piece.chunks_before)
                added_chunks = piece.chunks_before
            if news.kept is not None:
                self._keep_plain(news.kept, text_ends, piece.kept_before)
                text_ends = piece.kept_before
            self.feed(
                piece.payload,
                piece.low,
                piece.arrived,
                piece.read_at,
                piece.read_index,
                at_rest=piece.rests,
            )
        if chunks is not None and len(chunks) > added_chunks:
            self._add_chunks(chunks, added_chunks, len(chunks))
        if news.kept is not None:
            self._keep_plain(news.kept, text_ends, tuple(map(len, news.kept)))
        if self.events > self._max_events:
            self._give_up(violations.TOO_MANY_EVENTS, f"over {self._max_events:,}")

    def _add_chunks(self, chunks: Chunks, begin: int, end: int) -> None:
        """Add chunks `begin` to `end`, which are decoded already, as `content` would have added them."""
        fresh = self.fresh
        fresh.kind += chunks.kind[begin:end]
        fresh.arrived += chunks.arrived[begin:end]
        fresh.low += chunks.low[begin:end]
        fresh.read_at += chunks.read_at[begin:end]
        fresh.read_index += chunks.read_index[begin:end]
        fresh.chars += chunks.chars[begin:end]
        count = end - begin
        self.chunks += count
        # A `low` of 0 means that the arrival is exact.
        self.intervals += count - chunks.low[begin:end].count(0)
        last_index = end - 1
        self._at = chunks.arrived[last_index]
        self._low = chunks.low[last_index]
        self._read_at = chunks.read_at[last_index]
        self._read_index = chunks.read_index[last_index]
        self.last_content = self.stamp()
        thinking_index = chunks.kind.rfind(_THINKING, begin, end)
        if thinking_index >= 0:
            self.last_thinking = Stamp(
                at=chunks.arrived[thinking_index],
                low=chunks.low[thinking_index] or None,
                read_at=chunks.read_at[thinking_index],
            )

    def _keep_plain(
        self, texts: tuple[bytes, ...], begins: tuple[int, ...], ends: tuple[int, ...]
    ) -> None:
        """Keep the same part of each text, by kind of content. The texts are escaped as in a JSON string."""
        if self._texts is None:
            return
        for kind, kept_text in self._texts.items():
            escaped = texts[kind][begins[kind] : ends[kind]]
            if escaped:
                self._keep(kept_text, json.loads(b'"%b"' % escaped))

    @property
    def kept_kinds(self) -> int:
        """Return the kinds of content whose text is kept, a bit each."""
        if self._texts is None:
            return 0
        return sum(1 << kind for kind in self._texts)

    @property
    def plain_kinds(self) -> int:
        """Return the kinds of content, a bit each, that the compiled reader may decode now.

        A chunk of such a kind only adds a row: it is not the first of its kind, and nothing here needs to see its event.
        """
        if self.broken or self.stopped is not None:
            return 0
        if not self._is_plain or not self._splitter.resting:
            return 0
        first_stamps = {
            _TEXT: self.first_text,
            _THINKING: self.first_thinking,
            _TOOL: self.first_tool_json,
        }
        return sum(1 << kind for kind, stamp in first_stamps.items() if stamp is not None)

    @property
    def _is_plain(self) -> bool:
        """Return whether no pattern waits for content, the model is known, and no content is special."""
        if self.watching or self._field is not None or self._event_ids is not None:
            return False
        if self.model is None or self.finished:
            return False
        is_tagged = self._opening or self._closing_tag
        return not (self.server_blocks or is_tagged or self.tools.count > 1)

    def whole(self, body: bytes, arrived: int, read_at: int, read_index: int, low: int = 0) -> None:
        """Decode the whole answer, with the times of the read that completed it. Never raises for what the peer sent."""
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
            self._note_error(error, violations.MALFORMED_ANSWER, shown(body, _SHOWN))
        else:
            self.stop()

    def seen(self) -> None:
        """Note an event that counts as the first event of the stream (pings do not)."""
        if self.first_event is None:
            self.first_event = self.stamp()

    def stamp(self) -> Stamp:
        """Return the stamp of the event being handled."""
        return Stamp(self._at, self._low or None, self._read_at)

    def text_delta(self, text: str) -> None:
        """Take text of an answer. It may begin with thinking between tags, and the tags may be cut anywhere."""
        if self._closing_tag is not None:
            self._thinking_in_text(text)
        elif self.first_text is None or self._opening:
            self._begin_text(text)
        else:
            self.content(_TEXT, text)

    def _begin_text(self, text: str) -> None:
        """Take text that may be a part of an opening tag. It counts as text until the tag is complete."""
        opening = self._opening + text
        visible = opening.lstrip()
        for tag, closing_tag in _TAGS.items():
            if visible.startswith(tag):
                self._begin_thinking_in_text(closing_tag)
                self._thinking_in_text(visible.removeprefix(tag))
                return
        may_open = any(tag.startswith(visible) for tag in _TAGS)
        self._opening = ""
        if may_open:
            self._opening = opening[-_MAX_OPENING:]
        self.content(_TEXT, text)

    def _begin_thinking_in_text(self, closing_tag: str) -> None:
        """Take the text behind an opening tag as thinking, until the closing tag comes."""
        self.tolerate(violations.THINKING_IN_TEXT)
        self._closing_tag = closing_tag
        self._tail = ""
        self.thinks()
        if not self._opening:
            return
        # The first pieces of the tag were taken for text.
        self._opening = ""
        self.first_thinking = self.first_thinking or self.first_text
        self.first_text = None
        if self._texts is not None:
            self._texts[_TEXT].clear()
        if self._field is not None:
            self._field = FirstField()

    def _thinking_in_text(self, text: str) -> None:
        """Take thinking up to the closing tag, and what is behind it as text."""
        assert self._closing_tag is not None
        thinking, closing_tag, answer = (self._tail + text).partition(self._closing_tag)
        self.thinks()
        self.content(_THINKING, thinking[len(self._tail) :])
        if closing_tag:
            self._closing_tag = None
            self.content(_TEXT, answer.lstrip("\n"))
        else:
            self._tail = thinking[1 - len(self._closing_tag) :]

    def content(self, kind: int, text: str, *, is_answer: bool = True) -> None:
        """Take a content delta as one chunk; an empty one is none.

        `kind`: text, thinking, or the input of a tool. `is_answer`: it is a part of the answer's text; a person sees other
        content too, such as a refusal. Its times are those of the event that is being decoded. Content after the end is
        a violation, and too much ends the decoding. Raises TypeError where it is no text.
        """
        if not isinstance(text, str):
            raise TypeError(f"content is no text but {type(text).__name__}")
        if not text:
            return
        if self.stopped is not None:
            self.violate(violations.CONTENT_AFTER_END, "content after the end of the answer")
            return
        if self.chunks >= self._max_events:
            self._give_up(violations.TOO_MANY_EVENTS, f"over {self._max_events:,}")
            return
        fresh = self.fresh
        fresh.kind.append(kind)
        fresh.arrived.append(self._at)
        fresh.low.append(self._low)
        fresh.read_at.append(self._read_at)
        fresh.read_index.append(self._read_index)
        fresh.chars.append(len(text))
        # Chunks whose arrival is not exact.
        self.intervals += self._low > 0
        self.chunks += 1
        stamp = self.stamp()
        self.last_content = stamp
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
            self._keep_answer(kind, text, stamp)

    def _watch(self, stamp: Stamp) -> None:
        """Stamp the chunk if a pattern waits for it."""
        if self.first_content is None:
            self.first_content = stamp
            self.has_content = True
        if self.chunks == self._watch_chunks:
            self.watched = stamp
        self.watching = self.chunks < self._watch_chunks

    def _keep_answer(self, kind: int, text: str, stamp: Stamp) -> None:
        """Keep the text of an answer, and find its first field, where the call wants that."""
        if self._texts is not None:
            self._keep(self._texts[kind], text)
        if self._field is not None and self._field.feed(kind, text):
            self.first_field = stamp
            self._field = None

    def _keep(self, kept_text: bytearray, text: str) -> None:
        kept_text += text.encode("utf-8", "replace")
        if len(kept_text) > self._max_text:
            self._give_up(violations.TOO_LARGE, f"a text of over {self._max_text:,} bytes")
        elif len(kept_text) + self._in_conversations > MAX_CONVERSATIONS:
            size = f"over {MAX_CONVERSATIONS >> 20} MiB"
            self._give_up(
                violations.TOO_LARGE, f"the conversations of this worker keep {size} of answers"
            )

    def whole_content(self, text: str, tool_json: str) -> None:
        """Take the content of an answer that came at once: its text, else the input of its tools, as one chunk."""
        if tool_json:
            self.tool(0)
            self.tool_done(0)
        if text:
            self.content(_TEXT, text)
        elif tool_json:
            self.content(_TOOL, tool_json)

    def thinks(self) -> None:
        """Note that the model thinks now, whether or not the content of it is shown."""
        self.last_thinking = self.stamp()

    def tool(self, key: Any, call_id: Any = None, *, has_input: bool = True) -> None:
        """Note a piece of the tool call `key`; the first piece of a call means that those before it are complete."""
        self.tools.piece(key, call_id, has_input=has_input)
        if self.tools.is_new:
            self._tools_ready(self.tools.open_except(key))

    def tool_done(self, key: Any) -> None:
        """Note that the tool call `key` is complete."""
        if key in self.tools.open:
            self._tools_ready([key])

    def tools_done(self) -> None:
        """Note that all open tool calls are complete."""
        self._tools_ready(list(self.tools.open))

    def _tools_ready(self, keys: list[Any]) -> None:
        for key in keys:
            self.tools.ready(key, self._at)
        if keys and self.tool_ready is None:
            self.tool_ready = self.stamp()

    def server_tool(self, name: Any) -> None:
        """Note that the target itself calls a tool: a phase, and no content."""
        self.served.server_tool_calls = (self.served.server_tool_calls or 0) + 1
        self.usage.explained = True
        tool_name = name if isinstance(name, str) else "unnamed"
        self.phase(f"server_tool:{tool_name}")

    def phase(self, name: str) -> None:
        """Note the start of a phase; only the first of a name counts."""
        if len(self.phases) < MAX_PHASES:
            self.phases.setdefault(shown(name, MAX_NAME), self._at)

    def stop(self) -> None:
        """Note the protocol's end mark."""
        self.finished = True
        self.stopped = self.stamp()
        # A resumed answer may have had all of its content on the connections before.
        if self._event_ids is not None and self._event_ids.contents and not self.has_content:
            self.answer = ""

    def count(self, **counters: Any) -> None:
        """Take counts by the names of their columns."""
        for name, value in counters.items():
            self.usage.count(name, value)

    def read_usage(self, usage: Any) -> None:
        """Take a usage object of the protocol, whose fields the table of vendors knows."""
        self.usage.read(usage)

    @property
    def characters(self) -> int:
        """Return how many characters of content have come."""
        return self._taken_chars + sum(self.fresh.chars)

    def take(self) -> tuple[int, Chunks]:
        """Return the chunks since the last call, with the index of the first."""
        first_index = self.taken
        chunks = self.fresh
        self._taken_chars += sum(chunks.chars)
        self.taken += len(chunks)
        self.fresh = Chunks()
        return first_index, chunks


def _with_event_ids(event_ids: EventIds, splitter: IdSplitter, on_event: OnEvent) -> OnEvent:
    """Return `on_event` followed by a note of the event's id, and of the problem that the id shows."""

    def on_event_with_id(decoder: StreamDecoder, name: bytes, data: Any) -> None:
        chunks_before = decoder.chunks
        value = splitter.ids.popleft()
        event_id = None if value is None else id_of(value)
        try:
            on_event(decoder, name, data)
        finally:
            event_ids.receive(event_id, has_content=decoder.chunks > chunks_before)
            if event_ids.problem is not None:
                decoder.violate(*event_ids.problem)

    return on_event_with_id


def _chunks_of(columns: Columns) -> Chunks:
    chunks = Chunks(kind=bytearray(columns.kind))
    chunks.arrived.frombytes(columns.arrived)
    chunks.low.frombytes(columns.low)
    chunks.read_at.frombytes(columns.read_at)
    chunks.read_index.frombytes(columns.read_index)
    chunks.chars.frombytes(columns.chars)
    return chunks


_MESSAGE_STATUSES = frozenset({200})
_JOB_STATUSES = frozenset({200, 201, 202, 204})  # accepted, or done without a body
_MALFORMED = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


def tree_of(data: bytes) -> Any:
    """Return the JSON of an event; ValueError where it is none.

    jiter reads it five times as fast as Python's parser, which decides about what jiter refuses.
    """
    try:
        return jiter.from_json(data)
    except ValueError:
        # Bytes are decoded first: `loads` would take UTF-16 or a byte order mark, which no SDK takes.
        return json.loads(data.decode())


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "no JSON"
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        return f"no field {shown(error.args[0], _SHOWN)!r}"
    if isinstance(error, RecursionError):
        return "JSON nested too deep"
    return "a field is not what the protocol says"


def text_or_none(value: Any) -> str | None:
    """Return a short string that the peer sent; None where it is something else."""
    return shown(value, _SHOWN) if isinstance(value, str) else None


def stop_details_text(details: dict[str, Any]) -> str | None:
    """Return the category of a refusal and its explanation, which Messages have in `stop_details`."""
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
    """The tool calls of one answer, by a key: the index of the call, with its id or a number of our own."""

    def __init__(self) -> None:
        self.open: dict[Any, str] = {}  # names of the calls that are not complete
        self.shares_index = False  # two calls have had one index
        self._last_key: dict[Any, tuple[Any, Any]] = {}  # by index
        self.ready_at_ns: dict[str, int] = {}  # by name
        self.is_new = False  # the last piece began a call
        self._names: dict[Any, str] = {}  # of all calls: the id, or a number

    def key(self, index: Any, call_id: Any, *, has_name: bool) -> tuple[Any, Any]:
        """Return the key of a piece. It is a new one where another call begins at the same index, or without an index."""
        last_key = self._last_key.get(index)
        if last_key is None:
            self._last_key[index] = (index, call_id or 0)
            return self._last_key[index]
        last_id = last_key[1]
        if has_name and call_id and call_id != last_id:
            self.shares_index = True
            self._last_key[index] = (index, call_id)
        elif has_name and not call_id and isinstance(last_id, int):
            # Without ids, a name begins a call: only its first piece has one.
            self.shares_index |= index is not None
            self._last_key[index] = (index, last_id + 1)
        return self._last_key[index]

    @property
    def count(self) -> int:
        """Return how many calls have begun."""
        return len(self._names)

    def piece(self, key: Any, call_id: Any, *, has_input: bool) -> None:
        """Take a piece of a call. More input of one that seemed complete opens it again: calls may be interleaved."""
        self.is_new = key not in self._names
        if self.is_new and len(self._names) < MAX_TOOLS:
            name = f"#{len(self._names)}"
            if isinstance(call_id, str) and call_id:
                name = shown(call_id, MAX_NAME)
            self._names[key] = name
            self.open[key] = name
        elif has_input and key in self._names and key not in self.open:
            self.open[key] = self._names[key]
            self.ready_at_ns.pop(self._names[key], None)

    def open_except(self, key: Any) -> list[Any]:
        """Return the keys of all open calls but this one."""
        return [open_key for open_key in self.open if open_key != key]

    def ready(self, key: Any, at_ns: int) -> None:
        """Note that a call is complete."""
        self.ready_at_ns.setdefault(self.open.pop(key), at_ns)


class FirstField:
    """Finds when the first field of a JSON answer is usable, while the answer still comes.

    A field is the first complete plain value: a string that is closed, or a number, true, false or null whose end is
    certain. Text that is no JSON has no field. The answer's text is followed, and the input of its tools: prose before a
    tool call has no field. jiter parses unfinished JSON.
    """

    def __init__(self) -> None:
        # By kind of content; None: no JSON, or too much to follow.
        self._texts: dict[int, str | None] = {}

    @property
    def held(self) -> int:
        """Return about how many bytes the texts take."""
        return sum(map(len, filter(None, self._texts.values())))

    def feed(self, kind: int, text: str) -> bool:
        """Take the next piece of this kind of content; return whether it completed the first field.

        Text that is no JSON, or too long, is not followed any more: None is kept instead of it.
        """
        text_before = self._texts.get(kind, "")
        if text_before is None:
            return False
        full_text = text_before + text
        if len(full_text) > MAX_FOLLOWED:
            self._texts[kind] = None
            return False
        self._texts[kind] = full_text
        # Most pieces can complete nothing, and are not worth the parsing.
        if _MAY_END.isdisjoint(text) and full_text.lstrip()[:1] in _OPENS:
            return False
        try:
            # Unfinished JSON is read as far as it goes.
            tree = jiter.from_json(full_text.encode("utf-8", "replace"), partial_mode="on")
        except ValueError:
            tree = None
        if not isinstance(tree, dict | list):
            self._texts[kind] = None
            return False
        return _has_value(tree, full_text[-1])


def _has_value(tree: Any, last_character: str) -> bool:
    """Return whether the first plain value of unfinished JSON is complete; `last_character`: of its text."""
    leaves = _leaves(tree)
    first_leaf = next(leaves, _NONE)
    if first_leaf is _NONE:
        return False
    is_number = isinstance(first_leaf, int | float) and not isinstance(first_leaf, bool)
    if not is_number or next(leaves, _NONE) is not _NONE:
        return True
    # More digits of the number may come.
    return last_character not in _NUMBER_GOES_ON


_NONE = object()


def _leaves(tree: Any) -> Iterator[Any]:
    """Yield the plain values of a tree in their order."""
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value)
    else:
        yield tree
