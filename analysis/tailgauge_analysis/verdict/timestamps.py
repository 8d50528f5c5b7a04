"""Quality of the timestamps: exact or a range, kernel or user space, receive lag, and the distance to the server's log.

Several events in one socket read share the timestamp of its last byte; the earlier ones have a time range, and every
table uses its end. The simulated endpoint logs its answers, joined call by call through (request, leg, attempt): the time
from sending there to the arrival of the first content here is the error of network and client, seen from outside. Two
clocks are involved, so it is known within the error of the worker's offset. The log also has when the first and the last
chunk were due: what moves a percentile there is the endpoint's slowness, not the client's, and not a setting.

How far the clocks of a run may be apart, and what that does to figures that mix them.

A latency lies within one worker's clock; no offset touches it. Times of two workers compare within the sum of both
offsets' errors, those of a worker and of the server log within the worker's error: the endpoint has the master's clock.

    between     largest sum of two workers' errors
    to target   largest error of a worker
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.dedup import CALL
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import TOO_FEW, Quantile, quantiles, rank
from tailgauge_analysis.text.formatting import listed, ms, percentile
from tailgauge_analysis.text.json_values import Json


class Stamps:
    """Counts of timestamps: first chunks of the steady stage's answers, all else of the whole run."""

    def __init__(self, frames: Frames, steady: Steady) -> None:
        answers = steady.requests[steady.requests["first_at_ns"].notna()]
        by = frames.attempts["stamps"].value_counts()
        lags = frames.chunks.lags_ns
        self.first_chunks = len(answers)
        self.first_intervals = int(answers["first_low_at_ns"].notna().sum())
        self.chunks = len(frames.chunks)
        self.chunk_intervals = frames.chunks.intervals
        # Attempts of the steady stage that had a connection.
        self.connected = int(steady.attempts["connection_is_new"].notna().sum())
        self.kernel_attempts = int(by.get("kernel", 0))
        self.user_attempts = int(by.get("user", 0))
        # Attempts that opened one: their times since scheduled contain it.
        self.new_connections = int(steady.attempts["connection_is_new"].eq(True).sum())
        self.receive_lag_ms = tuple(lag / 1e6 for lag in lags) if lags else None  # at chunks.LAG_PS

    @property
    def first_interval_share(self) -> float:
        """Share of first chunks with a time range instead of a time."""
        return self.first_intervals / self.first_chunks if self.first_chunks else 0.0


@dataclass(frozen=True, slots=True)
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
    keys = list(CALL)
    log = frames.server_log.dropna(subset=keys).drop_duplicates(keys)
    ours = frames.attempts[frames.attempts["stage"] == schema.STEADY].dropna(subset="first_content_at_ns")
    both = ours[[*keys, "first_content_at_ns"]].merge(log[[*keys, "first_chunk_sent_at_ns"]], on=keys)
    added = (both["first_content_at_ns"] - both["first_chunk_sent_at_ns"]).dropna().to_numpy(np.float64) / 1e6
    if not len(added):
        return None
    added.sort()
    p50, p99, most = (float(added[rank(len(added), p) - 1]) for p in (0.5, 0.99, 1.0))
    within_ms = clocks(frames).to_target_ns / 1e6
    return ServerLog(len(added), len(ours) - len(both), p50, p99, most, within_ms)


FIGURES = (("TTFT since sent", "first"), ("time to the last content", "last"))


@dataclass(frozen=True, slots=True)
class EndpointDelay:
    """A percentile of the answers, and the same had the simulated endpoint sent every chunk when it was due."""

    title: str
    found: Quantile
    punctual_ms: float
    late_max_ms: float

    @property
    def label(self) -> str:
        """`TTFT since sent p99`."""
        return f"{self.title} {percentile(self.found.p)}"


def endpoint_delays(frames: Frames, of_target: Steady) -> list[EndpointDelay]:
    """The median and p99 of each figure; nothing without the endpoint's log."""
    keys, answers = list(CALL), of_target.attempts
    log = frames.server_log.dropna(subset=[*keys, "first_due_at_ns"]).drop_duplicates(keys)
    columns = [*keys, *(f"{which}_{what}_at_ns" for _, which in FIGURES for what in ("due", "chunk_sent"))]
    answers = answers[answers["ended"].isin(schema.COMPLETE) & answers["first_content_at_ns"].notna()]
    both = answers.sort_values("sent_at_ns", kind="stable").merge(log[columns], on=keys)
    out = []
    for title, which in FIGURES:
        took = (both[f"{which}_content_at_ns"] - both["sent_at_ns"]).to_numpy(np.float64) / 1e6
        late = (both[f"{which}_chunk_sent_at_ns"] - both[f"{which}_due_at_ns"]).to_numpy(np.float64) / 1e6
        late = np.maximum(late, 0.0)
        as_due = quantiles(took - late, (0.5, 0.99))
        for found, punctual in zip(quantiles(took, (0.5, 0.99)), as_due, strict=True):
            if found.mark != TOO_FEW and punctual.value is not None:
                out.append(EndpointDelay(title, found, punctual.value, float(late.max())))
    return out


# --- clocks -------------------------------------------------------------------------------------------------------

WORTH = 0.1  # attempts in flight: less is not reported


@dataclass(frozen=True, slots=True)
class Clocks:
    """Errors in ns, by worker; `unknown`: workers with rows whose offset was never measured."""

    errors_ns: dict[int, int]
    unknown: tuple[int, ...]

    @property
    def between_ns(self) -> int:
        """Between two workers."""
        return sum(sorted(self.errors_ns.values())[-2:]) if len(self.errors_ns) > 1 else 0

    @property
    def to_target_ns(self) -> int:
        """Between a worker and the target's log."""
        return max(self.errors_ns.values(), default=0)


def clocks(frames: Frames) -> Clocks:
    """Clock offsets of the workers with rows."""
    run = frames.run
    if run["dry_run"]:
        return Clocks({}, ())
    wrote = {worker for (_, worker), n in frames.rows.items() if n}
    there = [w for w in run["workers"] if w["worker"] in wrote]
    known = {w["worker"]: max(0, w["error_ns"] or 0) for w in there if w["offset_ns"] is not None}
    return Clocks(known, tuple(w["worker"] for w in there if w["offset_ns"] is None))


def calls_between(frames: Frames, found: Clocks) -> float:
    """Attempts that begin or end on average while two clocks may differ: the error of counts in flight."""
    sent = frames.attempts["sent_at_ns"].dropna().to_numpy(np.float64)
    if len(sent) < 2 or not found.between_ns:
        return 0.0
    return len(sent) * found.between_ns / max(float(sent.max() - sent.min()), 1.0)


def clocks_json(found: Clocks, calls: float) -> Json:
    """The key `clocks` of report.json."""
    times = {"between_ms": found.between_ns / 1e6, "to_target_ms": found.to_target_ns / 1e6}
    known = {"calls_in_flight": round(calls, 3), "unknown": list(found.unknown)}
    return {**times, **known, "sentence": clocks_sentence(found, calls)}


def clocks_sentence(found: Clocks, calls: float) -> str:
    """The clock error in a sentence of the report; empty if no figure mixes clocks."""
    unknown = between = ""
    if found.unknown:
        workers = f"{'worker' if len(found.unknown) == 1 else 'workers'} {listed(map(str, found.unknown))}"
        unknown = f"The clock offset of {workers} is unknown: comparisons of its times with other workers' are not usable."
    if found.between_ns:
        flight = f", attempts in flight over all workers within ± {calls:,.2g}" if calls >= WORTH else ""
        between = (
            f"Each latency is measured by one worker's clock. Times of two workers compare within ± {ms(found.between_ns / 1e6)} ms{flight}; "
            "the order of closer calls (who filled a cache first, who met a rate limit first) is not known."
        )
    return f"{unknown} {between}".strip()
