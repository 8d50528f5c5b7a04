"""The steady stage: the part of a run that the statistics are about.

One row per request scheduled in the steady stage, in order of its scheduled time, with the attempt that answered it
(answers.py). Preflight, warm-up and cool-down are outside. Chunk gaps are those of the answers only: nobody saw what a
loser of a hedge received.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import answered, first_token_of
from tailgauge_analysis.metrics.groupings import groupings
from tailgauge_analysis.metrics.pace import judge, paced
from tailgauge_analysis.reading.chunks import NO_RANGES, GapRanges
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.dependence import Floats, Grouping, Ints, Mask
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import REQUEST
from tailgauge_analysis.text.json_values import Json, number, table, tables, text


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady stage, ready for metrics. `gap_counts`: how many of the gaps belong to each row of `requests`."""

    requests: pd.DataFrame
    attempts: pd.DataFrame
    gaps_ns: Floats
    gap_counts: Ints
    first_token: str
    from_s: float
    to_s: float
    gap_ranges: GapRanges = NO_RANGES
    groupings: tuple[Grouping, ...] = ()

    def share(self, mask: Mask) -> Proportion:
        """Return a share of the requests, in the order of their rows."""
        return proportion(mask, groupings=self.groupings, waits_ms=self._spent_ms())

    def share_of(self, rows: pd.DataFrame, mask: Mask) -> Proportion:
        """Return a share of rows of the requests, such as attempts, in order of time."""
        places = pd.Index(self.requests["request_id"]).get_indexer(rows["request_id"])
        spent_ms = np.append(self._spent_ms(), np.inf)[places]
        return proportion(mask, groupings=self.groupings_of(rows), waits_ms=spent_ms)

    def groupings_of(self, rows: pd.DataFrame) -> tuple[Grouping, ...]:
        """Return what rows of the requests have in common: those of one request, and of one group of requests."""
        places = pd.Index(self.requests["request_id"]).get_indexer(rows["request_id"])
        groupings = [Grouping(REQUEST, places, True)]
        for grouping in self.groupings:
            codes = np.append(grouping.codes, -1)[places]
            groupings.append(replace(grouping, codes=codes))
        return tuple(groupings)

    def _spent_ms(self) -> Floats:
        """Return how long each request took since it was sent; +inf where that is not known."""
        spent_ns = self.requests["ended_at_ns"] - self.requests["first_sent_at_ns"]
        return spent_ns.fillna(np.inf).to_numpy(np.float64) / 1e6

    @property
    def seconds(self) -> float:
        """How long the stage lasted."""
        return max(0.0, self.to_s - self.from_s)

    def only(self, mask: Mask, *, gaps: bool = True) -> Steady:
        """Return the stage with some of its requests; without their gaps, which may be many, if not `gaps`."""
        requests = self.requests[mask].reset_index(drop=True)
        attempts = self.attempts[self.attempts["request_id"].isin(requests["request_id"])]
        keeps_gap = np.repeat(mask & gaps, self.gap_counts)
        counts = np.zeros(len(requests), np.int64)
        if gaps:
            counts = self.gap_counts[mask]
        groupings = tuple(grouping.only(mask) for grouping in self.groupings)
        rows = replace(self, requests=requests, attempts=attempts, groupings=groupings)
        return replace(
            rows,
            gaps_ns=self.gaps_ns[keeps_gap],
            gap_counts=counts,
            gap_ranges=self.gap_ranges.only(keeps_gap),
        )

    def of_traffic(self, name: str, *, gaps: bool = True) -> Steady:
        """Return the stage with the requests of one traffic table."""
        return self.only((self.requests["traffic"] == name).to_numpy(np.bool_), gaps=gaps)

    def holds(self, at_ns: pd.Series[float]) -> Mask:
        """Return which of these times lie within the stage."""
        return at_ns.between(self.from_s * 1e9, self.to_s * 1e9, inclusive="left").to_numpy(
            np.bool_
        )

    @property
    def sent(self) -> pd.DataFrame:
        """The attempts that were sent, in that order."""
        sent = self.attempts[self.attempts["sent_at_ns"].notna()]
        return sent.sort_values("sent_at_ns", kind="stable")

    @property
    def without_slow_readers(self) -> Steady:
        """Without the requests that were read slowly on purpose: they show their reader, not the target."""
        slow = self.requests["slow_reader"].to_numpy(np.bool_)
        if not slow.any():
            return self
        return self.only(~slow)


def steady(frames: Frames, stage: str = schema.STEADY) -> Steady:
    """Return the requests of the steady stage with what metrics need of each: its answer, its pace, its chunk gaps.

    `stage`: of another stage, whose requests are then taken; from_s and to_s stay those of the steady stage. The chunks of
    the frames must still have their arrivals.
    """
    first_token = first_token_of(frames)
    wanted = frames.requests[frames.requests["stage"] == stage]
    wanted = wanted.drop_duplicates("request_id").sort_values("scheduled_at_ns", kind="stable")
    attempts = frames.attempts[frames.attempts["stage"] == stage]
    requests = answered(wanted.reset_index(drop=True), attempts, first_token)
    chunks = frames.chunks
    answers = requests[["answer_leg", "answer_attempt"]].fillna(-1).to_numpy(np.int64)
    # The entry of each answer among the chunks; -1 where none of its chunks was kept.
    places = chunks.places(requests["request_id"].to_numpy(), answers[:, 0], answers[:, 1])
    # The sums over the chunks of each answer; the 0 that is appended is taken where an answer has none.
    columns = (chunks.sizes, chunks.chars, chunks.first_chars, chunks.thinking)
    counts, chars, first_chars, thinking = (np.append(values, 0)[places] for values in columns)
    requests = paced(requests, requests["answer_chunks"], frames.run["scenario"])
    skips_thinking = (requests["pace_from_ns"] > requests["first_content_at_ns"]).to_numpy(np.bool_)
    requests["pace_skip"] = np.where(skips_thinking, thinking, 0)  # chunks before the span
    requests["pace_chunks"] = requests["answer_chunks"] - requests["pace_skip"]
    # From here on `counts` are gaps: one less than chunks.
    counts = np.maximum(counts - 1, 0)
    stored = places[places >= 0]
    gaps_ns = chunks.gaps_ns(stored)
    gap_ranges = chunks.gap_ranges(stored)
    of_first = first_chars / np.where(chars > 0, chars, np.nan)
    requests["first_share"] = np.where(
        skips_thinking, 1 / requests["pace_chunks"].clip(lower=1), of_first
    )
    # Adds columns to `requests`: why answers have no pace, and which were buffered.
    judge(requests, gaps_ns, counts, chars, gap_ranges)
    requests["worst_gap_ns"] = worst_of(gaps_ns, counts)
    is_open = requests["ended"] == schema.CENSORED
    requests["over_at_ns"] = requests["ended_at_ns"].mask(is_open, end_ns(frames))
    is_abandoned = requests["ended"] == schema.CANCELLED
    # Their users leave sooner where answers are fast, so that they are no random cut of the waits.
    requests["left_by_pace"] = is_abandoned & requests["traffic"].isin(_left_by_pace(frames))
    waits = requests["traffic"].isin(waiting_for_slots(frames))
    requests["slot_wait_ns"] = slot_wait_ns(requests, requests["first_dispatched_at_ns"], waits)
    from_s, to_s = window(frames)
    return Steady(
        requests=requests,
        attempts=attempts,
        gaps_ns=gaps_ns,
        gap_counts=counts,
        first_token=first_token,
        from_s=from_s,
        to_s=to_s,
        gap_ranges=gap_ranges,
        groupings=groupings(requests, attempts, is_closed=frames.run["arrival"] == "closed"),
    )


def worst_of(gaps_ns: Floats, counts: Ints) -> Floats:
    """Return the longest gap of each; NaN where there is none."""
    worst = np.full(len(counts), np.nan)
    has_gap = counts > 0
    if has_gap.any():
        worst[has_gap] = np.maximum.reduceat(gaps_ns, (np.cumsum(counts) - counts)[has_gap])
    return worst


def _left_by_pace(frames: Frames) -> list[str]:
    """Traffic tables of which some users leave after so many chunks: sooner where the answer is fast."""
    names = []
    for name, settings in tables(frames.run["scenario"], "traffic").items():
        cancel = table(settings, "cancel")
        if cancel.get("after_chunks") and (number(cancel.get("share")) or 0) < 1:
            names.append(name)
    return names


def slot_wait_ns(
    requests: pd.DataFrame, first_dispatched_ns: pd.Series[float], waits_at_gate: pd.Series[bool]
) -> pd.Series[float]:
    """Return how long each request waited for a slot, of the run or of its worker: the scenario asks for that."""
    at_gate = (first_dispatched_ns - requests["dispatched_at_ns"]).where(waits_at_gate)
    waited_ns: pd.Series[float] = at_gate.fillna(requests["slot_wait_ns"].astype("float64")).fillna(
        0.0
    )
    return waited_ns


def waiting_for_slots(frames: Frames) -> list[str]:
    """Traffic tables whose calls wait for a slot of the worker: the scenario asks for that, so it is no delay by the client."""
    names = []
    for name, settings in tables(frames.run["scenario"], "traffic").items():
        pattern = table(settings, text(settings.get("pattern")))
        if pattern.get("at_once_per_worker"):
            names.append(name)
    return names


def is_counted(frames: Frames) -> bool:
    """Return whether a closed loop sent a number of requests and ended with the last of them."""
    arrival = table(frames.run["scenario"], "arrival")
    return arrival.get("process") == "closed" and bool(
        number(table(arrival, "closed").get("requests"))
    )


def is_of_tasks(scenario: Json) -> bool:
    """Return whether the tasks of a locustfile make the requests: users of Locust, and no schedule."""
    return table(scenario, "arrival").get("process") == "tasks"


def at_slots(scenario: Json) -> str:
    """` at 8 in flight`, where the scenario limits what is in flight beside a rate; else empty."""
    slots = number(table(scenario, "arrival").get("max_concurrency"))
    if slots is None:
        return ""
    return f" at {slots:,.0f} in flight"


def end_ns(frames: Frames) -> float:
    """Return when the drain ended, on the run clock; without that word, the last time that any row knows."""
    run = frames.run
    if run["ended_at_ns"] is not None and run["start_at_ns"] is not None:
        return float(run["ended_at_ns"] - run["start_at_ns"])
    ends = (
        frames.requests["scheduled_at_ns"],
        frames.requests["ended_at_ns"],
        frames.attempts["ended_at_ns"],
    )
    return float(np.nanmax([0.0, *(times.max() for times in ends)]))


def window(frames: Frames) -> tuple[float, float]:
    """Return start and end of the steady stage in seconds of the run clock.

    It ends when the run stopped sending, if that was before the planned end: at a stop, at the look at which its precision was
    reached, or with the last of a number of requests. Without a planned duration it lasts from the first to the last scheduled time.
    """
    run = frames.run
    stages = table(run["scenario"], "stages")
    duration = number(stages.get("duration_s"))
    if duration is None:
        scheduled = (
            frames.requests.loc[frames.requests["stage"] == schema.STEADY, "scheduled_at_ns"] / 1e9
        )
        if scheduled.empty:
            return 0.0, 0.0
        return float(scheduled.min()), float(scheduled.max())
    warmup = number(stages.get("warmup_s"))
    if warmup is None:
        warmup = min(60.0, duration / 10)
    end = duration - (number(stages.get("cooldown_s")) or 0.0)
    if run["admission_end_at_ns"] is not None and run["start_at_ns"] is not None:
        end = min(end, (run["admission_end_at_ns"] - run["start_at_ns"]) / 1e9)
    # None where the run was not ended by its precision.
    end = min(end, run["precision"]["until_s"] or end)
    if is_counted(frames):
        last_ns = frames.requests["ended_at_ns"].max()
        if pd.notna(last_ns):
            end = min(end, (float(last_ns) + 1) / 1e9)
    return warmup, end
