"""Files of raw answers: what `--keep-answers` writes and `tailgauge endpoint --replay` reads.

JSON Lines. A line with `answer` begins an answer, the lines below it are its reads in their order, one with `end` ends it:

    {"answer": 1, "format": 1, "method": "POST", "ended": "ok", ...}
    {"at_ms": 31.204117, "text": "HTTP/1.1 200 OK\\r\\n..."}
    {"at_ms": 40.310882, "base64": "8J+Y"}
    {"end": "complete", "at_ms": 40.310882, "left_out_bytes": 0}

Times are ms since the first byte of the request was sent. A read is text where it is UTF-8, else base64.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailgauge.errors import ScenarioError
from tailgauge.rows.text_file import json_object, text_lines

FORMAT = 1
COMPLETE = "complete"  # the answer ended by its framing
CLOSED = "closed"  # the target closed the connection
RESET = "reset"  # the connection failed
LEFT = "client"  # this client closed it: cancelled, timed out, or not HTTP
ENDS = (COMPLETE, CLOSED, RESET, LEFT)
MAX_BYTES = 256 << 20  # of all answers of a file
LONGEST_MS = 86_400_000
_SHOWN = 60  # characters of a line in an error
# What JSON leaves as it is and a terminal may act on.
_CONTROL = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]")


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes that arrived together, in ns since the request was sent."""

    at_ns: int
    data: bytes


@dataclass(slots=True)
class RawAnswer:
    """One answer as it arrived. `facts` of its call: request, outcome and the like."""

    facts: Mapping[str, Any]
    method: str  # of the request
    end: str  # one of ENDS
    end_at_ns: int
    reads: list[Read] = field(default_factory=list)
    left_out_bytes: int = 0  # beyond the bounds of what is kept

    @property
    def data(self) -> bytes:
        """All bytes."""
        return b"".join([read.data for read in self.reads])


def answer_text(number: int, answer: RawAnswer) -> str:
    """Return the lines of an answer."""
    head = {"answer": number, "format": FORMAT, "method": answer.method, **answer.facts}
    end = {
        "end": answer.end,
        "at_ms": answer.end_at_ns / 1e6,
        "left_out_bytes": answer.left_out_bytes,
    }
    values = [head, *map(_read_line, answer.reads), end]
    return "".join([f"{_plain_json(value)}\n" for value in values])


def _read_line(read: Read) -> dict[str, Any]:
    line: dict[str, Any] = {"at_ms": read.at_ns / 1e6}
    try:
        line["text"] = read.data.decode("utf-8")
    except UnicodeDecodeError:
        line["base64"] = base64.b64encode(read.data).decode("ascii")
    return line


def _plain_json(value: Any) -> str:
    """JSON that a person can read and that no terminal acts on."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def read_answers(path: Path) -> list[RawAnswer]:
    """Return every answer of a file. ScenarioError with file and line where it is not such a file."""
    answers = list(_answers(path))
    if not answers:
        raise ScenarioError(f"{path}: is empty: expected answers as --keep-answers writes them")
    return answers


def _answers(path: Path) -> Iterator[RawAnswer]:
    """Yield the answers of a file, each at its last line.

    ScenarioError with file and line for what is not such a file, for an answer without an end, and for too
    many bytes in all.
    """
    answer: RawAnswer | None = None
    begins_on_line = 0
    size = 0
    for number, text in text_lines(path):
        where = f"{path}:{number}"
        line = json_object(path, number, text)
        if answer is None:
            answer = _begun(where, line, text)
            begins_on_line = number
        elif "end" in line:
            _end(where, line, answer)
            yield answer
            answer = None
        elif "answer" in line:
            raise ScenarioError(f"{where}: {_no_end(begins_on_line)}")
        else:
            read = _read(where, line, answer)
            answer.reads.append(read)
            size += len(read.data)
            if size > MAX_BYTES:
                problem = f"expected at most {MAX_BYTES >> 20} MiB of answers"
                raise ScenarioError(f"{where}: {problem}: delete some of them")
    if answer is not None:
        raise ScenarioError(f"{path}:{begins_on_line}: {_no_end(begins_on_line)}")


def _no_end(line: int) -> str:
    advice = (
        'expected a line with "end" below its reads: delete this answer, or restore its last line'
    )
    return f"the answer that begins on line {line} has no end: {advice}"


def _begun(where: str, line: Mapping[str, Any], text: str) -> RawAnswer:
    """Return an answer by its first line."""
    version = line.get("format")
    if "answer" not in line or not _is_whole(version):
        advice = 'expected a line that begins an answer of --keep-answers, {"answer": 1, "format": 1, ...}'
        raise ScenarioError(f"{where}: {advice}, got {text[:_SHOWN]!r}")
    if version != FORMAT:
        raise ScenarioError(
            f"{where}: format: expected {FORMAT}, got {version}: use the version that wrote it"
        )
    method = line.get("method", "POST")
    if method not in {"GET", "POST"}:
        raise ScenarioError(
            f'{where}: method: expected "GET" or "POST", got {str(method)[:_SHOWN]!r}'
        )
    keys = {"answer", "format", "method"}
    facts = {key: value for key, value in line.items() if key not in keys}
    return RawAnswer(facts, method, end=LEFT, end_at_ns=0)


def _read(where: str, line: Mapping[str, Any], answer: RawAnswer) -> Read:
    """Return a read that follows those of an answer so far."""
    at_ns = _time(where, line, answer)
    contents = [key for key in ("text", "base64") if isinstance(line.get(key), str)]
    if len(contents) != 1:
        raise ScenarioError(
            f'{where}: expected "text" or "base64" with the bytes of a read, as a string'
        )
    if contents == ["text"]:
        try:
            return Read(at_ns, line["text"].encode("utf-8"))
        except UnicodeEncodeError:
            raise ScenarioError(
                f"{where}: text: expected UTF-8, got half of a surrogate pair"
            ) from None
    try:
        return Read(at_ns, base64.b64decode(line["base64"], validate=True))
    except binascii.Error as error:
        raise ScenarioError(f"{where}: base64: {error}") from None


def _end(where: str, line: Mapping[str, Any], answer: RawAnswer) -> None:
    """Take how and when an answer ended from its last line."""
    if line["end"] not in ENDS:
        expected = ", ".join(ENDS)
        raise ScenarioError(
            f"{where}: end: expected one of {expected}, got {str(line['end'])[:_SHOWN]!r}"
        )
    left_out = line.get("left_out_bytes", 0)
    if not _is_whole(left_out) or left_out < 0:
        raise ScenarioError(f"{where}: left_out_bytes: expected a whole number, at least 0")
    answer.end = line["end"]
    answer.end_at_ns = _time(where, line, answer)
    answer.left_out_bytes = left_out


def _time(where: str, line: Mapping[str, Any], answer: RawAnswer) -> int:
    """Return the time of a line in ns, which no line before is later than."""
    at_ms = line.get("at_ms")
    if (
        not isinstance(at_ms, int | float)
        or isinstance(at_ms, bool)
        or not 0 <= at_ms <= LONGEST_MS
    ):
        raise ScenarioError(f"{where}: at_ms: expected a time in ms, from 0 to {LONGEST_MS:,}")
    at_ns = round(at_ms * 1e6)
    if answer.reads and at_ns < answer.reads[-1].at_ns:
        raise ScenarioError(f"{where}: at_ms: expected no time before that of the line above")
    return at_ns


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
