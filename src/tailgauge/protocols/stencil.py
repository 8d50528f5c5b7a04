"""A stencil is what the content events of a target have in common: the bytes around their text, and around values that change
without a meaning, such as the time, log probabilities, or padding.

It is taken from an event that was read in full, and confirmed by reading another in full, with another text and other values
in the same places. What has the same bytes around complete JSON values then means the same with that text, by the grammar of
JSON. Whatever differs otherwise is left to the full reading, and so is the last of several events that carry running counts.
Where values change behind the text, `_holes.c` compares, or a pattern where that was not compiled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from tailgauge.protocols.sse_parser import Splitter
from tailgauge.rows import schema

try:
    from tailgauge.protocols import _holes
except ImportError:
    _holes = None  # type: ignore[assignment]

FREE = "free"  # a value that is not read once the model is known
COUNT = "count"  # a running count, which grows: the last one counts
SAME = "same"  # a count that is subtracted from another: it must not change within what is decoded at once
OnEvent = Callable[[Any, bytes, Any], None]
Rest = Callable[[bytes, int], Sequence[bytes] | None]  # from a place on: the text, and what must not change
Plain = tuple[
    bytes, tuple[bytes, ...], bool
]  # kinds of values, the bytes around each, whether they carry counts
Changing = Mapping[str, str]  # what may change, by its path in an event's JSON: keys, without places in lists

_TEXT = "text"
_TEXT_CODE = schema.CHUNK_KINDS.index(schema.TEXT)
_OTHER = "another text in the same place"
_ENDS = b"\r\n"  # of a chunk of HTTP/1.1
_MOST = 64  # stencils of a target; it may have no fixed form at all
_LOOKS = 64  # events from which to learn until one is of use: each takes as long as twenty are read
_TRIED = 4  # stencils that are tried for a read
_LEARNT = 8192  # bytes of an event from which to learn: a pattern takes twenty times as much
_KNOWN = 10_000  # texts that are remembered: the words of a language come again and again
_WORD = 64  # bytes of such a text
_TEXTS: dict[bytes, str] = {}
_SIZES: dict[int, bytes] = {}  # by the length of a read: its first line

_PLAIN = rb'[^"\\\x00-\x1f]*+'
_STRING = rb'%b(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})%b)*+' % (_PLAIN, _PLAIN)
_DIGITS = rb"(?!0[0-9])[0-9]{1,11}+"
_NUMBER = rb"-?(?!0[0-9])[0-9]{1,18}+(?:\.[0-9]{1,30}+)?+(?:[eE][+-]?[0-9]{1,3}+)?+"
_NUMBERS = rb"\[(?:%b(?:, ?%b)*+)?\]" % (_NUMBER, _NUMBER)
_BYTES = rb"\[(?![0-9,]*(?:,,|,0[0-9]))(?!,|0[0-9])[0-9,]*+(?<!,)\]"  # the same for a list of plain digits, but faster
_HOLES = {"string": b'"%b"' % _STRING, "number": _NUMBER, "numbers": _NUMBERS}
_AFTER = (b",", b"]", b"}", b" ")  # what may follow a value
_KINDS = {"string": "s", "number": "n", "numbers": "l"}  # of `_json.h`
_OTHERS = {"string": b'"other"', "number": b"7", "numbers": b"[7, 7]"}
_TOKEN = re.compile(
    rb'(?P<key>"(?:[^"\\]|\\.)*+"(?=\s*:))|(?P<string>"(?:[^"\\]|\\.)*+")|(?P<number>%b)|(?P<numbers>%b)'
    rb"|(?P<open>[{\[])|(?P<close>[}\]])" % (_NUMBER, _NUMBERS)
)


class Stencil:
    """Reads that are one HTTP chunk with one content event of this kind."""

    __slots__ = (
        "_counts",
        "_fixed",
        "_head",
        "_match_head",
        "_match_rest",
        "_of_head",
        "_shape",
        "_tail",
        "kind",
        "same",
    )

    def __init__(
        self, head: bytes, rest: Rest, tail: bytes | None, kind: int, shape: tuple[str, tuple[bytes, ...]], *, counts: bool
    ) -> None:  # fmt: skip
        """`head` is the pattern of what is before the text, and `rest` reads the rest; `tail` is what follows it, where
        that never changes. What the groups of `head` match must not change. `shape` is all of it; see `_shape`."""
        self.kind = kind
        self._counts = counts
        self._shape = shape
        self.same: tuple[bytes, ...] = ()  # what must not change, in the read that it served last
        first = re.compile(head)
        self._match_head = first.match
        self._match_rest = rest
        self._fixed = first.groups > 0
        self._tail = None if tail is None else b'"%b' % tail + _ENDS
        self._head: bytes | None = None  # that served last, and what must not change of it
        self._of_head: tuple[bytes, ...] = ()

    def plain(self, same: Sequence[bytes]) -> Plain:
        """What its reads have in common where these values do not change."""
        kinds, (first, *parts) = self._shape
        values = iter(same)
        left = ""
        around = [first]
        for kind, part in zip(kinds, parts, strict=True):
            if kind.isupper():
                around[-1] += next(values) + part
            else:
                left += kind
                around.append(part)
        return left.encode(), tuple(around), self._counts

    def texts(self, reads: Sequence[bytes], begin: int) -> list[str]:
        """The texts of the reads from number `begin` on, as long as they are of this stencil; none is empty."""
        found: list[str] = []
        sizes = _SIZES
        known = _TEXTS
        match_rest = self._match_rest
        tail = self._tail
        head = self._head
        end = -len(tail or b"")
        same = list[bytes]()
        others = same
        for read in islice(reads, begin, None):
            size = sizes.get(len(read)) or _size(len(read))
            at = len(size)
            if head is None or not read.startswith(head, at):
                other = self._match_head(read, at)
                if other is None or (self._fixed and found) or not _is_utf8(other[0]):
                    break
                head = self._head = other[0]
                self._of_head = other.groups()
            at += len(head)
            if not read.startswith(size):
                break
            if tail:
                string = read[at:end] if read.endswith(tail) else b""
            elif rest := match_rest(read, at):
                string, *others = rest
                if others != same and found:
                    break
                same = others
            else:
                break
            text = known.get(string) or _text(string)
            if not text:
                break
            found.append(text)
        self.same = (*self._of_head, *same)
        if self._counts and found:
            found.pop()
        return found


def _rest(pattern: bytes, kinds: str, parts: tuple[bytes, ...]) -> Rest:
    """What reads the rest of an event: by its kinds of holes and what is behind each where that is compiled, or its pattern."""
    if _holes is not None:
        return partial(_holes.match, kinds, parts)
    match = re.compile(b'(%b)"%b' % (_STRING, pattern) + _ENDS).fullmatch
    return lambda read, at: (
        found.groups() if (read.isascii() or _is_utf8(read)) and (found := match(read, at)) else None
    )


def _size(length: int) -> bytes:
    """The first line of a chunk of so many bytes on the wire."""
    digits = next(n for n in range(1, 17) if length - len(_ENDS) * 2 - n < 16**n)
    line = b"%0*x\r\n" % (digits, max(0, length - len(_ENDS) * 2 - digits))
    if length < _LEARNT:
        _SIZES[length] = line
    return line


def _is_utf8(read: bytes) -> bool:
    try:
        read.decode()
    except ValueError:
        return False
    return True


def _text(string: bytes) -> str | None:
    """The text that these bytes are between two quotation marks of JSON; empty or None where they are none."""
    try:
        text = string.decode()
        if not text.isprintable() or '"' in text or "\\" in text:
            text = json.loads(f'"{text}"')
    except ValueError:
        return None
    if len(string) <= _WORD and len(_TEXTS) < _KNOWN:
        _TEXTS[string] = text
    return text


class _Witness:
    """Stands in for a decoder that knows the model. It only knows content and counts: anything else raises AttributeError."""

    __slots__ = ("contents", "counted", "finished", "model", "names_role_once", "server_blocks", "stopped")

    def __init__(self) -> None:
        self.contents: list[tuple[int, Any]] = []
        self.counted = False
        self.model = "known"
        self.finished = False
        self.names_role_once = False
        self.stopped = None
        self.server_blocks: frozenset[Any] = frozenset()

    @property
    def chunks(self) -> int:
        """How many content deltas came."""
        return len(self.contents)

    def seen(self) -> None:
        """Every event is seen."""

    def content(self, kind: int, text: Any) -> None:
        """A content delta."""
        self.contents.append((kind, text))

    def text_delta(self, text: Any) -> None:
        """A text delta."""
        self.contents.append((_TEXT_CODE, text))

    def count(self, **counters: Any) -> None:
        """Usage counters."""
        self.counted = self.counted or any(value is not None for value in counters.values())

    def read_usage(self, usage: Any) -> None:
        """A usage object."""
        self.counted = self.counted or bool(usage)


def _content(on_event: OnEvent, name: bytes, data: bytes) -> tuple[int, str, bool] | None:
    """Kind and text of an event that does nothing but bring content, and whether it counts as well."""
    witness: Any = _Witness()
    try:
        on_event(witness, name, data)
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return None
    if len(witness.contents) != 1 or not isinstance(witness.contents[0][1], str):
        return None
    return *witness.contents[0], witness.counted


class _Leaf(NamedTuple):
    """A value within an event's JSON that has no others but numbers in it."""

    begin: int
    end: int
    kind: str
    path: str


class Stencils:
    """The stencils of a target, shared by its streams. `changing` is what they leave open."""

    def __init__(self, on_event: OnEvent, changing: Changing) -> None:
        self._on_event = on_event
        self._changing = changing
        self._known: dict[tuple[bytes, bytes], Stencil] = {}  # by their patterns
        self._recent: list[Stencil] = []  # those learnt last
        self._looks = _LOOKS

    def texts(
        self, reads: Sequence[bytes], begin: int, last: Stencil | None, kinds: Sequence[int]
    ) -> tuple[Stencil | None, list[str]]:
        """The texts of the next reads, by the stencil `last`, or a recent one of these kinds."""
        if last is not None and (texts := last.texts(reads, begin)):
            return last, texts
        for stencil in self._recent:
            if stencil is not last and stencil.kind in kinds and (texts := stencil.texts(reads, begin)):
                self._looks = _LOOKS
                return stencil, texts
        return last, []

    def look(self, payload: bytes, name: bytes, data: bytes) -> None:
        """Learn from an event that was a read's whole payload and has just been read in full."""
        if not self._looks or len(payload) > _LEARNT:
            return
        self._looks -= 1
        content = _content(self._on_event, name, data)
        if content is None or not content[1] or payload.count(data) != 1 or b"\r" in payload:
            return
        leaves = list(_leaves(data))
        if any(data[leaf.end : leaf.end + 1] not in _AFTER for leaf in leaves):
            return  # a number that is too long for a pattern
        for leaf in leaves:
            if leaf.kind == "string" and json.loads(data[leaf.begin : leaf.end]) == content[1]:
                stencil = self._of(payload, data, leaves, leaf, content)
                if stencil is not None:
                    others = [one for one in self._recent if one is not stencil]
                    self._recent = [stencil, *others[: _TRIED - 1]]
                    return

    def _of(
        self, payload: bytes, data: bytes, leaves: list[_Leaf], text: _Leaf, content: tuple[int, str, bool]
    ) -> Stencil | None:
        """The stencil of an event whose text is this value, if that is confirmed."""
        kind, _, counts = content
        place = payload.index(data)
        # Where the text begins and ends.
        begin = place + text.begin + 1
        end = place + text.end - 1
        moved = [leaf._replace(begin=leaf.begin + place, end=leaf.end + place) for leaf in leaves]
        holes = [(one, change) for one in moved if (change := self._change(one)) and one.begin != begin - 1]
        before = [hole for hole in holes if hole[0].begin < begin]
        behind = [hole for hole in holes if hole[0].begin >= begin]
        patterns = (_pattern(payload[:begin], before, 0), _pattern(payload[end + 1 :], behind, end + 1))
        if (known := self._known.get(patterns)) is not None or len(self._known) >= _MOST:
            return known
        holes = [*before, (text._replace(begin=begin, end=end), _TEXT), *behind]
        other = _filled(payload, holes)
        if not self._is_confirmed(other, (kind, _OTHER, counts)):
            return None
        tail = None if behind else payload[end + 1 :]
        kinds, parts = shape = _shape(payload, holes)
        rest = _rest(patterns[1], f"T{kinds[len(before) + 1 :]}", parts[len(before) + 1 :])
        self._known[patterns] = stencil = Stencil(patterns[0], rest, tail, kind, shape, counts=counts)
        return stencil

    def _change(self, leaf: _Leaf) -> str | None:
        for path, change in self._changing.items():
            if leaf.path == path or (change == FREE and leaf.path.startswith(f"{path}/")):
                return change if change == FREE or leaf.kind == "number" else None
        return None

    def _is_confirmed(self, payload: bytes, content: tuple[int, str, bool]) -> bool:
        splitter = Splitter()
        events = splitter.feed(payload)
        if len(events) != 1 or not splitter.resting or not splitter.ended_with_event:
            return False
        return _content(self._on_event, *events[0]) == content


def _leaves(data: bytes) -> Iterator[_Leaf]:
    """The values of JSON text, in their order."""
    keys: list[str] = []
    key = ""
    for token in _TOKEN.finditer(data):
        kind = token.lastgroup
        if kind == "key":
            key = json.loads(token[0])
        elif kind == "open":
            keys.append(key)
            key = ""
        elif kind == "close":
            key = keys.pop()
        elif kind is not None:
            yield _Leaf(*token.span(), kind, "/".join(filter(None, (*keys, key))))


def _pattern(event: bytes, holes: list[tuple[_Leaf, str]], begin: int) -> bytes:
    """The pattern of a part of an event that begins at `begin`."""
    out = b""
    at = 0
    for leaf, change in holes:
        now = event[leaf.begin - begin : leaf.end - begin]
        hole = _BYTES if re.fullmatch(_BYTES, now) else _HOLES[leaf.kind]
        hole = hole if change == FREE else _DIGITS if change == COUNT else b"(%b)" % hole
        out += re.escape(event[at : leaf.begin - begin]) + hole
        at = leaf.end - begin
    return out + re.escape(event[at:])


def _shape(event: bytes, holes: list[tuple[_Leaf, str]]) -> tuple[str, tuple[bytes, ...]]:
    """The kinds of the holes, of which the text is one, and what is before, between and behind them; capitals must not change."""
    kinds = ""
    parts = []
    at = 0
    for leaf, change in holes:
        kind = {_TEXT: "t", COUNT: "c"}.get(change) or _KINDS[leaf.kind]
        kinds += kind.upper() if change == SAME else kind
        parts.append(event[at : leaf.begin])
        at = leaf.end
    return kinds, (*parts, event[at:] + _ENDS)


def _filled(event: bytes, holes: list[tuple[_Leaf, str]]) -> bytes:
    """The event with other values that may change, and another text."""
    out = b""
    at = 0
    for leaf, change in holes:
        other = {FREE: _OTHERS[leaf.kind], COUNT: b"7", _TEXT: _OTHER.encode()}.get(change)
        out += event[at : leaf.begin] + (event[leaf.begin : leaf.end] if other is None else other)
        at = leaf.end
    return out + event[at:]
