"""429s: which limit caused each, how many there were and when, and whether one limits the growth of traffic.

The kind of a 429 is the first that applies: the error's code, the bucket that its headers show empty, its message, the
only bucket that its headers do not show with capacity left. Otherwise it is `unknown`.

An acceleration limit is certain where a 429 carries the provider's code for it. It is likely where 429s came although every
bucket in their headers had capacity left, while calls grew: more in the window before the 429 than in the window before that.

Shares are of attempts that were sent, with exact (Clopper-Pearson) 95% intervals: on effective n for the stage, because
429s come together, on n for a bin. Bins are by the time of sending, as wide as those of the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.timeline import width
from tailgauge_analysis.reading import rate_limit_headers as headers
from tailgauge_analysis.reading.frames import ended_as
from tailgauge_analysis.reading.rate_limit_headers import INPUT, KINDS, OUTPUT, REQUESTS, TOKENS
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask

RAMP, SPEND, UNKNOWN = "ramp", "spend", "unknown"
ALL = (*KINDS, RAMP, SPEND, UNKNOWN)

_INPUTS = ["input_tokens", "cache_creation_input_tokens"]
_COSTS = {INPUT: _INPUTS, TOKENS: [*_INPUTS, "cache_read_input_tokens", "output_tokens"]}
BY_CODE, BY_EMPTY, BY_MESSAGE = "error code", "empty in the headers", "message"
BY_CAPACITY = "only one without capacity in the headers"
WINDOW_S = 60.0
FEWEST = 5  # unexplained 429s, and more than a twentieth of them, before growth is suspected
CERTAIN, LIKELY, NO = "certain", "likely", "not detected"

# What providers write: Anthropic's and OpenAI's error codes and messages.
_CODES = {RAMP: "ramp_limit_exceeded", SPEND: "enforced_spend_limit_reached|insufficient_quota|usage limits"}
_MESSAGES = {
    RAMP: r"acceleration limit", INPUT: r"input tokens per min", OUTPUT: r"output tokens per min",
    REQUESTS: r"requests per (?:min|day)|\((?:RPM|RPD)\)", TOKENS: r"tokens per (?:min|day)|\((?:TPM|TPD)\)",
}  # fmt: skip


def refused(attempts: pd.DataFrame) -> Mask:
    """Which attempts got a 429, or an error of the same meaning inside their answer."""
    return ended_as(attempts, schema.RATE_LIMITED)


def rejected(attempts: pd.DataFrame) -> Mask:
    """Which attempts a limit did not admit; an error behind content is of an attempt that it did."""
    return (attempts["ended"] == schema.RATE_LIMITED).to_numpy(np.bool_)


def kinds(attempts: pd.DataFrame) -> pd.DataFrame:
    """Columns `kind` and `how`, one row per 429, under the index of its attempt."""
    rows = attempts[refused(attempts)]
    text = rows["error_body"].fillna("") + " " + rows["error_type"].fillna("")
    found = pd.DataFrame({"kind": UNKNOWN, "how": ""}, rows.index, dtype=object)
    if not len(rows):
        return found

    def assign(where: pd.Series[bool], kind: str, how: str) -> None:
        found.loc[where & (found["how"] == ""), ["kind", "how"]] = [kind, how]

    for kind, pattern in _CODES.items():
        assign(text.str.contains(pattern, case=False, regex=True), kind, BY_CODE)
    for kind in KINDS:
        assign((rows["limit_kind"] == kind).fillna(value=False).astype(bool), kind, BY_EMPTY)
    for kind, pattern in _MESSAGES.items():
        assign(text.str.contains(pattern, case=False, regex=True), kind, BY_MESSAGE)
    free = with_capacity(attempts)
    if free is not None:
        full = ~free.loc[rows.index]
        for kind in full.columns:
            assign(full[kind] & (full.sum(axis=1) == 1), kind, BY_CAPACITY)
    return found


def _missing(attempts: pd.DataFrame, kind: str) -> pd.Series[float] | None:
    """What a bucket lacks after each response, by its headers; None without such headers."""
    names = [headers.column(kind, headers.LIMIT), headers.column(kind, headers.REMAINING)]
    if any(name not in attempts.columns for name in names):
        return None
    return attempts[names[0]] - attempts[names[1]]


def with_capacity(attempts: pd.DataFrame) -> pd.DataFrame | None:
    """Per kind of bucket: whether it had capacity for a call, because it admitted one that left as little behind.

    What is missing after an admitted call is at most the burst; so a call before which less was missing than that, by its
    cost, was not refused by this bucket. Costs are those of the largest known call; roundings count against capacity.
    """
    is_429 = rejected(attempts)
    out = {}
    headed = [kind for kind in KINDS if kind != TOKENS and _missing(attempts, kind) is not None]
    for kind in headed or [TOKENS]:
        lacking = _missing(attempts, kind)
        if lacking is None:
            continue
        most = lacking[~is_429].groupby([attempts["target"], attempts["asked_model"]], observed=True).max()
        keys = pd.MultiIndex.from_frame(attempts[["target", "asked_model"]])
        ceiling = most.reindex(keys).to_numpy(np.float64)
        most_left = attempts[headers.column(kind, headers.REMAINING)].to_numpy(np.float64)
        cost = _largest_cost(attempts, kind) + 2 * headers.rounding(kind, most_left)
        out[kind] = lacking.to_numpy(np.float64) + cost <= ceiling
    return pd.DataFrame(out, attempts.index) if out else None


def _largest_cost(attempts: pd.DataFrame, kind: str) -> float:
    """The most that a call costs, as far as is known."""
    if kind not in _COSTS:
        return 1.0
    most = attempts[_COSTS[kind]].sum(axis=1).max()
    return max(1.0, float(most)) if most > 0 else np.inf


@dataclass(frozen=True, slots=True)
class RateLimitKind:
    """The 429s of one limit among all attempts; `how` names what identified them."""

    kind: str
    attempts: Proportion
    first_at_s: float
    how: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bins:
    """The whole run in bins; NaN where nothing was sent."""

    width_s: int
    at_s: Floats
    attempts: Ints
    refused: Ints
    low: Floats
    high: Floats
    by_kind: dict[str, Ints]

    @property
    def share(self) -> Floats:
        """429s of the attempts of each bin."""
        return np.where(self.attempts > 0, self.refused / np.maximum(self.attempts, 1), np.nan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """429s among the attempts of the steady stage, and how many of its requests met one or ended with one."""

    refused: Proportion
    requests: int
    requests_refused: int
    requests_ended_refused: int
    overloaded: Proportion
    """refused too, but by no limit of the client's"""
    by_kind: tuple[RateLimitKind, ...]


def shares(requests: pd.DataFrame, attempts: pd.DataFrame, kinds: pd.DataFrame) -> Shares:
    """Count the 429s of attempts in order of sending."""
    steady = attempts[(attempts["stage"] == schema.STEADY) & attempts["sent_at_ns"].notna()]
    is_429 = refused(steady)
    wanted = requests[requests["stage"] == schema.STEADY]
    rows = kinds.loc[steady.index[is_429]].join(steady["sent_at_ns"])
    by_kind = []
    for kind, group in rows.groupby("kind", sort=False):
        of_kind = proportion(steady.index.isin(group.index))
        how = tuple(sorted({*group["how"]} - {""}))
        by_kind.append(RateLimitKind(str(kind), of_kind, float(group["sent_at_ns"].min()) / 1e9, how))
    return Shares(
        refused=proportion(is_429),
        requests=len(wanted),
        requests_refused=int(steady["request_id"][is_429].nunique()),
        requests_ended_refused=int((wanted["ended"] == schema.RATE_LIMITED).sum()),
        overloaded=proportion(ended_as(steady, schema.OVERLOADED)),
        by_kind=tuple(sorted(by_kind, key=lambda one: -one.attempts.k)),
    )


def bins(attempts: pd.DataFrame, kinds: pd.DataFrame) -> Bins | None:
    """Counts over the whole run without the preflight; None if nothing was sent."""
    sent = attempts[(attempts["stage"] != schema.PREFLIGHT) & attempts["sent_at_ns"].notna()]
    if not len(sent):
        return None
    at_s = np.maximum(0.0, sent["sent_at_ns"].to_numpy(np.float64) / 1e9)
    step = width(float(at_s.max()))
    number = (at_s // step).astype(np.int64)
    count = int(number.max()) + 1
    is_429 = refused(sent)
    n = np.bincount(number, minlength=count)
    k = np.bincount(number[is_429], minlength=count)
    of = kinds["kind"].reindex(sent.index).to_numpy(object)
    present = [kind for kind in ALL if (of == kind).any()]
    by_kind = {kind: np.bincount(number[of == kind], minlength=count) for kind in present}
    at = (np.arange(count) + 0.5).astype(np.float64) * step
    return Bins(step, at, n, k, *_band(is_429, number, count), by_kind)


def _band(seen: Mask, number: Ints, count: int) -> tuple[Floats, Floats]:
    """Intervals bin by bin; NaN where nothing was sent."""
    order = np.argsort(number, kind="stable")
    parts = np.split(seen[order], np.searchsorted(number[order], np.arange(1, count)))
    band = np.array([(found.low, found.high) for found in map(proportion, parts)], np.float64)
    return band[:, 0], band[:, 1]


@dataclass(frozen=True, slots=True)
class Acceleration:
    """Whether an acceleration limit refused calls; `found` is None, with a reason, where the headers are missing."""

    found: str | None
    coded: int = 0  # 429s with the code
    with_headers: int = 0  # other 429s whose headers show a bucket
    with_capacity: int = 0  # of these, with capacity left in every bucket
    growing: int = 0  # of these, while the traffic grew
    first_at_s: float | None = None
    why: str | None = None


def acceleration(attempts: pd.DataFrame, kinds: pd.DataFrame) -> Acceleration:
    """Over the whole run, attempts in order of sending."""
    is_429 = refused(attempts)
    coded = kinds.index[kinds["kind"] == RAMP]
    free = with_capacity(attempts)
    uncoded = is_429 & ~attempts.index.isin(kinds.index[kinds["kind"].isin((RAMP, SPEND))])
    at_s = attempts["sent_at_ns"].to_numpy(np.float64) / 1e9
    headed = unexplained = np.zeros(len(attempts), np.bool_)
    if free is not None:
        names = [headers.column(kind, headers.REMAINING) for kind in free.columns]
        headed = uncoded & attempts[names].notna().all(axis=1).to_numpy(np.bool_)
        unexplained = headed & free.all(axis=1).to_numpy(np.bool_)
    n = int(headed.sum())
    sent = np.sort(at_s[~is_429 & ~np.isnan(at_s)])
    moments = at_s[unexplained]
    window = min(WINDOW_S, float(sent[-1] - sent[0]) / 4) if len(sent) > 1 else WINDOW_S
    before, middle, here = (np.searchsorted(sent, moments - back * window) for back in (2, 1, 0))
    growing = int((here - middle > middle - before).sum())
    firsts = at_s[(attempts.index.isin(coded) | unexplained) & ~np.isnan(at_s)]
    first = float(firsts.min()) if len(firsts) else None
    if len(coded):
        return Acceleration(CERTAIN, len(coded), n, len(moments), growing, first)
    if not uncoded.any():
        return Acceleration(NO)
    if not n:
        return Acceleration(None, why="no 429 carries the headers of its buckets")
    if growing >= max(FEWEST, n / 20):
        return Acceleration(LIKELY, 0, n, len(moments), growing, first)
    return Acceleration(NO, 0, n, len(moments), growing)
