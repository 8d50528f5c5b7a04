"""What a worker does every second of a run, beside its requests. `health` measures the row of a second; this writes it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import gevent

from tailgauge import quantile_sketch
from tailgauge.channel.clock_offset import EVERY_S
from tailgauge.clock import monotonic_ns
from tailgauge.rows.recorder import RecorderError
from tailgauge.thresholds import VISIBLE_STALL_NS
from tailgauge.worker.health import Health
from tailgauge.worker.run_parts import RunParts

log = logging.getLogger("tailgauge")
FLUSH_EVERY = 4  # seconds between parts, writing included at most 5 s; multiplied by the pace
# Since the last part: from either on another part is due, whatever the pace.
MANY_CHUNKS = 1_000_000
MUCH_TEXT = 8 << 20
LOG_EVERY_S = 10


class Housekeeping:
    """The duties of every second from the start of a run: health row, parts of rows, counters for the master, clock offset.

    `closing`: nothing more is recorded. `pace`: seconds between two reports of counters.
    """

    def __init__(self, run: RunParts, pace: int) -> None:
        self._run = run
        self._pace = pace
        self.clock_offset: dict[str, int | None] = {}
        self.health: Health | None = None
        self.closing = False
        self._greenlet: Any = None
        self._cpu_share = 0.0  # of the last second
        self._stalled_s: float = 0.0
        self._chunks_recorded = 0

    def prepare(self) -> Health:
        """Begin to sample this process, for the first second."""
        run = self._run
        self.health = Health(run.counters, run.targets.transports)
        self.health.freeze()
        return self.health

    def start(self) -> None:
        """Do the duties from now on."""
        self._greenlet = gevent.spawn(self._repeat)

    def stop(self) -> None:
        """Do them no more."""
        if self._greenlet is not None:
            self._greenlet.kill()

    def _repeat(self) -> None:
        """Do every second's duties until the run has ended, also while it drains.

        The master counts a worker as lost that sends neither counters nor a pulse. The clock offset, part
        files, counters and the log each have a period of some seconds of their own.
        """
        run = self._run
        second = 0
        due_ns = monotonic_ns()
        while not run.finished.is_set():
            due_ns += 1_000_000_000
            gevent.sleep(max(0.0, (due_ns - monotonic_ns()) / 1e9))
            second += 1
            if second % EVERY_S == 0:
                self._do(self._follow_clock)
            if not self.closing:
                flush = second % (FLUSH_EVERY * self._pace) == 0
                self._do(partial(self._record_second, flush=flush))
            # Sends pieces of part files, if the master does not share the folder.
            self._do(run.delivery.sender.pump)
            if second % self._pace == 0:
                self._do(self.report_counters)
            if second % LOG_EVERY_S == 0:
                log.info("%d s: %s", second, run.counters.text())

    def _do(self, duty: Callable[[], object]) -> None:
        """Do one duty. Whatever becomes of it, the others follow: without them the worker would count as lost."""
        state = self._run.state
        try:
            duty()
        except RecorderError as error:
            state.fail(str(error))
        except Exception as error:  # noqa: BLE001 - it ends the run in order
            state.on_error(error)

    def _follow_clock(self) -> None:
        clock = self._run.clock
        if not clock.is_same_clock:
            self.clock_offset = clock.offset()
            clock.ping()

    def _record_second(self, *, flush: bool) -> None:
        """Write the health row of the second; pass rows to a new part file, if one is due.

        `flush`: one is due by its time. Much text or many chunks make it due earlier. Raises RecorderError
        if an earlier part or a raw answer could not be written. A process that is short of memory ends the
        run.
        """
        run = self._run
        recorder = run.recorder
        attempts = run.attempts
        attempts.decode_open()
        self.close_second()
        has_much_text = recorder.text_size > MUCH_TEXT
        has_many_chunks = run.counters.chunks - self._chunks_recorded > MANY_CHUNKS
        if flush or has_much_text or has_many_chunks:
            self._chunks_recorded = run.counters.chunks
            attempts.record_open()
            recorder.flush()
        recorder.check()
        if attempts.answers is not None:
            attempts.answers.check()
        if run.state.limits.is_short():
            run.state.on_error(MemoryError())

    def close_second(self) -> None:
        """Write the health row of the second that ends now."""
        assert self.health is not None
        run = self._run
        row = self.health.row(run.attempts.in_flight(), run.recorder.waiting_rows)
        run.recorder.health(row)
        late_ns = max(row.loop_lag_max_ns, row.dispatch_late_max_ns)
        self._cpu_share = row.cpu_share
        self._stalled_s = 0.0
        if late_ns > VISIBLE_STALL_NS:
            self._stalled_s = late_ns / 1e9

    def report_counters(self) -> None:
        """Send the counters to the master."""
        self._run.send("counters", self.counters_message())

    def counters_message(self) -> dict[str, Any]:
        """Return what the master shows and judges while the run lasts."""
        run = self._run
        counters = run.counters
        traffic = [[*key, counts.as_message()] for key, counts in counters.traffic.items()]
        return {
            "counts": counters.as_message(),
            "in_flight": counters.in_flight,
            "waiting": counters.waiting,
            "slot_wait_ns": run.dispatcher.slot_wait_ns,
            "chunks": counters.chunks,
            "rejections": asdict(counters.rejections),
            "traffic": traffic,
            "watch": {
                "delays": quantile_sketch.packed(counters.delays),
                "cpu": self._cpu_share,
                "stalled_s": self._stalled_s,
            },
            "clock": self.clock_offset,
            "unshipped": run.delivery.sender.waiting,
        }
