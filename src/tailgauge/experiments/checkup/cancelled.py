"""The probe of clients that leave: whether the endpoint stops generating, and what it bills.

By the endpoint's server log, call by call. Without one by its engine's token count, all calls together:

    generated after leaving = the engine's count - usage of whole answers - what the cancelled ones received

Who leaves is random, so the cancelled answers would have been as long as the whole ones of the same run. The count covers
all users of the engine: a count higher than possible is noted and gives no finding. Without either there is no answer.
"""

from __future__ import annotations

import math

import numpy as np

from tailgauge.experiments.checkup import judge
from tailgauge.experiments.checkup.judge import FEWEST, Z_STRICT, Gain, ProbeCheck, ProbeResult
from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge_analysis.reading.dedup import CALL
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import NORMAL_975, Floats
from tailgauge_analysis.text.formatting import count, share

NAME = "cancel_ignored"
WENT_ON = 0.5  # of what was left of the answer
BILLED_TIMES = 1.25  # what was generated
_KEYS = list(CALL)
_UNKNOWN = "unknown what the target {} after a client left: compare its usage report with the tokens received"


def cancelled(reading: RunReading, left_share: float) -> ProbeResult:
    """Result of a run; gains are shares of all answers, of which users cancel `left_share`."""
    attempts = reading.steady.attempts
    ours = attempts[attempts["ended"] == schema.CANCELLED]
    log = reading.frames.server_log.dropna(subset=_KEYS).drop_duplicates(_KEYS)
    both = ours[_KEYS].merge(log, on=_KEYS)
    both = both[both["cancelled_at_ns"].notna()].sort_values("received_at_ns", kind="stable")
    if not len(log):
        ignored = by_engine(reading.frames, left_share) or judge.inconclusive(
            NAME, _UNKNOWN.format("generates")
        )
        return ProbeResult((ignored, judge.inconclusive("cancel_billed", _UNKNOWN.format("bills"))))
    requests = reading.frames.requests.drop_duplicates("request_id").set_index("request_id")
    whole = both["request_id"].map(requests["asked_output_tokens"]).to_numpy(np.float64)
    columns = both[["output_tokens", "tokens_after_cancel", "billed_output_tokens"]]
    sent, after, billed = columns.fillna(0).to_numpy(np.float64).T
    checks = _ignored(whole, sent, after, left_share), _billed(whole, sent + after, billed, left_share)
    return ProbeResult(checks)


def _ignored(whole: Floats, sent: Floats, after: Floats, left_share: float) -> ProbeCheck:
    went_on = after >= WENT_ON * np.maximum(whole - sent, 1)
    part = share(float(after.sum() / max(1.0, (whole - sent).sum())))
    text = f"{count(float(after.sum()))} tokens generated after the client left, {part} of the rest of {len(after)} answers"
    return judge.of_share(NAME, went_on, text, judge.scaled(judge.saved(after, whole), left_share))


def _billed(whole: Floats, generated: Floats, billed: Floats, left_share: float) -> ProbeCheck:
    more = billed > BILLED_TIMES * np.maximum(generated, 1)
    text = f"{count(float(billed.sum()))} tokens billed for {len(billed)} cancelled answers, {count(float(generated.sum()))} generated"
    gain = judge.scaled(judge.saved(np.maximum(billed - generated, 0), whole), left_share)
    return judge.of_share("cancel_billed", more, text, gain)


# --- by the engine's token count ------------------------------------------------------------------------------------

ALLOWED = 0.25  # of the rest: an engine that stops needs a moment to notice
LEAST_ERROR = 0.01
LEFT = (schema.CANCELLED, schema.CENSORED)  # the client closed both
NO_TOKENS = (schema.RATE_LIMITED, schema.OVERLOADED, schema.CONNECT_ERROR)
COUNTED = "{} counts {} tokens generated after the client left, {} of the rest of {:,} answers"


def by_engine(frames: Frames, left_share: float) -> ProbeCheck | None:
    """The check; None if the engine's count is unknown."""
    counts = frames.run["engine_tokens"]
    if not counts:
        return None
    calls = frames.attempts
    calls = calls[(calls["stage"] != schema.PREFLIGHT) & calls["sent_at_ns"].notna()]
    whole, left = calls[calls["ended"] == schema.OK], calls[calls["ended"].isin(LEFT)]
    tokens = whole["output_tokens"].to_numpy(np.float64)
    others = len(calls) - len(whole) - len(left) - int(calls["ended"].isin(NO_TOKENS).sum())
    n = len(left)
    if min(len(whole), n) < FEWEST:
        text = f"not enough data: {n} cancelled and {len(whole)} whole answers, {FEWEST} of each needed"
        return judge.inconclusive(NAME, text, n)
    if np.isnan(tokens).any() or others:
        text = "the engine's count cannot be used: some calls failed or have no usage"
        return judge.inconclusive(NAME, text, n)
    had = float(left["chunks"].sum()) * float(tokens.sum()) / max(1.0, float(whole["chunks"].sum()))
    after = counts["after"] - counts["before"] - float(tokens.sum()) - had
    full = n * float(tokens.mean())
    rest = max(full - had, 1.0)
    # Of the sum of n answers, whose mean is that of the whole ones.
    spread = float(tokens.std(ddof=1)) * math.sqrt(n + n**2 / len(whole))
    error = max(LEAST_ERROR, spread / rest)
    part = after / rest
    engine, smallest = counts["engine"], min(1.0, ALLOWED + Z_STRICT * error)
    if part > 1.25 + 3 * error:
        text = f"{engine} counts more tokens than were requested: others use it too"
        return judge.inconclusive(NAME, text, n)
    if part < -0.25 - 3 * error:
        return judge.inconclusive(NAME, f"{engine} counts fewer tokens than its usage", n)
    ends = (part + z * error for z in (0, -NORMAL_975, NORMAL_975))
    gain = judge.scaled(Gain(*(min(1.0, max(0.0, one * rest / full)) for one in ends)), left_share)
    text = COUNTED.format(engine, count(max(0.0, after)), share(max(0.0, part)), n)
    return ProbeCheck(NAME, n, judge.p_above(part, ALLOWED, error), text, gain, smallest)
