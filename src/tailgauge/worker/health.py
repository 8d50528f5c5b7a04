"""Health rows, one per second: could the worker have been the bottleneck? And what the system allows this process.

These figures explain results and never change them. Garbage collection is split: young objects in steps of some hundred
microseconds, older generations (pauses of tens of milliseconds) rarely. The longest pause of a second is recorded.
"""

from __future__ import annotations

import gc
import mmap
import os
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import gevent
import psutil

from tailgauge.clock import WALL, monotonic_ns
from tailgauge.errors import UsageError
from tailgauge.rows.disk import MEGABYTE
from tailgauge.rows.schema import HealthRow
from tailgauge.scenario.model import Scenario
from tailgauge.transport.connection import SPARE_DESCRIPTORS
from tailgauge.transport.http_transport import HttpTransport
from tailgauge.transport.losses import HAS_TCP_INFO
from tailgauge.transport.reader import READER
from tailgauge.worker.counters import Counters

_PROBE_S = 0.05
STALL_NS = 500_000_000  # without a turn of the loop
_JUST_NOW_NS = 1_000_000_000
_YOUNG = 20_000  # surviving new objects that trigger a collection of the youngest generation: a stop of some milliseconds
_NEVER = 1 << 30  # collections before the next generation's turn
_OLDER_EVERY = 15  # seconds between collections of the middle generation


class ProcessFile:
    """A file of /proc that is read every second, by a descriptor of its own: it can be read when no other is left."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = -1
        self._descriptor = -1

    def numbers(self) -> list[int]:
        """Return the numbers in it. Raises OSError where the system has no such file."""
        if self._process != os.getpid():  # what a parent has opened shows the parent
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            self._process = os.getpid()
        return [int(text) for text in os.pread(self._descriptor, 4096, 0).split()]


# Of the main thread: time on a core, time waiting for one, switches.
_SCHEDULED = ProcessFile("/proc/self/schedstat")
_SIZE = ProcessFile("/proc/self/statm")  # address space, resident memory, and others, in pages


class Health:
    """Samples a worker; `row` closes the current second."""

    def __init__(self, counters: Counters, transports: Sequence[HttpTransport] = ()) -> None:
        """Begin to sample this process: watch garbage collections and, in a greenlet, the event loop, until `close`.

        `transports`: whose connections and waits are counted.
        """
        self._counters = counters
        self._transports = transports
        counters.second.close(READER.lags())  # drop what came before this run
        self._lag_max_ns = 0
        self._rows = 0
        self._probed_ns = monotonic_ns()
        self._stalled_ns = 0
        self._cpu_s = time.process_time()
        self._at_ns = monotonic_ns()
        self._core_wait_ns = _core_wait_ns()
        self._gc_began_ns = 0
        self._gc_ns = 0
        self._thresholds = gc.get_threshold()
        gc.callbacks.append(self._on_gc)
        self._probe = gevent.spawn(self._watch_loop)

    def freeze(self) -> None:
        """Collect only young objects from now on."""
        gc.collect()
        gc.freeze()
        self._thresholds = gc.get_threshold()
        gc.set_threshold(_YOUNG, _NEVER, _NEVER)
        gc.enable()
        self._gc_ns = 0

    def row(self, in_flight: int, queued_rows: int) -> HealthRow:
        """Return the row of the second that ends now, and begin the next second.

        `in_flight`: calls; `queued_rows`: rows that wait to be written. Counts are totals since the start
        of the run; lags, pauses and the share of the CPU are of this second. Also follows the wall clock,
        and collects garbage.
        """
        counters = self._counters
        transports = self._transports
        clock_step_ns = WALL.refresh()
        # A collection each second, so that new objects rarely trigger one: this one examines what is open and the rows of a
        # second. The middle generation (1) has its turn every 15 s.
        generation = int(self._rows % _OLDER_EVERY == _OLDER_EVERY - 1)
        gc.collect(generation)
        # Median, p99 and maximum of this second, which ends here.
        receive_lag, late = counters.second.close(READER.lags())
        # Sums by the kernel, since the start: a few connections are read each time, in rotation.
        lost = [transport.losses.look() for transport in transports]
        core_wait_ns = _core_wait_ns()
        now_ns = monotonic_ns()
        cpu_s = time.process_time()
        _, resident_bytes = _memory()
        elapsed_s = max(1e-9, (now_ns - self._at_ns) / 1e9)
        row = HealthRow(
            at_ns=now_ns,
            queued_rows=queued_rows,
            clock_step_ns=clock_step_ns,
            in_flight=in_flight,
            scheduled=counters.leased,
            dispatched=counters.dispatched,
            ended=sum(counters.ended.values()),
            client_drops=counters.client_drop,
            chunks=counters.chunks,
            reads=counters.reads,
            chunk_intervals=counters.chunk_intervals,
            first_chunks=counters.first_chunks,
            first_intervals=counters.first_intervals,
            cpu_share=(cpu_s - self._cpu_s) / elapsed_s,
            gc_pause_ns=self._gc_ns,
            loop_lag_max_ns=self._lag_max_ns,
            rss_bytes=resident_bytes,
            receive_lag_p50_ns=receive_lag[0],
            receive_lag_p99_ns=receive_lag[1],
            receive_lag_max_ns=max(counters.receive_lag_max_ns, receive_lag[2]),
            dispatch_late_p99_ns=late[1],
            dispatch_late_max_ns=late[2],
            pool_waits=sum(transport.waits for transport in transports),
            pool_wait_max_ns=max((transport.wait_max_ns for transport in transports), default=0),
            retransmits=None,
            out_of_order=None,
            core_wait_ns=None,
            read_wait_max_ns=READER.longest_wait_ns(),
        )
        if HAS_TCP_INFO:
            row.retransmits = sum(sent_again for sent_again, _ in lost)
            row.out_of_order = sum(out_of_order for _, out_of_order in lost)
        if core_wait_ns is not None:
            row.core_wait_ns = core_wait_ns - (self._core_wait_ns or 0)
        self._cpu_s = cpu_s
        self._at_ns = now_ns
        self._core_wait_ns = core_wait_ns
        self._lag_max_ns = 0
        self._gc_ns = 0
        counters.receive_lag_max_ns = 0
        for transport in transports:
            transport.wait_max_ns = 0
        self._rows += 1
        return row

    def has_stalled(self) -> bool:
        """Return whether this process did not run for a while that has just ended."""
        now_ns = monotonic_ns()
        if now_ns - self._probed_ns > STALL_NS:
            self._stalled_ns = now_ns
        return now_ns - self._stalled_ns < _JUST_NOW_NS

    def close(self) -> None:
        """Stop sampling and give the collector back to Python."""
        self._probe.kill()
        gc.callbacks.remove(self._on_gc)
        gc.set_threshold(*self._thresholds)
        gc.enable()
        gc.unfreeze()

    def _on_gc(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._gc_began_ns = monotonic_ns()
        else:
            self._gc_ns = max(self._gc_ns, monotonic_ns() - self._gc_began_ns)

    def _watch_loop(self) -> None:
        while True:
            due_ns = monotonic_ns() + int(_PROBE_S * 1e9)
            gevent.sleep(_PROBE_S)
            self.has_stalled()
            self._probed_ns = monotonic_ns()
            self._lag_max_ns = max(self._lag_max_ns, self._probed_ns - due_ns)


def _core_wait_ns() -> int | None:
    """Return the time that the main thread has waited for a core; None if the system does not report it."""
    try:
        return _SCHEDULED.numbers()[1]
    except (OSError, IndexError, ValueError):
        return None


def _memory() -> tuple[int, int]:
    """Return address space and resident memory of this process, in bytes; 0 and the most ever where the system does not say."""
    if sys.platform != "linux":
        info = psutil.Process().memory_info()
        return info.vms, info.rss
    try:
        pages = _SIZE.numbers()
    except OSError:  # no descriptor was left when it was opened
        return 0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages[0] * mmap.PAGESIZE, pages[1] * mmap.PAGESIZE


RESERVE = 64 * MEGABYTE  # of address space: what writing the rows may take
NO_MEMORY = (
    "no memory is left (RLIMIT_AS {:,.0f} MB): raise it (ulimit -v), add workers, or lower the rate"
)


class ProcessLimits:
    """RLIMIT_NOFILE and RLIMIT_AS of this process: checked before a run, and memory in each of its seconds."""

    _reserve: mmap.mmap | None = None

    def check(self, scenario: Scenario) -> None:
        """Raise UsageError if the run may need more than is allowed; else take a reserve of memory."""
        _check_descriptors(scenario)
        left_bytes = _memory_left()
        if left_bytes is None:
            return
        needed_bytes = 3 * RESERVE
        if left_bytes < needed_bytes:
            left_mb = left_bytes / MEGABYTE
            needed_mb = needed_bytes / MEGABYTE
            lack_mb = (needed_bytes - left_bytes) / MEGABYTE
            raise UsageError(
                f"RLIMIT_AS leaves a worker {left_mb:,.0f} MB, it needs {needed_mb:,.0f}: "
                f"raise it by {lack_mb:,.0f} MB (ulimit -v)"
            )
        self._reserve = mmap.mmap(-1, RESERVE)

    def is_short(self) -> bool:
        """Return whether the memory is nearly used up."""
        left_bytes = _memory_left()
        return left_bytes is not None and left_bytes < RESERVE

    def no_memory(self) -> str:
        """Give the reserve back; returns why the worker ends."""
        if self._reserve is not None:
            self._reserve.close()
            self._reserve = None
        return NO_MEMORY.format(resource.getrlimit(resource.RLIMIT_AS)[0] / MEGABYTE)


def _check_descriptors(scenario: Scenario) -> None:
    """Raise UsageError if calls in flight and connections opened beforehand may need more descriptors than are allowed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_flight = scenario.limits.in_flight_per_worker
    needed = in_flight + sum(target.preopened for target in scenario.targets.values())
    needed += psutil.Process().num_fds() + SPARE_DESCRIPTORS
    if limit == resource.RLIM_INFINITY or needed <= limit:
        return
    advice = f"raise it (ulimit -Hn {needed})"
    possible = in_flight - needed + limit
    if possible > 0:
        advice += f", or set limits.in_flight_per_worker to {possible:,} or less"
    cause = f"{in_flight:,} need {needed:,} file descriptors, RLIMIT_NOFILE allows {limit:,}"
    raise UsageError(f"limits.in_flight_per_worker: {cause}: {advice}")


def _memory_left() -> int | None:
    """Return the bytes of address space that the process may still take; None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    return limit - _memory()[0]
