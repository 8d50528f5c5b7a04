"""Rate-limit headers as numbers: how many are allowed in which time, and how many are left, by `tailgauge.limits`.

JSON text becomes columns while a part is loaded: the text is many times as long as its numbers.
A header that cannot be read is as good as absent. Of several windows of one limit the shortest counts, whose limit and
remainder belong together. A limit that names no window is one per minute, unless its resets tell another: a bucket that
lacks m of its limit L is full again in m / L of its window (Groq's and some of OpenAI's limits on requests are per day, by
the same names as those per minute). Of token limits `remaining` may be rounded to the nearest 1,000, which shows in the numbers; no
assumption is made on who rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tailgauge import limits, vendors
from tailgauge_analysis.stats.quantiles import Floats, Mask
from tailgauge_analysis.text.json_values import parsed

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
AGREEMENT = 1.3  # a window by resets, relative to one of WINDOWS_S

Texts = Mapping[str, pa.ChunkedArray]  # by header


@dataclass(frozen=True, slots=True)
class Reading:
    """What a family of headers says of one limit, a number each row; NaN where it says nothing."""

    kind: str
    order: tuple[float, int, str]  # window, rank and name: the first of a kind counts
    limit: Floats
    remaining: Floats
    window_s: Floats

    @property
    def is_whole(self) -> Mask:
        """Rows with both numbers."""
        return ~np.isnan(self.limit) & ~np.isnan(self.remaining)


def column(kind: str, field: str) -> str:
    """Name of a frame's column."""
    return f"{HEADER}{kind}_{field}"


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
        for field, values in _merged(ours, len(rows)).items():
            if np.isnan(values).all():
                continue
            whole = np.full(attempts.num_rows, np.nan)
            whole[rows] = values
            rest = rest.append_column(column(kind, field), pa.array(whole, pa.float64()))
    return rest


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
    windows_s = fields[WINDOW]
    if np.all(np.isnan(windows_s) | (windows_s == MINUTE_S)):
        del fields[WINDOW]
    return fields


def _parsed(texts: pa.ChunkedArray) -> Texts:
    """Return the texts of each header. Arrow reads them all at once; where it stumbles each is tried alone."""
    lines = texts.cast(pa.string()).to_pylist()
    try:
        table = pyarrow.json.read_json(BytesIO("\n".join(lines).encode()))
    except pa.ArrowInvalid:
        table = None
    if table is None or table.num_rows != len(lines):
        rows = [{name: str(value) for name, value in parsed(line).items()} for line in lines]
        names = {name for row in rows for name in row if _is_read(name)}
        return {name: pa.chunked_array([[row.get(name) for row in rows]], pa.string()) for name in names}
    return {
        name: table[name].cast(pa.string())
        for name in table.column_names
        if _is_read(name) and not pa.types.is_nested(table[name].type)
    }


def _is_read(name: str) -> bool:
    return limits.meaning(name) is not None or limits.structured_field(name) is not None


def _named(headers: Texts, count: int) -> Iterator[Reading]:
    """Yield what headers with one value each say."""
    families: dict[str, dict[str, str]] = {}
    for name in headers:
        known = limits.meaning(name)
        if known is not None:
            families.setdefault(known.family, {})[known.role] = name
    nothing = np.full(count, np.nan)
    for family, names in families.items():
        known = limits.meaning(next(iter(names.values())))
        assert known is not None
        numbers = {
            role: _each(headers[name], limits.number_of)
            for role, name in names.items()
            if role != limits.RESET
        }
        limit = numbers.get(LIMIT, nothing)
        remaining = numbers.get(REMAINING, nothing)
        windows_s = np.full(count, known.window_s or np.nan)
        if LIMIT in names and known.window_s is None:
            windows_s = _each(headers[names[LIMIT]], limits.window_of)
        if limits.RESET in names and np.isnan(windows_s).all():
            resets_s = _each(headers[names[limits.RESET]], _precise_duration)
            windows_s = np.full(count, window_by_resets(limit, remaining, resets_s) or np.nan)
        yield Reading(
            kind=known.kind,
            order=(known.window_s or MINUTE_S, known.rank, family),
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
        names = [name for name, field in fields.items() if field is not None and name == prefix + field]
        columns = [headers[name].combine_chunks() for name in names]
        joined = pc.binary_join_element_wise(*columns, "\n", null_handling="replace")
        coded = joined.dictionary_encode()
        answers = [_shortest(names, text) for text in coded.dictionary.to_pylist()]
        codes = np.asarray(coded.indices)
        for kind in KINDS:
            numbers = np.full((len(answers), len(FIELDS)), np.nan)
            for number, answer in enumerate(answers):
                if kind in answer:
                    numbers[number] = answer[kind]
            limit, remaining, window_s = numbers[codes].T
            yield Reading(kind, (MINUTE_S, 0, prefix), limit, remaining, window_s)


def _shortest(names: list[str], text: str) -> dict[str, tuple[float, float, float]]:
    """Return limit, remaining and window by kind, of the policy with the shortest window."""
    values = limits.limits(list(zip(names, text.split("\n"), strict=True)))
    answers: dict[str, tuple[float, float, float]] = {}
    for kind in KINDS:
        ours = [value for value in values if value.kind == kind and value.role != limits.RESET]
        windows = sorted({value.window_s or math.inf for value in ours})
        if not windows:
            continue
        numbers = {value.role: value.value for value in ours if (value.window_s or math.inf) == windows[0]}
        window_s = math.nan if math.isinf(windows[0]) else windows[0]
        answers[kind] = (numbers.get(LIMIT, math.nan), numbers.get(REMAINING, math.nan), window_s)
    return answers


def _each(texts: pa.ChunkedArray, read: Callable[[str], float | None]) -> Floats:
    """Numbers of many texts, of which few are different."""
    coded = texts.combine_chunks().dictionary_encode()
    numbers = [read(text) for text in coded.dictionary.to_pylist()]
    known = np.array([*numbers, None], np.float64)  # None is NaN, and the last is of a missing text
    found: Floats = known[np.asarray(pc.fill_null(coded.indices, len(known) - 1))]
    return found


def rounding(kind: str, remaining: Floats) -> float:
    """How far `remaining` may be off: half a thousand where every one is a whole thousand of tokens."""
    known = remaining[~np.isnan(remaining)]
    return ROUNDING / 2 if kind != REQUESTS and len(known) and not (known % ROUNDING).any() else 0.0
