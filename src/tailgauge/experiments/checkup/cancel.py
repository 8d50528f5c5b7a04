"""The numbers of clients that leave: whether the endpoint stops generating, and what it bills.

By the endpoint's server log, call by call. Without one by its engine's token count, all calls together:

    generated after leaving = the engine's count - usage of whole answers - what the cancelled ones received

Who leaves is random, so the cancelled answers would have been as long as the whole ones of the same run. The count covers all
users of the engine: a count higher than possible gives no number.
"""

from __future__ import annotations

import math

import numpy as np

from tailgauge.experiments.checkup.numbers import FEWEST, Number, of_share, saved
from tailgauge.experiments.course import RunReading
from tailgauge.rows import schema
from tailgauge_analysis import CALL, Frames, count, proportion, share

WENT_ON = 0.5  # of what was left of the answer
BILLED_TIMES = 1.25  # what was generated
# Of what was left, by an engine's count: an engine that stops needs a moment to notice.
ALLOWED_SHARE_OF_REST = 0.25
LEAST_ERROR = 0.01
LEVEL_Z = 2.878  # normal quantile of LEVEL
CLOSED_BY_CLIENT = (schema.CANCELLED, schema.CENSORED)  # the client closed both
ENDS_WITHOUT_TOKENS = (schema.RATE_LIMITED, schema.OVERLOADED, schema.CONNECT_ERROR)
UNKNOWN = "it is unknown what the target {} after a client left: compare its usage report with the tokens received"
KEYS = list(CALL)


def cancelled(reading: RunReading, cancelled_share: float) -> dict[str, Number]:
    """Return the numbers `cancel_ignored` and `cancel_billed`: the shares of cancelled calls that went on, or are
    overbilled.

    `cancelled_share`: of all answers those that users cancel; a gain is a share of the tokens of all answers. By the
    endpoint's server log, joined by call. Without one, `cancel_ignored` follows from the engine's own count and
    `cancel_billed` is not known.
    """
    attempts = reading.steady.attempts
    cancelled_calls = attempts[attempts["ended"] == schema.CANCELLED]
    log = reading.frames.server_log.dropna(subset=KEYS).drop_duplicates(KEYS)
    if not len(log):
        number = Number(evidence=UNKNOWN.format("bills"))
        return {
            "cancel_ignored": ignored_by_engine(reading.frames, cancelled_share),
            "cancel_billed": number,
        }
    rows = cancelled_calls[KEYS].merge(log, on=KEYS)
    rows = rows[rows["cancelled_at_ns"].notna()].sort_values("received_at_ns", kind="stable")
    requests = reading.frames.requests.drop_duplicates("request_id").set_index("request_id")
    asked_tokens = rows["request_id"].map(requests["asked_output_tokens"]).to_numpy(np.float64)
    sent = rows["output_tokens"].fillna(0).to_numpy(np.float64)
    extra = rows["tokens_after_cancel"].fillna(0).to_numpy(np.float64)
    billed = rows["billed_output_tokens"].fillna(0).to_numpy(np.float64)
    generated = sent + extra
    rest = np.maximum(asked_tokens - sent, 1)  # tokens that were left of each answer
    rest_share = share(float(extra.sum() / max(1.0, rest.sum())))
    text = f"{count(float(extra.sum()))} tokens were generated after the client left, {rest_share} of the remaining tokens of {len(extra)} answers"
    ignored = of_share(
        proportion(extra >= WENT_ON * rest), text, cancelled_share * saved(extra, asked_tokens)
    )
    is_overbilled = billed > BILLED_TIMES * np.maximum(generated, 1)
    text = f"{count(float(billed.sum()))} tokens were billed for {len(billed)} cancelled answers, {count(float(generated.sum()))} were generated"
    gain = cancelled_share * saved(np.maximum(billed - generated, 0), asked_tokens)
    return {
        "cancel_ignored": ignored,
        "cancel_billed": of_share(proportion(is_overbilled), text, gain),
    }


def ignored_by_engine(frames: Frames, cancelled_share: float) -> Number:
    """Return how many tokens an engine generated after clients left, as a share of the rest of their answers.

    The estimate is in the module's docstring. `cancelled_share`: of all answers those that users cancel; `gain` is a
    share of the tokens of all answers. A number without a value says in its evidence why it is not known: no count of an
    engine, too few answers, calls without usage, or a count that others share.
    """
    counts = frames.run["engine_tokens"]
    if not counts:
        return Number(evidence=UNKNOWN.format("generates"))
    calls = frames.attempts
    calls = calls[(calls["stage"] != schema.PREFLIGHT) & calls["sent_at_ns"].notna()]
    whole = calls[calls["ended"].isin(schema.COMPLETE)]
    aborted = calls[calls["ended"].isin(CLOSED_BY_CLIENT)]
    n = len(aborted)
    if min(len(whole), n) < FEWEST:
        text = f"not enough data: {n} cancelled and {len(whole)} whole answers, {FEWEST} of each needed"
        return Number(evidence=text, n=n)
    tokens = whole["output_tokens"].to_numpy(np.float64)
    other_calls = len(calls) - len(whole) - n - int(calls["ended"].isin(ENDS_WITHOUT_TOKENS).sum())
    if np.isnan(tokens).any() or other_calls:
        text = "the engine's count cannot be used: some calls failed or have no usage"
        return Number(evidence=text, n=n)
    # The cancelled answers had no usage: their chunks carry as many tokens as those of the whole ones.
    received = (
        float(aborted["chunks"].sum())
        * float(tokens.sum())
        / max(1.0, float(whole["chunks"].sum()))
    )
    extra = counts["after"] - counts["before"] - float(tokens.sum()) - received
    full_tokens = n * float(tokens.mean())
    rest = max(full_tokens - received, 1.0)
    # The error of the tokens of n answers, if their mean is predicted from that of the whole ones.
    spread = float(tokens.std(ddof=1)) * math.sqrt(n + n**2 / len(whole))
    error = max(LEAST_ERROR, spread / rest)
    rest_share = extra / rest
    engine = counts["engine"]
    # More than all of the rest, or less than nothing, beyond the error: the count is not of these calls.
    if rest_share > 1.25 + 3 * error:
        text = f"{engine} counts more tokens than were requested: others use it too"
        return Number(evidence=text, n=n)
    if rest_share < -0.25 - 3 * error:
        return Number(evidence=f"{engine} counts fewer tokens than its usage", n=n)
    text = f"{engine} counts {count(max(0.0, extra))} tokens generated after the client left, {share(max(0.0, rest_share))} of the remaining tokens of {n:,} answers"
    value = min(1.0, max(0.0, rest_share))
    return Number(
        evidence=text,
        gain=cancelled_share * value * rest / full_tokens,
        n=n,
        value=value,
        low=min(value, max(0.0, rest_share - LEVEL_Z * error)),
        high=max(value, min(1.0, rest_share + LEVEL_Z * error)),
        allowed=ALLOWED_SHARE_OF_REST,
    )
