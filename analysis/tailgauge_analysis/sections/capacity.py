"""Would the first attempts alone fit? What an overloaded target can serve, without hedge copies and retries.

What a client closes, hedge copies among it, may cost a target as much as an answer, or nothing: the rows do not show whether
it goes on computing. So its capacity, in answers per second, lies between two bounds:

    high   answers and closed calls in the best third of the time: each closed call was served in full
    low    answers in the best third: closed calls cost nothing. Or, where most of an answer is streamed, the most
           streams at once / the mean time of an answer: so many slots are there, whatever they did meanwhile

Where as many streams as ever are there for much of the time, there are no more slots: then high is slots / time too. That holds
for one slot, and for many of a target that stops what is closed. It does not hold where copies are sent at once: they take
slots side by side with the calls that win.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from tailgauge.call import MAIN
from tailgauge.rows import schema
from tailgauge_analysis.metrics.slots import at_once
from tailgauge_analysis.metrics.waiting import seconds
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats, Mask

THIRDS = 3  # of the time of first attempts, the best of which shows what the target serves
FITS = 0.9  # of the first attempts, that it can serve
FEWEST = 5  # answers that show how long one takes
NEAR_ALL = 0.85  # of the most streams at once
OFTEN = 0.25  # of the time with streams
MANY_PAIRS = 0.8  # of the first attempts, that have a copy from the start
_REJECTED = (schema.RATE_LIMITED, schema.OVERLOADED)
_LEG = ["request_id", "leg"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """First attempts, hedge copies and answers per second, and the bounds of what the target can answer per second."""

    offered_per_s: float
    copies_per_s: float
    low_per_s: float
    high_per_s: float

    @property
    def fits(self) -> bool | None:
        """Return whether the target can serve the first attempts alone; None: not known."""
        if self.low_per_s >= FITS * self.offered_per_s:
            return True
        return False if self.high_per_s < self.offered_per_s else None

    @property
    def is_accepted(self) -> bool:
        """Return whether a rate limit, which counts closed calls too, accepts the first attempts alone."""
        return self.high_per_s >= FITS * self.offered_per_s


def load(frames: Frames) -> Load | None:
    """Return the load of the main target, warm-up included; None where fewer than two first attempts were sent, or all at one moment.

    Times are from the first to the last first attempt. The two bounds of what the target can answer per second are those of the
    best third of the time, and of its slots where the streams show these (see the module).
    """
    attempts = frames.attempts
    is_sent = attempts["sent_at_ns"].notna() & (attempts["stage"] != schema.PREFLIGHT)
    calls = _Calls(attempts[is_sent & (attempts["target"] == MAIN)])
    first_s = calls.sent_s[calls.is_first]
    if len(first_s) < 2 or first_s.max() <= first_s.min():
        return None
    until_s = float(first_s.max())
    # Answers alone, as if closed calls cost nothing; and with closed calls, as if each cost as much as an answer.
    answered_per_s, served_per_s = calls.best_rates(float(first_s.min()), until_s)
    low_per_s = answered_per_s
    high_per_s = served_per_s
    # From the most streams at once and the time of an answer; `is_known`: there are no more slots.
    slots = calls.slots(until_s)
    if slots is not None:
        low_per_s = max(low_per_s, slots.low_per_s)
        if slots.is_known:
            high_per_s = min(high_per_s, max(slots.high_per_s, low_per_s))
    load_s = until_s - float(first_s.min())
    return Load(
        offered_per_s=len(first_s) / load_s,
        copies_per_s=float(calls.is_copy.sum()) / load_s,
        low_per_s=min(low_per_s, high_per_s),
        high_per_s=high_per_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slots:
    """Answers per second of as many slots as there were streams at once; `is_known`: there are no more slots."""

    low_per_s: float
    high_per_s: float
    is_known: bool


class _Calls:
    """The attempts of a run that were sent."""

    def __init__(self, attempts: pd.DataFrame) -> None:
        self._attempts = attempts
        self.sent_s = seconds(attempts["sent_at_ns"])
        self.ended_s = seconds(attempts["ended_at_ns"])
        self.content_s = seconds(attempts["first_content_at_ns"])
        self.is_first: Mask = (attempts["cause"] == schema.PRIMARY).to_numpy(np.bool_)
        self.is_copy: Mask = (attempts["cause"] == schema.HEDGE).to_numpy(np.bool_)
        self.is_answered: Mask = attempts["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
        # A rejection inside a response with status 200 has the class that its status would have.
        is_rejected = attempts["ended"].isin(_REJECTED) | attempts["error_class"].isin(_REJECTED)
        self.is_rejected: Mask = is_rejected.to_numpy(np.bool_)

    def best_rates(self, from_s: float, until_s: float) -> tuple[float, float]:
        """Return how many were answered per second, and how many may have been served, each in its best third."""
        rejected_s = self.ended_s[self.is_rejected]
        # Before its first rejection a rate limit serves what it had saved.
        full_s = float(rejected_s.min(initial=until_s))
        if until_s - full_s >= (until_s - from_s) / THIRDS:
            from_s = full_s
        edges_s = np.linspace(from_s, until_s, THIRDS + 1)
        third_s = (until_s - from_s) / THIRDS
        answered = np.histogram(self.ended_s[self.is_answered], edges_s)[0]
        served = np.histogram(self.ended_s[~self.is_rejected], edges_s)[0]
        return float(answered.max()) / third_s, float(served.max()) / third_s

    def slots(self, until_s: float) -> _Slots | None:
        """Return how many answers per second the slots of the target give, as its streams show; None where they show too little.

        That is where fewer than FEWEST answers have content, or where answers stream no longer than the shortest wait for a
        first content. Times are seconds of the run; streams after `until_s` do not count.
        """
        is_streamed = self.is_answered & self._has_content
        answers = int(is_streamed.sum())
        if answers < FEWEST:
            return None
        streams_s = self.ended_s - self.content_s
        stream_s = float(streams_s[is_streamed].mean())
        # The least time to the first content: what an answer takes of a slot before it streams.
        if stream_s <= self._first_s:
            return None
        # Streams that were cut took a slot too, and gave no answer.
        slot_s_per_answer = float(np.nansum(streams_s)) / answers
        times_s, streams = self._streams(until_s)
        peak = float(streams.max())
        # How long each number of streams lasted.
        spans_s = np.diff(np.append(times_s, until_s))
        near_all_s = float(spans_s[streams >= NEAR_ALL * peak].sum())
        with_streams_s = float(spans_s[streams > 0].sum())
        return _Slots(
            low_per_s=peak / (slot_s_per_answer + self._first_s),
            high_per_s=peak / stream_s,
            is_known=near_all_s >= OFTEN * with_streams_s and not self._are_pairs,
        )

    @cached_property
    def _has_content(self) -> Mask:
        return np.isfinite(self.content_s)

    @cached_property
    def _first_s(self) -> float:
        """Return the time to the first content of the call that waited least: hardly for others."""
        return float((self.content_s - self.sent_s)[self._has_content].min())

    @property
    def _are_pairs(self) -> bool:
        """Return whether many first attempts have a copy that was sent before any content can come."""
        attempts = self._attempts
        first_ns = attempts.loc[self.is_first].groupby(_LEG)["sent_at_ns"].min()
        copy_ns = attempts.loc[self.is_copy].groupby(_LEG)["sent_at_ns"].min()
        delays_s = seconds(copy_ns - first_ns.reindex(copy_ns.index))
        return bool((delays_s < self._first_s).sum() >= MANY_PAIRS * len(first_ns))

    def _streams(self, until_s: float) -> tuple[Floats, Floats]:
        """Return the times at which the number of streams changes, and the number from then on."""
        times_s, streams = at_once(
            self.content_s[self._has_content], self.ended_s[self._has_content]
        )
        is_inside = times_s < until_s
        return times_s[is_inside], streams[is_inside]
