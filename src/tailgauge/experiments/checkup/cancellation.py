"""Clients that leave: whether the endpoint stops, and what is billed.

Rule: by the endpoint's own log, call by call; without one by its engine's own count of tokens, all calls together. Where
there is neither, neither check is answered, because a guess would be no evidence.
"""

from __future__ import annotations

import numpy as np

from tailgauge.experiments.checkup.check import Check, Gain, of_share, saved, untold
from tailgauge.experiments.checkup.engine_tokens import by_engine
from tailgauge.experiments.checkup.probe_result import Seen
from tailgauge.experiments.reading import Reading
from tailgauge.rows import schema
from tailgauge_analysis.load.dedup import CALL
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import count, share

WENT_ON = 0.5  # of what was left of the answer
BILLED_TIMES = 1.25  # what was generated
_KEYS = list(CALL)
_UNKNOWN = "the target does not say what it {} after a client had left: compare its usage report with the tokens received"


def cancelled(reading: Reading, left_share: float) -> Seen:
    """Both checks; gains are of all answers, of which users leave `left_share`."""
    attempts = reading.steady.attempts
    ours = attempts[attempts["ended"] == schema.CANCELLED]
    log = reading.frames.server_log.dropna(subset=_KEYS).drop_duplicates(_KEYS)
    both = ours[_KEYS].merge(log, on=_KEYS)
    both = both[both["cancelled_at_ns"].notna()].sort_values("received_at_ns", kind="stable")
    if not len(log):
        ignored = by_engine(reading.frames, left_share) or untold("cancel_ignored", _UNKNOWN.format("makes"))
        return Seen((ignored, untold("cancel_billed", _UNKNOWN.format("bills"))))
    asked = reading.frames.requests.drop_duplicates("request_id").set_index("request_id")[
        "asked_output_tokens"
    ]
    whole = both["request_id"].map(asked).to_numpy(np.float64)
    sent, after, billed = (
        both[name].fillna(0).to_numpy(np.float64)
        for name in ("output_tokens", "tokens_after_cancel", "billed_output_tokens")
    )
    return Seen((_ignored(whole, sent, after, left_share), _billed(whole, sent + after, billed, left_share)))


def _ignored(whole: Floats, sent: Floats, after: Floats, left_share: float) -> Check:
    went_on = after >= WENT_ON * np.maximum(whole - sent, 1)
    part = share(float(after.sum() / max(1.0, (whole - sent).sum())))
    said = f"after the client had left, {count(float(after.sum()))} tokens were still made, {part} of what was left of {len(after)} answers"
    return of_share("cancel_ignored", went_on, 0.1, said, _of_all(saved(after, whole), left_share))


def _billed(whole: Floats, made: Floats, billed: Floats, left_share: float) -> Check:
    more = billed > BILLED_TIMES * np.maximum(made, 1)
    said = f"{count(float(billed.sum()))} tokens were billed for {len(billed)} answers that were left, {count(float(made.sum()))} were made"
    gain = _of_all(saved(np.maximum(billed - made, 0), whole), left_share)
    return of_share("cancel_billed", more, 0.1, said, gain)


def _of_all(gain: Gain, part: float) -> Gain:
    return Gain(gain.value * part, gain.low * part, gain.high * part)
