"""The steady stage: the part of a run that the statistics are about.

Rule: every statistic starts from this frame: one row a request scheduled in the steady stage, in order of its
scheduled time, beside it the attempt that answered it (answers.py). Preflight, warm-up and cool-down are outside.
Chunk gaps are those of the answers only: what a loser of a hedge received, nobody saw.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tailgauge import records
from tailgauge_analysis.answers import answered, first_token_of
from tailgauge_analysis.frames import Frames
from tailgauge_analysis.quantiles import Floats, Ints
from tailgauge_analysis.runfile import Json, table


@dataclass(frozen=True, slots=True)
class Steady:
    """The steady stage, ready for metrics. `gap_request` numbers rows of `requests`, ascending."""

    requests: pd.DataFrame
    attempts: pd.DataFrame
    gaps_ns: Floats
    gap_request: Ints
    first_token: str
    from_s: float
    to_s: float

    @property
    def seconds(self) -> float:
        """How long the stage lasted."""
        return max(0.0, self.to_s - self.from_s)

    def only(self, mask: npt.NDArray[np.bool_]) -> Steady:
        """The same stage with some of its requests."""
        requests = self.requests[mask].reset_index(drop=True)
        attempts = self.attempts[self.attempts["request_id"].isin(requests["request_id"])]
        kept = mask[self.gap_request]
        rows = np.cumsum(mask)[self.gap_request[kept]] - 1
        return replace(
            self, requests=requests, attempts=attempts, gaps_ns=self.gaps_ns[kept], gap_request=rows
        )

    @property
    def of_target(self) -> Steady:
        """Without the requests that were read slowly on purpose: they tell of their reader, not of the target."""
        slow = self.requests["slow_reader"].to_numpy(np.bool_)
        return self.only(~slow) if slow.any() else self


def steady(frames: Frames) -> Steady:
    """Cut the steady stage out of a run."""
    first_token = first_token_of(frames)
    wanted = frames.requests[frames.requests["stage"] == records.STEADY]
    wanted = wanted.drop_duplicates("request_id").sort_values("scheduled_at_ns", kind="stable")
    attempts = frames.attempts[frames.attempts["stage"] == records.STEADY]
    requests = answered(wanted.reset_index(drop=True), attempts, first_token)
    gap_request, gaps_ns, chars, first_chars = _gaps(requests, frames.chunks)
    requests["first_share"] = pd.Series(first_chars / np.where(chars > 0, chars, np.nan), requests.index)
    requests["worst_gap_ns"] = pd.Series(gaps_ns).groupby(gap_request).max().reindex(requests.index)
    from_s, to_s = window(frames)
    return Steady(requests, attempts, gaps_ns, gap_request, first_token, from_s, to_s)


def _gaps(requests: pd.DataFrame, chunks: pd.DataFrame) -> tuple[Ints, Floats, Floats, Floats]:
    """Times between consecutive content chunks of each answer: row of the request and gap in ns of each; and for each
    request the characters of all chunks and of the first.
    """
    ids = requests["request_id"].to_numpy()
    by_id = np.argsort(ids)
    chunk_ids = chunks["request_id"].to_numpy()
    if not len(ids) or not len(chunk_ids):
        return np.empty(0, np.int64), np.empty(0), np.zeros(len(ids)), np.zeros(len(ids))
    place = np.minimum(np.searchsorted(ids, chunk_ids, sorter=by_id), len(ids) - 1)
    row = by_id[place]
    answers = requests[["answer_leg", "answer_attempt"]].fillna(-1).to_numpy(np.int64)
    ours = (
        (ids[row] == chunk_ids) & (answers[row, 0] == chunks["leg"]) & (answers[row, 1] == chunks["attempt"])
    )
    row = row[ours]
    arrived = chunks["arrived_at_ns"].to_numpy()[ours]
    order = np.lexsort((chunks["chunk_index"].to_numpy()[ours], row))
    row, arrived, chars = row[order], arrived[order], chunks["chars"].to_numpy()[ours][order]
    same = row[1:] == row[:-1]
    first = np.concatenate(([True], ~same)) if len(row) else np.empty(0, np.bool_)
    firsts: Floats = np.bincount(row[first], weights=chars[first], minlength=len(ids)).astype(np.float64)
    whole: Floats = np.bincount(row, weights=chars, minlength=len(ids)).astype(np.float64)
    return row[1:][same], np.diff(arrived)[same].astype(np.float64), whole, firsts


def window(frames: Frames) -> tuple[float, float]:
    """Start and end of the steady stage in seconds of the run clock."""
    run = frames.run
    stages = table(run["scenario"], "stages")
    duration = _number(stages, "duration_s")
    if duration is None:
        scheduled = frames.requests.loc[frames.requests["stage"] == records.STEADY, "scheduled_at_ns"] / 1e9
        return (float(scheduled.min()), float(scheduled.max())) if len(scheduled) else (0.0, 0.0)
    warmup = _number(stages, "warmup_s")
    end = duration - (_number(stages, "cooldown_s") or 0.0)
    if run["admission_end_at_ns"] is not None and run["start_at_ns"] is not None:
        end = min(end, (run["admission_end_at_ns"] - run["start_at_ns"]) / 1e9)
    return min(60.0, duration / 10) if warmup is None else warmup, end


def _number(tree: Json, key: str) -> float | None:
    value = tree.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
