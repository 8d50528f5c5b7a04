"""Raw answers of one worker in a file, for `--keep-answers`: which are kept, their redaction, and writing beside the hub.

Kept are the first answers of the run and of the preflight, and the first of each outcome (`ended`) in either. Each is
written and flushed once it has ended. A failure to write ends the run, as one of the recorder does.
"""

from __future__ import annotations

from collections import deque
from itertools import groupby
from pathlib import Path
from typing import Any

from gevent import get_hub

from tailgauge.clock import monotonic_ns
from tailgauge.rows.answer_file import CLOSED, COMPLETE, LEFT, RESET, RawAnswer, Read, answer_text
from tailgauge.rows.disk import advice
from tailgauge.rows.recorder import RecorderError
from tailgauge.rows.schema import PREFLIGHT, AttemptRow
from tailgauge.transport import capture as captures
from tailgauge.transport.capture import Capture, OpenBytes
from tailgauge.transport.exchange import STALE, Exchange
from tailgauge.worker.raw_redaction import redact

MAX_PREFLIGHT = 8  # answers of the preflight, beside the first of each outcome
MAX_FILE = 64 << 20  # raw bytes of all kept answers
_FACTS = (
    "request_id",
    "leg",
    "attempt",
    "stage",
    "traffic",
    "protocol",
    "ended",
    "error_type",
    "status",
)
_PEER_ENDS = {captures.CLOSED: CLOSED, captures.RESET: RESET}


class KeptAnswers:
    """The first `limit` answers of a run, and the first of each outcome, in the file at `path`.

    `written`: answers in the file. Called on the hub; files are written on a thread of its pool.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path = path
        self._limit = limit
        self._open = OpenBytes()
        self._numbers = {True: 0, False: 0}  # of kept answers, by whether of the preflight
        self._outcomes: set[tuple[bool, str]] = set()
        self._bytes = 0
        self._waiting: deque[RawAnswer] = deque()
        self._writing: Any = None
        self._error: RecorderError | None = None
        self.written = 0

    def capture(self) -> Capture | None:
        """Return what an exchange puts its answer into; None where nothing more is kept."""
        if self._bytes >= MAX_FILE or self._error is not None:
            return None
        return Capture(self._open)

    def ended(self, row: AttemptRow, exchange: Exchange) -> None:
        """Keep the answer of a call, or drop it."""
        capture = exchange.capture
        if capture is None or capture.open_bytes is not self._open:
            return
        capture.release()
        sent_at_ns = exchange.left_at_ns
        is_stale = exchange.failure is not None and exchange.failure[0] == STALE
        if sent_at_ns is None or is_stale or not self._wants(row):
            return
        self._bytes += capture.size
        self._waiting.append(_raw_answer(row, exchange, capture, sent_at_ns))
        self._write_soon()

    def _wants(self, row: AttemptRow) -> bool:
        """Return whether the answer of this row is kept; counts it."""
        is_preflight = row.stage == PREFLIGHT
        outcome = (is_preflight, row.ended)
        limit = MAX_PREFLIGHT if is_preflight else self._limit
        if self._numbers[is_preflight] >= limit and outcome in self._outcomes:
            return False
        self._numbers[is_preflight] += 1
        self._outcomes.add(outcome)
        return True

    def check(self) -> None:
        """Raise RecorderError if an answer could not be written."""
        self._write_soon()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Write what waits. Raises RecorderError if an answer could not be written."""
        while self._writing is not None or self._waiting:
            self._write_soon()
            if self._writing is not None:
                self._writing.get()
                self._writing = None
        if self._error is not None:
            raise self._error

    def _write_soon(self) -> None:
        if self._writing is not None and self._writing.ready():
            self._writing.get()  # errors were caught on the thread; this only joins it
            self._writing = None
        if self._writing is None and self._waiting:
            self._writing = get_hub().threadpool.spawn(self._write)

    def _write(self) -> None:
        """Append what waits; on the writer's thread."""
        while self._waiting:
            answer = self._waiting.popleft()
            if self._error is not None:
                continue
            try:
                _append(self._path, answer_text(self.written + 1, _redacted(answer)))
            except OSError as error:
                cause = f"an answer could not be written: {advice(error, self._path)}"
                self._error = RecorderError(f"{self._path}: {cause}")
            else:
                self.written += 1


def _raw_answer(
    row: AttemptRow, exchange: Exchange, capture: Capture, sent_at_ns: int
) -> RawAnswer:
    """Return a captured answer with its times since the request was sent."""
    facts = {name: getattr(row, name) for name in _FACTS}
    end_at_ns = max(0, (exchange.ended_at_ns or monotonic_ns()) - sent_at_ns)
    reads: list[Read] = []
    # Bytes of one read came as several where TLS was decrypted or a head ended in them.
    for arrived_at_ns, pieces in groupby(capture.reads, key=lambda read: read[0]):
        previous_at_ns = reads[-1].at_ns if reads else 0
        data = b"".join([piece for _, piece in pieces])
        reads.append(Read(max(previous_at_ns, arrived_at_ns - sent_at_ns), data))
    if reads:
        end_at_ns = max(end_at_ns, reads[-1].at_ns)
    return RawAnswer(
        facts=facts,
        method=capture.method,
        end=_end(exchange, capture),
        end_at_ns=end_at_ns,
        reads=reads,
        left_out_bytes=capture.left_out_bytes,
    )


def _end(exchange: Exchange, capture: Capture) -> str:
    """Return how the connection of an answer ended."""
    if capture.peer_end is not None:
        return _PEER_ENDS[capture.peer_end]
    if exchange.aborted or exchange.failure or exchange.cut:
        return LEFT
    return COMPLETE


def _redacted(answer: RawAnswer) -> RawAnswer:
    """Return the answer without secrets, also those that two reads share."""
    data = redact(answer.data)
    begin = 0
    for number, read in enumerate(answer.reads):
        end = begin + len(read.data)
        answer.reads[number] = Read(read.at_ns, data[begin:end])
        begin = end
    return answer


def _append(path: Path, text: str) -> None:
    """Append a text to a file as a whole, or leave the file as it was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = memoryview(text.encode("utf-8"))
    with path.open("ab", buffering=0) as file:
        size = file.tell()
        try:
            while data:
                data = data[file.write(data) :]
        except OSError:
            file.truncate(size)
            raise
