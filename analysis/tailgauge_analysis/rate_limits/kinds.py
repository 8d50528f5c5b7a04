"""Which limit refused: the kind of every 429.

Rule: the first of these that says something: the error's code, the bucket that its headers show empty, its message, the
only bucket that its headers do not show with room. A kind that nothing tells is `unknown`, and stays so.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tailgauge import records
from tailgauge_analysis.rate_limits.headers import (
    INPUT,
    KINDS,
    LIMIT,
    OUTPUT,
    REMAINING,
    REQUESTS,
    TOKENS,
    column,
)

RAMP, SPEND, UNKNOWN = "ramp", "spend", "unknown"
ALL = (*KINDS, RAMP, SPEND, UNKNOWN)

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
    found: npt.NDArray[np.bool_] = (attempts["ended"] == records.RATE_LIMITED).to_numpy(np.bool_)
    return found


def kinds(attempts: pd.DataFrame) -> pd.DataFrame:
    """Columns `kind` and `how`, one row a 429, under the index of its attempt."""
    rows = attempts[refused(attempts)]
    text = rows["error_body"].fillna("") + " " + rows["error_type"].fillna("")
    told = pd.DataFrame({"kind": UNKNOWN, "how": ""}, rows.index, dtype=object)

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
    """By kind of bucket: whether it had room, as after some admitted call no less was missing than before this one.

    A bucket that refuses one call for its cost of at least one would have refused that admitted one as well.
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
        out[kind] = lacking.to_numpy(np.float64) + 1 <= ceiling
    return pd.DataFrame(out, attempts.index) if out else None
