"""What an engine made after clients had left, by its own count of tokens: of all calls together, not call by call.

    made after leaving = what the engine counted - usage of whole answers - what those that were left had shown

Rule: who leaves is drawn by lot, so that the answers that were left would have been as long as the whole ones of the same
run. The count is that of everybody who uses the engine: more than could have been made is told, and tells nothing else.
"""

from __future__ import annotations

import math

import numpy as np

from tailgauge.experiments.checkup.check import FEWEST, Z_STRICT, Check, Gain, Z, p_above, untold
from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.text.formatting import count, share

NAME = "cancel_ignored"
BORNE = 0.25  # of what was left: an engine that stops takes a moment to notice
LEAST_ERROR = 0.01
LEFT = (schema.CANCELLED, schema.CENSORED)  # we closed both
NO_TOKENS = (schema.RATE_LIMITED, schema.OVERLOADED, schema.CONNECT_ERROR)
TOLD = "{} counts {} tokens made after the client had left, {} of what was left of {:,} answers"


def by_engine(frames: Frames, left_share: float) -> Check | None:
    """The check; None where the engine's count is not known."""
    told = frames.run["engine_tokens"]
    if not told:
        return None
    calls = frames.attempts
    calls = calls[(calls["stage"] != schema.PREFLIGHT) & calls["sent_at_ns"].notna()]
    whole, left = calls[calls["ended"] == schema.OK], calls[calls["ended"].isin(LEFT)]
    tokens = whole["output_tokens"].to_numpy(np.float64)
    others = len(calls) - len(whole) - len(left) - int(calls["ended"].isin(NO_TOKENS).sum())
    n = len(left)
    if min(len(whole), n) < FEWEST:
        return untold(NAME, f"only {n} answers were left and {len(whole)} were not, {FEWEST} of each are needed", n)  # fmt: skip
    if np.isnan(tokens).any() or others:
        return untold(NAME, "the engine's count is of no use: some calls failed or told no usage", n)
    had = float(left["chunks"].sum()) * float(tokens.sum()) / max(1.0, float(whole["chunks"].sum()))
    after = told["after"] - told["before"] - float(tokens.sum()) - had
    full = n * float(tokens.mean())
    rest = max(full - had, 1.0)
    # Of the sum of n answers, whose mean is that of the whole ones.
    spread = float(tokens.std(ddof=1)) * math.sqrt(n + n**2 / len(whole))
    error = max(LEAST_ERROR, spread / rest)
    part = after / rest
    if part > 1.25 + 3 * error:
        return untold(NAME, f"{told['engine']} counts more tokens than were asked for: others use it too", n)
    if part < -0.25 - 3 * error:
        return untold(NAME, f"{told['engine']} counts fewer tokens than its usage tells", n)
    gains = [min(1.0, max(0.0, (part + z * error) * rest / full)) * left_share for z in (0, -Z, Z)]
    said = TOLD.format(told["engine"], count(max(0.0, after)), share(max(0.0, part)), n)
    return Check(NAME, n, p_above(part, BORNE, error), said, Gain(*gains), min(1.0, BORNE + Z_STRICT * error))
