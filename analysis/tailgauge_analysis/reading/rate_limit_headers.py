"""Rate-limit headers as numbers: how many are allowed in which time, and how many are left, by `tailgauge.limits`.

JSON text becomes columns while a part is loaded: the text is many times as long as its numbers.
A header that cannot be read is as good as absent. Of several windows of one limit the shortest counts, whose limit and
remainder belong together; the others have columns of their window. A limit that names no window is one per minute, unless its resets tell another: a bucket that
lacks m of its limit L is full again in m / L of its window (Groq's and some of OpenAI's limits on requests are per day, by
the same names as those per minute). Of token limits `remaining` may be rounded to the nearest 1,000, which shows in the numbers; no
assumption is made on who rounds.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailgauge import limits, vendors
from tailgauge_analysis.stats.quantiles import Floats, Mask
from tailgauge_analysis.text.json_values import Json, parsed

REQUESTS = "requests"
INPUT = "input_tokens"
OUTPUT = "output_tokens"
TOKENS = "tokens"
KINDS = (REQUESTS, INPUT, OUTPUT, TOKENS)
LIMIT = limits.LIMIT
REMAINING = limits.REMAINING
WINDOW = "window_s"
FIELDS = (LIMIT, REMAINING, WINDOW)
SOURCE = "rate_limit_headers"
HEADER = "header_"  # how the frame's columns begin
ROUNDING = 1000  # tokens
MINUTE_S = 60.0  # the window of a limit that names none
WINDOWS_S = tuple(float(seconds) for seconds in vendors.TABLE["limits"]["windows"].values())
FEWEST_LEVELS = 3  # different remainders, before resets tell a window
MOST_WINDOWS = 4  # of one kind, beside the one that counts
AGREEMENT = 1.3  # a window by resets, relative to one of WINDOWS_S

Texts = Mapping[str, pa.ChunkedArray]  # by header
# Limit and remaining, by kind and window in seconds.
_Answer = dict[tuple[str, float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a family of headers says of one limit, a number each row; NaN where it says nothing."""

    kind: str
    order: tuple[float, int, str, float]
    """window, rank, name, and window of a policy: the first of a kind counts"""
    limit: Floats
    remaining: Floats
    window_s: Floats

    @property
    def is_whole(self) -> Mask:
        """Rows with both numbers."""
        return ~np.isnan(self.limit) & ~np.isnan(self.remaining)

    @property
    def usual_window_s(self) -> float:
        """The window of most of its rows."""
        windows = self.window_s[~np.isnan(self.window_s)]
        if not len(windows):
            return MINUTE_S
        return float(np.median(windows))


def column(kind: str, field: str, window_s: float | None = None) -> str:
    """Name of a frame's column; `window_s` of a window that is not the one that counts."""
    name = f"{HEADER}{kind}_{field}"
    if window_s is None:
        return name
    return f"{name}_{window_s:.10g}_s"


def further_windows_s(columns: Iterable[str], kind: str) -> list[float]:
    """Return the windows of a kind that do not count, the shortest first."""
    pattern = re.compile(re.escape(column(kind, REMAINING)) + r"_([0-9.e+]+)_s")
    windows_s = []
    for name in columns:
        match = pattern.fullmatch(name)
        if match is not None:
            windows_s.append(float(match[1]))
    return sorted(windows_s)


def lean(attempts: pa.Table) -> pa.Table:
    """Return the attempts with columns of numbers in place of the headers' JSON text.

    Each kind of limit has a column for limit and remainder of the window that counts, and for its other windows. A column without
    any number is left out; rows without headers are NaN.
    """
    texts = attempts[SOURCE]
    rest = attempts.drop_columns([SOURCE])
    rows = np.flatnonzero(np.asarray(pc.is_valid(texts)))
    if not len(rows):
        return rest
    headers = _parsed(texts.take(pa.array(rows)))
    # Plain headers with one value each, and structured fields with several.
    readings = [*_named(headers, len(rows)), *_structured(headers)]
    for kind in KINDS:
        of_kind = [reading for reading in readings if reading.kind == kind]
        numbers = _merged(of_kind, len(rows))
        columns = _by_name(kind, numbers) | _further(kind, of_kind, numbers)
        for name, values in columns.items():
            if np.isnan(values).all():
                continue
            whole = np.full(attempts.num_rows, np.nan)
            whole[rows] = values
            rest = rest.append_column(name, pa.array(whole, pa.float64()))
    return rest


def _by_name(kind: str, numbers: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the columns of the windows that count; without one of windows where each is a minute."""
    windows_s = numbers[WINDOW]
    are_minutes = bool(np.all(np.isnan(windows_s) | (windows_s == MINUTE_S)))
    fields = (LIMIT, REMAINING) if are_minutes else FIELDS
    return {column(kind, field): numbers[field] for field in fields}


def _further(
    kind: str, readings: list[Reading], numbers: Mapping[str, Floats]
) -> dict[str, Floats]:
    """Return the columns of all windows, in the rows where another one counts."""
    windows_s = {reading.usual_window_s for reading in readings}
    columns: dict[str, Floats] = {}
    if len(windows_s) < 2:
        return columns
    counting_s = np.where(np.isnan(numbers[WINDOW]), MINUTE_S, numbers[WINDOW])
    for window_s in windows_s:
        of_window = [reading for reading in readings if reading.usual_window_s == window_s]
        merged = _merged(of_window, len(counting_s))
        counts = counting_s == window_s
        for field in (LIMIT, REMAINING):
            columns[column(kind, field, window_s)] = np.where(counts, np.nan, merged[field])
    return columns


def _merged(readings: list[Reading], count: int) -> dict[str, Floats]:
    """Return one number per row and field: of the first reading with both, else of the first with either."""
    fields = {field: np.full(count, np.nan) for field in FIELDS}
    is_free = np.full(count, fill_value=True)
    ordered = sorted(readings, key=lambda reading: reading.order)
    for needs_both in (True, False):
        for reading in ordered:
            has_numbers = reading.is_whole
            if not needs_both:
                has_numbers = ~np.isnan(reading.limit) | ~np.isnan(reading.remaining)
            rows = is_free & has_numbers
            fields[LIMIT][rows] = reading.limit[rows]
            fields[REMAINING][rows] = reading.remaining[rows]
            fields[WINDOW][rows] = reading.window_s[rows]
            is_free &= ~rows
    return fields


def _parsed(texts: pa.ChunkedArray) -> Texts:
    """Return the texts of each header that says something of a limit."""
    rows = [parsed(text) for text in texts.to_pylist()]
    names = filter(_is_read, dict.fromkeys(chain.from_iterable(rows)))
    return {name: pa.chunked_array([_column(rows, name)]) for name in names}


def _column(rows: Sequence[Json], name: str) -> pa.Array:
    texts = []
    for row in rows:
        value = row.get(name)
        texts.append(None if value is None else str(value))
    return pa.array(texts, pa.string())


def _is_read(name: str) -> bool:
    return limits.meaning(name) is not None or limits.structured_field(name) is not None


def _named(headers: Texts, count: int) -> Iterator[Reading]:
    """Yield a reading per family of headers that have one value each, as x-ratelimit-limit-requests and its -remaining and -reset.

    `headers`: the texts by name, `count` rows each. A window that no header names follows from the resets, if they agree on one;
    else it is NaN.
    """
    families: dict[str, dict[str, str]] = {}
    for name in headers:
        meaning = limits.meaning(name)
        if meaning is not None:
            families.setdefault(meaning.family, {})[meaning.role] = name
    nothing = np.full(count, np.nan)
    for family, names in families.items():
        meaning = limits.meaning(next(iter(names.values())))
        assert meaning is not None
        numbers = {}
        for role, name in names.items():
            if role != limits.RESET:
                numbers[role] = _read_texts(headers[name], limits.number_of)
        limit = numbers.get(LIMIT, nothing)
        remaining = numbers.get(REMAINING, nothing)
        windows_s = np.full(count, meaning.window_s or np.nan)
        if LIMIT in names and meaning.window_s is None:
            windows_s = _read_texts(headers[names[LIMIT]], limits.window_of)
        if limits.RESET in names and np.isnan(windows_s).all():
            resets_s = _read_texts(headers[names[limits.RESET]], _precise_duration)
            windows_s = np.full(count, window_by_resets(limit, remaining, resets_s) or np.nan)
        yield Reading(
            kind=meaning.kind,
            order=(meaning.window_s or MINUTE_S, meaning.rank, family, 0.0),
            limit=limit,
            remaining=remaining,
            window_s=windows_s,
        )


def _precise_duration(text: str) -> float | None:
    """Return the seconds of a duration; None of a single second, which may be much less rounded up."""
    seconds = limits.duration_of(text)
    if seconds is None or (seconds < 2 and seconds.is_integer()):
        return None
    return seconds


def window_by_resets(limit: Floats, remaining: Floats, resets_s: Floats) -> float | None:
    """Return the window of a bucket by how long what it lacks takes to return; None unless every response agrees."""
    missing = limit - remaining
    rows = (missing >= 1) & (resets_s > 0)
    if len(np.unique(missing[rows])) < FEWEST_LEVELS:
        return None
    windows_s = resets_s[rows] * limit[rows] / missing[rows]
    low, middle, high = np.quantile(windows_s, (0.1, 0.5, 0.9))
    for window_s in WINDOWS_S:
        if window_s / AGREEMENT < low <= middle <= high < window_s * AGREEMENT:
            return window_s
    return None


def _structured(headers: Texts) -> Iterator[Reading]:
    """Yield a reading per kind and window of structured fields (RateLimit and RateLimit-Policy), which state several limits at once.

    Fields of one prefix belong together: one has the policy, the other its state. A window that is not stated is NaN.
    """
    names_by_prefix: dict[str, list[str]] = {}
    for name in headers:
        field = limits.structured_field(name)
        if field is not None:
            names_by_prefix.setdefault(name.removesuffix(field), []).append(name)
    for prefix, names in names_by_prefix.items():
        columns = [headers[name].combine_chunks() for name in names]
        joined = pc.binary_join_element_wise(*columns, "\n", null_handling="replace")
        # Many responses have the same texts: each is read once.
        coded = joined.dictionary_encode()
        answers = [_answer(names, text) for text in coded.dictionary.to_pylist()]
        codes = np.asarray(coded.indices)
        for kind in KINDS:
            for window_s in _usual_windows_s(kind, answers):
                pairs = [answer.get((kind, window_s), (math.nan, math.nan)) for answer in answers]
                limit, remaining = np.array(pairs, np.float64)[codes].T
                stated_s = window_s if math.isfinite(window_s) else math.nan
                yield Reading(
                    kind=kind,
                    order=(MINUTE_S, 0, prefix, window_s),
                    limit=limit,
                    remaining=remaining,
                    window_s=np.full(len(codes), stated_s),
                )


def _usual_windows_s(kind: str, answers: Sequence[_Answer]) -> list[float]:
    """Return the windows of a kind that most answers state."""
    counts: Counter[float] = Counter()
    for answer in answers:
        for answer_kind, window_s in answer:
            if answer_kind == kind:
                counts[window_s] += 1
    return [window_s for window_s, _ in counts.most_common(MOST_WINDOWS)]


def _answer(names: list[str], text: str) -> _Answer:
    """Return limit and remaining by kind and window; the window is infinite where none is stated."""
    answer: _Answer = {}
    for value in limits.limits(list(zip(names, text.split("\n"), strict=True))):
        key = (value.kind, value.window_s or math.inf)
        limit, remaining = answer.get(key, (math.nan, math.nan))
        if value.role == LIMIT:
            answer[key] = (value.value, remaining)
        elif value.role == REMAINING:
            answer[key] = (limit, value.value)
    return answer


def _read_texts(texts: pa.ChunkedArray, read: Callable[[str], float | None]) -> Floats:
    """Return the numbers of many texts, of which few are different."""
    coded = texts.combine_chunks().dictionary_encode()
    numbers = [read(text) for text in coded.dictionary.to_pylist()]
    # None is NaN, and the last is of a missing text.
    values = np.array([*numbers, None], np.float64)
    result: Floats = values[np.asarray(pc.fill_null(coded.indices, len(values) - 1))]
    return result


def rounding(kind: str, remaining: Floats) -> float:
    """Return how far `remaining` may be off: half a thousand where every one is a whole thousand of tokens."""
    numbers = remaining[~np.isnan(remaining)]
    if kind == REQUESTS or not len(numbers) or (numbers % ROUNDING).any():
        return 0.0
    return ROUNDING / 2
