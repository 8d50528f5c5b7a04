"""Which limit refused: the kind of every 429.

Rule: the first of these that says something: the error's code, the bucket that its headers show empty, its message, the
only bucket that its headers do not show with room. A kind that nothing tells is `unknown`, and stays so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.rate_limit_headers import (
    INPUT,
    KINDS,
    LIMIT,
    OUTPUT,
    REMAINING,
    REQUESTS,
    TOKENS,
    column,
    rounding,
)

RAMP, SPEND, UNKNOWN = "ramp", "spend", "unknown"
ALL = (*KINDS, RAMP, SPEND, UNKNOWN)

_ALL_TOKENS = ["input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"]
BY_CODE, BY_EMPTY, BY_MESSAGE, BY_ROOM = (
    "error code",
    "empty in the headers",
    "message",
    "room in the headers",
)

# What providers write: Anthropic's and OpenAI's error codes and messages.
_CODES = (
    (RAMP, r"ramp_limit_exceeded"),
    (SPEND, r"enforced_spend_limit_reached|insufficient_quota|usage limits"),
)
_MESSAGES = (
    (RAMP, r"acceleration limit"),
    (INPUT, r"input tokens per min"),
    (OUTPUT, r"output tokens per min"),
    (REQUESTS, r"requests per (?:min|day)|\((?:RPM|RPD)\)"),
    (TOKENS, r"tokens per (?:min|day)|\((?:TPM|TPD)\)"),
)


def refused(attempts: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Which attempts got a 429."""
    found: npt.NDArray[np.bool_] = (attempts["ended"] == schema.RATE_LIMITED).to_numpy(np.bool_)
    return found


def kinds(attempts: pd.DataFrame) -> pd.DataFrame:
    """Columns `kind` and `how`, one row a 429, under the index of its attempt."""
    rows = attempts[refused(attempts)]
    text = rows["error_body"].fillna("") + " " + rows["error_type"].fillna("")
    told = pd.DataFrame({"kind": UNKNOWN, "how": ""}, rows.index, dtype=object)
    if not len(rows):
        return told

    def say(where: pd.Series[bool], kind: str, how: str) -> None:
        told.loc[where & (told["how"] == ""), ["kind", "how"]] = [kind, how]

    for kind, pattern in _CODES:
        say(text.str.contains(pattern, case=False, regex=True), kind, BY_CODE)
    for kind in KINDS:
        say((rows["limit_kind"] == kind).fillna(value=False).astype(bool), kind, BY_EMPTY)
    for kind, pattern in _MESSAGES:
        say(text.str.contains(pattern, case=False, regex=True), kind, BY_MESSAGE)
    room = with_room(attempts)
    if room is not None and len(room.columns):
        without = ~room.loc[rows.index]
        for kind in room.columns:
            say(without[kind] & (without.sum(axis=1) == 1), kind, BY_ROOM)
    return told


def missing(attempts: pd.DataFrame, kind: str) -> pd.Series[float] | None:
    """What a bucket lacks after each response, by its headers; None without such headers."""
    names = [column(kind, LIMIT), column(kind, REMAINING)]
    if any(name not in attempts.columns for name in names):
        return None
    return attempts[names[0]] - attempts[names[1]]


def with_room(attempts: pd.DataFrame) -> pd.DataFrame | None:
    """By kind of bucket: whether it had room for a call, since an admitted one left as little behind.

    What is missing after an admitted call is at most the burst; so a call before which less was missing than that, by its
    cost, was not refused by this bucket. Costs are those of the dearest known call, and roundings count against room.
    """
    said = refused(attempts)
    out = {}
    own = [kind for kind in KINDS if kind != TOKENS and missing(attempts, kind) is not None]
    for kind in own or [TOKENS]:
        lacking = missing(attempts, kind)
        if lacking is None:
            continue
        most = lacking[~said].groupby([attempts["target"], attempts["asked_model"]], observed=True).max()
        keys = pd.MultiIndex.from_frame(attempts[["target", "asked_model"]])
        ceiling = most.reindex(keys).to_numpy(np.float64)
        most_left = attempts[column(kind, REMAINING)].to_numpy(np.float64)
        cost = _dearest(attempts, kind) + 2 * rounding(kind, most_left)
        out[kind] = lacking.to_numpy(np.float64) + cost <= ceiling
    return pd.DataFrame(out, attempts.index) if out else None


def _dearest(attempts: pd.DataFrame, kind: str) -> float:
    """What no call costs more than, as far as is known."""
    names = {INPUT: ["input_tokens", "cache_creation_input_tokens"], TOKENS: _ALL_TOKENS}.get(kind)
    if names is None:
        return 1.0
    most = attempts[names].sum(axis=1).max()
    return max(1.0, float(most)) if most > 0 else np.inf
