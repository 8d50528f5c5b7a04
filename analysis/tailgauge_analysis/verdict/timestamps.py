"""Quality of the timestamps: exact or a range, kernel or user space, receive lag, and the distance to the server's log.

Several events in one socket read share the timestamp of its last byte; the earlier ones have a time range, and every
table uses its end. The simulated endpoint logs its answers, joined call by call through (request, leg, attempt): the time
from sending there to the arrival of the first content here is the error of network and client, seen from outside. Two
clocks are involved, so it is known within the error of the worker's offset. The log also has when the first and the last
chunk were due: what moves a percentile there is the endpoint's slowness, not the client's, and not a setting.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.dedup import CALL
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile, quantiles, rank
from tailgauge_analysis.text.formatting import percentile
from tailgauge_analysis.verdict.clocks import clocks

ENDPOINT_FIGURES = {"first": "TTFT since sent", "last": "time to the last content"}
ENDPOINT_PS = (0.5, 0.99)


class Stamps:
    """Counts of timestamps: first chunks of the steady stage's answers, all else of the whole run."""

    def __init__(self, frames: Frames, steady: Steady) -> None:
        answers = steady.requests[steady.requests["first_at_ns"].notna()]
        by_source = frames.attempts["stamps"].value_counts()
        is_new = steady.attempts["connection_is_new"]
        lags = frames.chunks.lags_ns
        self.first_chunks = len(answers)
        self.first_intervals = int(answers["first_low_at_ns"].notna().sum())
        self.chunks = len(frames.chunks)
        self.chunk_intervals = frames.chunks.intervals
        # Attempts of the steady stage that had a connection.
        self.connected = int(is_new.notna().sum())
        self.kernel_attempts = int(by_source.get("kernel", 0))
        self.user_attempts = int(by_source.get("user", 0))
        # Attempts that opened one: their times since scheduled contain it.
        self.new_connections = int(is_new.eq(True).sum())
        self.receive_lag_ms = tuple(lag / 1e6 for lag in lags) if lags else None  # at chunks.LAG_PS

    @property
    def first_interval_share(self) -> float:
        """Share of first chunks with a time range instead of a time."""
        return self.first_intervals / self.first_chunks if self.first_chunks else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLog:
    """From the write of the first content there to its arrival here; `within_ms`: the clock error."""

    joined: int
    unknown_to_target: int
    added_p50_ms: float
    added_p99_ms: float
    added_max_ms: float
    within_ms: float


def compare_server_log(frames: Frames) -> ServerLog | None:
    """Over the attempts of the steady stage that both sides have; None without a log."""
    ours = frames.attempts[frames.attempts["stage"] == schema.STEADY].dropna(subset="first_content_at_ns")
    both = _with_log(ours, frames, "first_chunk_sent_at_ns")
    added_ns = (both["first_content_at_ns"] - both["first_chunk_sent_at_ns"]).dropna()
    if not len(added_ns):
        return None
    added_ms = np.sort(added_ns.to_numpy(np.float64) / 1e6)
    return ServerLog(
        joined=len(added_ms),
        unknown_to_target=len(ours) - len(both),
        added_p50_ms=float(added_ms[rank(len(added_ms), 0.5) - 1]),
        added_p99_ms=float(added_ms[rank(len(added_ms), 0.99) - 1]),
        added_max_ms=float(added_ms[-1]),
        within_ms=clocks(frames).to_target_ns / 1e6,
    )


def _with_log(attempts: pd.DataFrame, frames: Frames, *columns: str) -> pd.DataFrame:
    """The attempts that are in the simulated endpoint's log, with columns of it."""
    key = list(CALL)
    log = frames.server_log.dropna(subset=key).drop_duplicates(key)
    return attempts.merge(log[[*key, *columns]], on=key)


@dataclass(frozen=True, slots=True)
class EndpointDelay:
    """A percentile of the answers, by how much the simulated endpoint moved it, and its largest lateness."""

    title: str
    measured: Quantile
    moved_ms: float
    late_max_ms: float

    @property
    def label(self) -> str:
        """`TTFT since sent p99`."""
        return f"{self.title} {percentile(self.measured.p)}"


def endpoint_delays(frames: Frames, of_target: Steady) -> list[EndpointDelay]:
    """The median and p99 of each figure; nothing without the endpoint's log."""
    answers = of_target.attempts
    answers = answers[answers["ended"].isin(schema.COMPLETE) & answers["first_content_at_ns"].notna()]
    answers = answers.sort_values("sent_at_ns", kind="stable")
    delays = []
    for which, title in ENDPOINT_FIGURES.items():
        due = f"{which}_due_at_ns"
        written = f"{which}_chunk_sent_at_ns"
        both = _with_log(answers, frames, due, written).dropna(subset=due)
        took_ms = (both[f"{which}_content_at_ns"] - both["sent_at_ns"]).to_numpy(np.float64) / 1e6
        late_ms = ((both[written] - both[due]) / 1e6).clip(lower=0.0).to_numpy(np.float64)
        as_due = quantiles(took_ms - late_ms, ENDPOINT_PS)
        for measured, punctual in zip(quantiles(took_ms, ENDPOINT_PS), as_due, strict=True):
            if measured.mark != TOO_FEW and punctual.value is not None:
                moved_ms = (measured.value or 0.0) - punctual.value
                delays.append(EndpointDelay(title, measured, moved_ms, float(late_ms.max())))
    return delays
