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
        return float(np.median(windows)) if len(windows) else MINUTE_S


def column(kind: str, field: str, window_s: float | None = None) -> str:
    """Name of a frame's column; `window_s` of a window that is not the one that counts."""
    name = f"{HEADER}{kind}_{field}"
    return name if window_s is None else f"{name}_{window_s:.10g}_s"


def further_windows_s(columns: Iterable[str], kind: str) -> list[float]:
    """Return the windows of a kind that do not count, the shortest first."""
    pattern = re.compile(re.escape(column(kind, REMAINING)) + r"_([0-9.e+]+)_s")
    matches = [pattern.fullmatch(name) for name in columns]
    return sorted(float(match[1]) for match in matches if match is not None)


def lean(attempts: pa.Table) -> pa.Table:
    """The table with numbers in place of the text; columns only of the headers that are there."""
    texts = attempts[SOURCE]
    rest = attempts.drop_columns([SOURCE])
    rows = np.flatnonzero(np.asarray(pc.is_valid(texts)))
    if not len(rows):
        return rest
    headers = _parsed(texts.take(pa.array(rows)))
    readings = [*_named(headers, len(rows)), *_structured(headers)]
    for kind in KINDS:
        ours = [reading for reading in readings if reading.kind == kind]
        numbers = _merged(ours, len(rows))
        for name, values in {**_by_name(kind, numbers), **_further(kind, ours, numbers)}.items():
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
        ours = [reading for reading in readings if reading.usual_window_s == window_s]
        merged = _merged(ours, len(counting_s))
        for field in (LIMIT, REMAINING):
            columns[column(kind, field, window_s)] = np.where(
                counting_s == window_s, np.nan, merged[field]
            )
    return columns


def _merged(readings: list[Reading], count: int) -> dict[str, Floats]:
    """Return one number per row and field: of the first reading with both, else of the first with either."""
    fields = {field: np.full(count, np.nan) for field in FIELDS}
    is_free = np.full(count, fill_value=True)
    ordered = sorted(readings, key=lambda reading: reading.order)
    for needs_both in (True, False):
        for reading in ordered:
            has_either = ~np.isnan(reading.limit) | ~np.isnan(reading.remaining)
            rows = is_free & (reading.is_whole if needs_both else has_either)
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
    values = (row.get(name) for row in rows)
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _is_read(name: str) -> bool:
    return limits.meaning(name) is not None or limits.structured_field(name) is not None


def _named(headers: Texts, count: int) -> Iterator[Reading]:
    """Yield what headers with one value each say."""
    families: dict[str, dict[str, str]] = {}
    for name in headers:
        meaning = limits.meaning(name)
        if meaning is not None:
            families.setdefault(meaning.family, {})[meaning.role] = name
    nothing = np.full(count, np.nan)
    for family, names in families.items():
        meaning = limits.meaning(next(iter(names.values())))
        assert meaning is not None
        numbers = {
            role: _each(headers[name], limits.number_of)
            for role, name in names.items()
            if role != limits.RESET
        }
        limit = numbers.get(LIMIT, nothing)
        remaining = numbers.get(REMAINING, nothing)
        windows_s = np.full(count, meaning.window_s or np.nan)
        if LIMIT in names and meaning.window_s is None:
            windows_s = _each(headers[names[LIMIT]], limits.window_of)
        if limits.RESET in names and np.isnan(windows_s).all():
            resets_s = _each(headers[names[limits.RESET]], _precise_duration)
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
    is_precise = seconds is not None and (seconds >= 2 or not seconds.is_integer())
    return seconds if is_precise else None


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
    """Yield what the structured fields say, of which a policy and its state belong together."""
    fields = {name: limits.structured_field(name) for name in headers}
    for prefix in {name.removesuffix(field) for name, field in fields.items() if field is not None}:
        names = [
            name for name, field in fields.items() if field is not None and name == prefix + field
        ]
        columns = [headers[name].combine_chunks() for name in names]
        joined = pc.binary_join_element_wise(*columns, "\n", null_handling="replace")
        coded = joined.dictionary_encode()
        answers = [_answers(names, text) for text in coded.dictionary.to_pylist()]
        codes = np.asarray(coded.indices)
        for kind in KINDS:
            counts = Counter(
                window for answer in answers for name, window in answer if name == kind
            )
            for window, _ in counts.most_common(MOST_WINDOWS):
                limit, remaining = _numbers([answer.get((kind, window)) for answer in answers], 2)[
                    codes
                ].T
                windows_s = np.full(len(codes), window if math.isfinite(window) else np.nan)
                yield Reading(kind, (MINUTE_S, 0, prefix, window), limit, remaining, windows_s)


def _numbers(values: Sequence[tuple[float, ...] | None], count: int) -> Floats:
    """Return a row of numbers for each; NaN for None."""
    nothing = (math.nan,) * count
    return np.array([value or nothing for value in values], np.float64).reshape(-1, count)


def _answers(names: list[str], text: str) -> dict[tuple[str, float], tuple[float, float]]:
    """Return limit and remaining by kind and window; the window is infinite where none is stated."""
    values = limits.limits(list(zip(names, text.split("\n"), strict=True)))
    roles: dict[tuple[str, float], dict[str, float]] = {}
    for value in values:
        if value.role != limits.RESET:
            key = (value.kind, value.window_s or math.inf)
            roles.setdefault(key, {})[value.role] = value.value
    return {
        key: (role.get(LIMIT, math.nan), role.get(REMAINING, math.nan))
        for key, role in roles.items()
    }


def _each(texts: pa.ChunkedArray, read: Callable[[str], float | None]) -> Floats:
    """Numbers of many texts, of which few are different."""
    coded = texts.combine_chunks().dictionary_encode()
    numbers = [read(text) for text in coded.dictionary.to_pylist()]
    # None is NaN, and the last is of a missing text.
    values = np.array([*numbers, None], np.float64)
    result: Floats = values[np.asarray(pc.fill_null(coded.indices, len(values) - 1))]
    return result


def rounding(kind: str, remaining: Floats) -> float:
    """How far `remaining` may be off: half a thousand where every one is a whole thousand of tokens."""
    numbers = remaining[~np.isnan(remaining)]
    return (
        ROUNDING / 2
        if kind != REQUESTS and len(numbers) and not (numbers % ROUNDING).any()
        else 0.0
    )
