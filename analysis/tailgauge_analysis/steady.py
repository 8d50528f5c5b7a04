"""The steady stage: the part of a run that the statistics are about.

Rule: every statistic starts from this frame: one row a request scheduled in the steady stage, in order of its
scheduled time, beside it the attempt that answered it. Preflight, warm-up and cool-down are outside.

The answer of a request that ended ok is its attempt that ended ok (of several, the one with the earliest content).
A request with several legs has no single first content; it is counted, and has no latency of its own here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge import records
from tailgauge_analysis.frames import Frames
from tailgauge_analysis.quantiles import Floats, Ints
from tailgauge_analysis.runfile import Json, table

ANSWER = (
    "leg", "attempt", "sent_at_ns", "first_content_at_ns", "first_content_low_at_ns", "first_text_at_ns",
    "first_text_low_at_ns", "last_content_at_ns", "last_content_low_at_ns", "output_tokens", "model",
)  # fmt: skip


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


def steady(frames: Frames) -> Steady:
    """Cut the steady stage out of a run."""
    first_token = first_token_of(frames)
    wanted = frames.requests[frames.requests["stage"] == records.STEADY]
    wanted = wanted.drop_duplicates("request_id").sort_values("scheduled_at_ns", kind="stable")
    attempts = frames.attempts[frames.attempts["stage"] == records.STEADY]
    requests = answered(wanted.reset_index(drop=True), attempts, first_token)
    gap_request, gaps_ns = _gaps(requests, frames.chunks)
    requests["worst_gap_ns"] = pd.Series(gaps_ns).groupby(gap_request).max().reindex(requests.index)
    from_s, to_s = window(frames)
    return Steady(requests, attempts, gaps_ns, gap_request, first_token, from_s, to_s)


def first_token_of(frames: Frames) -> str:
    """Which content ends the TTFT: `any`, or `text`."""
    asked = table(frames.run["scenario"], "report").get("first_token")
    return records.TEXT if asked == records.TEXT else "any"


def answered(requests: pd.DataFrame, attempts: pd.DataFrame, first_token: str) -> pd.DataFrame:
    """Requests with the columns of the attempt that answered them, and the first attempt's sending time."""
    answers = attempts[attempts["ended"] == records.OK].sort_values("first_content_at_ns", kind="stable")
    answers = answers.drop_duplicates("request_id").set_index("request_id")[list(ANSWER)]
    single = requests.loc[(requests["ended"] == records.OK) & (requests["legs"] == 1), "request_id"]
    joined = requests.join(answers[answers.index.isin(single)], on="request_id")
    started = attempts[(attempts["leg"] == 0) & (attempts["attempt"] == 0)].drop_duplicates("request_id")
    joined["first_sent_at_ns"] = joined["request_id"].map(started.set_index("request_id")["sent_at_ns"])
    first = "first_text" if first_token == records.TEXT else "first_content"
    joined["first_at_ns"] = joined[f"{first}_at_ns"]
    joined["first_is_interval"] = joined[f"{first}_low_at_ns"].notna()
    return joined


def _gaps(requests: pd.DataFrame, chunks: pd.DataFrame) -> tuple[Ints, Floats]:
    """Times between consecutive content chunks of each answer: (row of the request, gap in ns)."""
    ids = requests["request_id"].to_numpy()
    by_id = np.argsort(ids)
    chunk_ids = chunks["request_id"].to_numpy()
    if not len(ids) or not len(chunk_ids):
        return np.empty(0, np.int64), np.empty(0)
    place = np.minimum(np.searchsorted(ids, chunk_ids, sorter=by_id), len(ids) - 1)
    row = by_id[place]
    answers = requests[["leg", "attempt"]].fillna(-1).to_numpy(np.int64)
    ours = (
        (ids[row] == chunk_ids) & (answers[row, 0] == chunks["leg"]) & (answers[row, 1] == chunks["attempt"])
    )
    row = row[ours]
    arrived = chunks["arrived_at_ns"].to_numpy()[ours]
    order = np.lexsort((chunks["chunk_index"].to_numpy()[ours], row))
    row, arrived = row[order], arrived[order]
    same = row[1:] == row[:-1]
    return row[1:][same], np.diff(arrived)[same].astype(np.float64)


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
