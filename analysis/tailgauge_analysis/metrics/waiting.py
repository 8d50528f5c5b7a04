"""Waiting: from when to when each request of a run waited for the target.

A request begins to wait when it was due; what the client took longer to send it is the client's and is taken off. It
waits for its first content, a fan-out for its join, a batch for its end; a request that ended without any leaves then. One
that is open at the end of the run has not ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge.rows.schema import TURNS
from tailgauge_analysis.metrics.answers import (
    ONE_ANSWER,
    first_attempts,
    not_streamed,
    requests_without_slow_readers,
)
from tailgauge_analysis.metrics.steady import slot_wait_ns, waiting_for_slots
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats, Mask

UNQUEUED = 0.05  # quantile of the waits of like requests that none of them waits for the others
MOST_TURNS = 3  # later turns of a session are alike
FEWEST_ALIKE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Requests of a run that were sent, in that order; seconds of the run, +inf: never.

    `unqueued_s`: what a request takes that waits for no other one, by its traffic table, turn and size. `late_s`: how late the
    client sent it.
    """

    begun_s: Floats
    first_s: Floats
    ended_s: Floats
    unqueued_s: Floats
    late_s: Floats
    is_steady: Mask

    def only(self, mask: Mask) -> Waiting:
        """Return some of the requests."""
        return Waiting(
            begun_s=self.begun_s[mask],
            first_s=self.first_s[mask],
            ended_s=self.ended_s[mask],
            unqueued_s=self.unqueued_s[mask],
            late_s=self.late_s[mask],
            is_steady=self.is_steady[mask],
        )


def waiting(frames: Frames, until_s: float) -> Waiting:
    """Return the requests of a run without its preflight, and without those that were read slowly on purpose.

    `until_s`: end of the load. What is answered after it waited for the others.
    """
    requests = requests_without_slow_readers(frames)
    requests = requests.assign(late_ns=late_ns(frames, requests))
    requests = requests[requests["late_ns"].notna()]
    begun_s = seconds(requests["scheduled_at_ns"] + requests["late_ns"])
    order = np.argsort(begun_s, kind="stable")
    requests = requests.iloc[order]
    begun_s = begun_s[order]
    first_s = seconds(_first_ns(frames, requests))
    waits_s = first_s - begun_s
    under_load_s = np.where(first_s <= until_s, waits_s, np.nan)
    return Waiting(
        begun_s=begun_s,
        first_s=first_s,
        ended_s=seconds(_ended_ns(requests)),
        unqueued_s=_unqueued_s(frames.attempts, requests, waits_s, under_load_s),
        late_s=seconds(requests["late_ns"]),
        is_steady=(requests["stage"] == schema.STEADY).to_numpy(np.bool_),
    )


def late_ns(frames: Frames, requests: pd.DataFrame) -> pd.Series[float]:
    """Return how late the client sent each request; NaN of one that was not sent.

    Opening a connection is the target's, the wait for a slot the scenario's.
    """
    primary = first_attempts(frames.attempts)
    sent_ns = primary["sent_at_ns"].reindex(requests["request_id"]).to_numpy(np.float64)
    dispatched_ns = primary["dispatched_at_ns"].reindex(requests["request_id"]).to_numpy(np.float64)
    at_gate = requests["traffic"].isin(waiting_for_slots(frames))
    slot_ns = slot_wait_ns(requests, pd.Series(dispatched_ns, requests.index), at_gate)
    sent_after_ns: pd.Series[float] = sent_ns - requests["scheduled_at_ns"]
    return (sent_after_ns - slot_ns - opening_ns(frames, requests)).clip(lower=0.0)


def opening_ns(frames: Frames, requests: pd.DataFrame) -> pd.Series[float]:
    """Return how long each request waited for its first attempt's new connection; 0 where an idle one was taken.

    Every call that finds no idle connection opens one, so none waits for another's. What taking an idle one took is the
    client's.
    """
    primary = first_attempts(frames.attempts)
    waited_ns = primary["pool_wait_ns"].where(primary["connection_is_new"].eq(True))
    by_id = waited_ns.reindex(requests["request_id"]).fillna(0.0)
    return pd.Series(by_id.to_numpy(np.float64), requests.index)


def _first_ns(frames: Frames, requests: pd.DataFrame) -> pd.Series[float]:
    """Return when each request stopped waiting."""
    attempts = frames.attempts
    # The low end of a range: what a read held longer is the client's.
    first_ns = attempts["first_content_low_at_ns"].fillna(attempts["first_content_at_ns"])
    by_id = first_ns.groupby(attempts["request_id"]).min().reindex(requests["request_id"])
    content_ns = pd.Series(by_id.to_numpy(np.float64), requests.index)
    content_ns = content_ns.where(requests["answer"].isin(ONE_ANSWER), requests["joined_at_ns"])
    return content_ns.fillna(_ended_ns(requests))


def _ended_ns(requests: pd.DataFrame) -> pd.Series[float]:
    """Return when each request ended; +inf where it was open at the end of the run."""
    return requests["ended_at_ns"].where(requests["ended"] != schema.CENSORED).fillna(np.inf)


def _unqueued_s(
    attempts: pd.DataFrame, requests: pd.DataFrame, waits_s: Floats, over_s: Floats
) -> Floats:
    """Return the wait of a request that waits for no other one. A whole answer takes its time by its tokens.

    `over_s`: the waits that were over under load, else NaN; what is answered later waited for the others.
    """
    is_whole = requests["request_id"].isin(not_streamed(attempts))
    tokens = requests["asked_output_tokens"].clip(lower=1).where(is_whole, 1).to_numpy(np.float64)
    turn = (requests["request_id"] % TURNS).clip(upper=MOST_TURNS).to_numpy()
    traffic = requests["traffic"].to_numpy()
    per_token = pd.Series(over_s / tokens)
    alike = per_token.groupby([traffic, turn])
    unqueued = alike.transform("quantile", UNQUEUED).where(alike.transform("count") >= FEWEST_ALIKE)
    unqueued = unqueued.fillna(per_token.groupby(traffic).transform("quantile", UNQUEUED))
    at_last = pd.Series(np.where(np.isfinite(waits_s), waits_s, np.nan) / tokens)
    unqueued = unqueued.fillna(at_last.groupby(traffic).transform("quantile", UNQUEUED))
    unqueued_s: Floats = unqueued.fillna(0.0).to_numpy(np.float64) * tokens
    return unqueued_s


def seconds(times_ns: pd.Series[float]) -> Floats:
    """Return times or durations in seconds, NaN where there is none."""
    return np.asarray(times_ns.astype("float64"), np.float64) / 1e9
