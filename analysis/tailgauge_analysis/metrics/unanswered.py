"""Unanswered: requests that stayed without a sign for longer than any answer takes, and a target that is gone.

What is silent is known of each request that got content: its first content, then its chunks. A request that says nothing
for much longer than all of these was lost by the target; an answer that is long says something, or others took as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import (
    first_sign_at_ns,
    not_streamed,
    requests_without_slow_readers,
)
from tailgauge_analysis.metrics.steady import Steady, end_ns
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import count, figures, plural

LONGER = 1.5  # times the longest silence of an answer
LONGER_S = 2.0  # and by so much
PAUSE = 10  # mean gaps between the chunks of a request
FEWEST_GONE = 5  # requests without an answer, the last ones of the load
USUAL = 0.95  # of the requests wait no longer for a sign, outside of a silence
SIGNS = ("headers_at_ns", "first_event_at_ns", "first_content_at_ns", "last_content_at_ns")


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Requests that got no answer, or only the beginning of one; how many `begun`; how long the oldest has waited."""

    ids: frozenset[int]
    begun: int
    oldest_s: float

    @property
    def requests(self) -> int:
        """How many."""
        return len(self.ids)

    @property
    def sentence(self) -> str:
        """`160 requests of the whole run got no answer; the oldest waits 84 s.`"""
        oldest = "the oldest" if self.requests > 1 else "it"
        missing = "no answer"
        if self.begun == self.requests:
            missing = "only the beginning of an answer"
        elif self.begun:
            missing = f"no complete answer ({count(self.begun)} only its beginning)"
        return f"{plural(self.requests, 'request')} of the whole run got {missing}; {oldest} waits {figures(self.oldest_s)} s."


def unanswered(frames: Frames, stage: Steady) -> Unanswered | None:
    """Return the requests of the run that were open for longer than any answer takes; None without any."""
    silence = _silences(frames, requests_without_slow_readers(frames))
    open_rows = silence[
        silence["ended"].isin((schema.CENSORED, schema.TIMEOUT)) & silence["begun_s"].notna()
    ]
    if open_rows.empty:
        return None
    gaps_s = stage.requests.set_index("request_id")["worst_gap_ns"] / 1e9
    silence["pause_s"] = np.fmax(silence["pause_s"], silence["request_id"].map(gaps_s))
    limit_s = _longest_s(silence, open_rows)
    lost = open_rows[
        open_rows["silent_s"].to_numpy() > np.maximum(LONGER * limit_s, limit_s + LONGER_S)
    ]
    if lost.empty:
        return None
    oldest_s = float((lost["over_s"] - lost["begun_s"]).max())
    return Unanswered(
        ids=frozenset(map(int, lost["request_id"])),
        begun=int(lost["is_answered"].sum()),
        oldest_s=oldest_s,
    )


def _silences(frames: Frames, requests: pd.DataFrame) -> pd.DataFrame:
    """Return when each request began to wait and was over, and its silences: before its content, within it, after it."""
    attempts = frames.attempts
    by_id = attempts.groupby("request_id")
    ids = requests["request_id"]
    first_s = ids.map(by_id["first_content_at_ns"].min()) / 1e9
    last_s = ids.map(by_id["last_content_at_ns"].max()) / 1e9
    chunks = ids.map(by_id["chunks"].sum())
    begun_s = ids.map(by_id["sent_at_ns"].min()) / 1e9
    over_s = requests["ended_at_ns"].fillna(end_ns(frames)) / 1e9
    whole = ids.isin(not_streamed(attempts))
    return pd.DataFrame(
        {
            "request_id": ids,
            "ended": requests["ended"],
            "kind": requests["answer"] + " " + requests["traffic"],
            "answer": requests["answer"],
            "size": requests["asked_output_tokens"].where(whole, 1).clip(lower=1)
            * requests["asked_prompt_tokens"].clip(lower=1),
            "begun_s": begun_s,
            "over_s": over_s,
            "first_s": first_s.fillna(over_s) - begun_s,
            "pause_s": PAUSE * (last_s - first_s) / (chunks - 1).clip(lower=1),
            "silent_s": over_s - last_s.fillna(begun_s),
            "is_answered": requests["ended"].isin(schema.COMPLETE) | first_s.notna(),
        }
    )


def _longest_s(silence: pd.DataFrame, open_rows: pd.DataFrame) -> Floats:
    """Return the longest silence of an answer like each of these: of its traffic table, else of any."""
    answered = silence[silence["is_answered"]]
    longest = answered[["first_s", "pause_s"]].max(axis=1)
    limit = pd.Series(np.nan, open_rows.index)
    largest = pd.Series(np.nan, open_rows.index)
    for name in ("kind", "answer"):
        by_name = (
            pd.DataFrame({"limit": longest, "largest": answered["size"]})
            .groupby(answered[name])
            .max()
        )
        alike = by_name.reindex(open_rows[name]).set_axis(open_rows.index)
        limit = limit.fillna(alike["limit"])
        largest = largest.fillna(alike["largest"])
    # A larger request than any that was answered takes longer.
    scale = (open_rows["size"] / largest).clip(lower=1).fillna(1.0)
    unqueued_s = open_rows["pause_s"].fillna(0.0)
    # A job may take hours: without another one to compare it with, no silence is too long.
    limit = limit.where(open_rows["answer"] != schema.TURNAROUND, limit.fillna(np.inf))
    limit_s: Floats = np.maximum(
        (limit.fillna(0.0) * scale).to_numpy(np.float64), unqueued_s.to_numpy(np.float64)
    )
    return limit_s


@dataclass(frozen=True, slots=True)
class Silence:
    """A stretch in which the target gave no sign, in seconds of the run, and how many requests were sent in it."""

    from_s: float
    to_s: float
    requests: int


def silence(frames: Frames, stage: Steady) -> Silence | None:
    """Return the longest time in which the target gave no sign and after which it went on; None where that is an ordinary pause.

    A sign is a header, an event or content of any request. A pause is a silence where several requests that were sent in it
    waited for much longer than those that were answered before it. It begins before the end of the steady stage.
    """
    signs_s = _signs_s(_of_load(frames))
    attempts = frames.attempts[frames.attempts["stage"] == schema.STEADY]
    sent_s = attempts["sent_at_ns"].to_numpy(np.float64) / 1e9
    waits_s = (
        first_sign_at_ns(attempts).fillna(attempts["ended_at_ns"]).to_numpy(np.float64) / 1e9
        - sent_s
    )
    if len(signs_s) < 2:
        return None
    longest = int(np.diff(signs_s).argmax())
    from_s = float(signs_s[longest])
    to_s = float(signs_s[longest + 1])
    is_inside = (sent_s > from_s) & (sent_s < to_s)
    # The usual wait is that of requests that were answered before the silence.
    is_affected = is_inside | (sent_s + waits_s >= to_s)
    usual_s = waits_s[~is_affected & np.isfinite(waits_s)]
    if len(usual_s) < FEWEST_GONE or from_s > stage.to_s:
        return None
    limit_s = float(np.quantile(usual_s, USUAL))
    waited = is_inside & (to_s - sent_s > max(LONGER * limit_s, limit_s + LONGER_S))
    if waited.sum() < FEWEST_GONE:
        return None
    return Silence(from_s=from_s, to_s=to_s, requests=int(is_inside.sum()))


def gone_since(frames: Frames) -> float | None:
    """Return since when the target gave no sign to the requests that were sent, in seconds of the run; None if it did to the end.

    A target that never gave a sign was never there. Silence counts where it is much longer than the pauses before it, and
    than any answer took.
    """
    attempts = _of_load(frames)
    sent_s = (attempts["sent_at_ns"].fillna(attempts["dispatched_at_ns"]) / 1e9).dropna()
    signs_s = _signs_s(attempts)
    if not len(signs_s) or sent_s.empty:
        return None
    gone_s = float(signs_s[-1])
    until_s = float(sent_s.max())
    unheard = int((sent_s > gone_s).sum())
    pauses_s = np.diff(signs_s).max(initial=0.0)
    waits_s = (first_sign_at_ns(attempts) - attempts["sent_at_ns"]) / 1e9
    longest_s = max(float(pauses_s), float(waits_s.max()))
    if unheard < FEWEST_GONE or until_s - gone_s < LONGER * longest_s:
        return None
    return gone_s


def _of_load(frames: Frames) -> pd.DataFrame:
    """Return the attempts without the preflight's."""
    return frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]


def _signs_s(attempts: pd.DataFrame) -> Floats:
    """Return when the target gave a sign, in order."""
    return np.sort(attempts[[*SIGNS]].stack().dropna().to_numpy(np.float64) / 1e9)
