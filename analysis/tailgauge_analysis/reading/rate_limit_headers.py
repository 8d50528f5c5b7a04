"""Rate-limit headers as numbers: how many are allowed, and how many are left, by `tailgauge.limits`.

JSON text becomes columns while a part is loaded: the text is many times as long as its numbers.
A header that cannot be read is as good as absent. Of several windows of one limit the shortest counts. Of token limits
`remaining` may be rounded to the nearest 1,000, which shows in the numbers; no assumption is made on who rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tailgauge import limits
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.json_values import parsed

REQUESTS = "requests"
INPUT = "input_tokens"
OUTPUT = "output_tokens"
TOKENS = "tokens"
KINDS = (REQUESTS, INPUT, OUTPUT, TOKENS)
LIMIT = limits.LIMIT
REMAINING = limits.REMAINING
FIELDS = (LIMIT, REMAINING)
SOURCE = "rate_limit_headers"
HEADER = "header_"  # how the frame's columns begin
ROUNDING = 1000  # tokens

# The names with one value each, the shortest window first.
_NAMES = dict(
    sorted(
        ((name, meaning) for name, meaning in limits.NAMES.items() if meaning.role in FIELDS),
        key=lambda pair: pair[1].window_s or 0.0,
    )
)
_SCHEMA = pa.schema([(name, pa.string()) for name in (*_NAMES, *sorted(limits.STRUCTURED))])


def column(kind: str, field: str) -> str:
    """Name of a frame's column."""
    return f"{HEADER}{kind}_{field}"


def lean(attempts: pa.Table) -> pa.Table:
    """The table with numbers in place of the text; columns only of the headers that are there."""
    texts = attempts[SOURCE]
    rest = attempts.drop_columns([SOURCE])
    at = np.flatnonzero(np.asarray(pc.is_valid(texts)))
    if not len(at):
        return rest
    headers = _parsed(texts.take(pa.array(at)))
    found = dict[tuple[str, str], Floats]()
    for name in headers.column_names:
        if headers[name].null_count == len(at):
            continue
        for what, values in _values(headers[name], name):
            known = found.get(what, values)
            found[what] = np.where(np.isnan(known), values, known)
    for what in product(KINDS, FIELDS):
        if what in found and not np.isnan(found[what]).all():
            whole = np.full(attempts.num_rows, np.nan)
            whole[at] = found[what]
            rest = rest.append_column(column(*what), pa.array(whole, pa.float64()))
    return rest


def _parsed(texts: pa.ChunkedArray) -> pa.Table:
    """One row a text. Arrow reads them all at once; where it stumbles each is tried alone."""
    lines = texts.cast(pa.string()).to_pylist()
    options = pyarrow.json.ParseOptions(explicit_schema=_SCHEMA, unexpected_field_behavior="ignore")
    try:
        table = pyarrow.json.read_json(BytesIO("\n".join(lines).encode()), parse_options=options)
    except pa.ArrowInvalid:
        table = None
    if table is not None and table.num_rows == len(lines):
        return table
    known = [{name: str(v) for name, v in parsed(line).items() if name in _SCHEMA.names} for line in lines]
    return pa.Table.from_pylist(known, schema=_SCHEMA)


def _values(texts: pa.ChunkedArray, name: str) -> Iterator[tuple[tuple[str, str], Floats]]:
    """Yield kind and role of what a header tells, with its number in each row."""
    if name in _NAMES:
        meaning = _NAMES[name]
        yield (meaning.kind, meaning.role), _each(texts, _number)
        return
    for what in product(KINDS, FIELDS):
        yield what, _each(texts, partial(_structured, what))


def _structured(what: tuple[str, str], text: str) -> float:
    """Return a number of a structured field, that of the shortest window; NaN where it has none."""
    values = [one for one in limits.structured(text) if (one.kind, one.role) == what]
    shortest = min(values, key=lambda one: one.window_s or 0.0, default=None)
    return math.nan if shortest is None else shortest.value


def _number(text: str) -> float:
    try:
        number = float(re.split("[,;]", text, maxsplit=1)[0])
    except ValueError:
        return math.nan
    return number if math.isfinite(number) and number >= 0 else math.nan


def _each(texts: pa.ChunkedArray, read: Callable[[str], float]) -> Floats:
    """Numbers of many texts, of which few are different."""
    coded = texts.combine_chunks().dictionary_encode()
    numbers = [read(text) for text in coded.dictionary.to_pylist()]
    known = np.append(np.asarray(numbers, np.float64), np.nan)
    found: Floats = known[np.asarray(pc.fill_null(coded.indices, len(known) - 1))]
    return found


def rounding(kind: str, remaining: Floats) -> float:
    """How far `remaining` may be off: half a thousand where every one is a whole thousand of tokens."""
    known = remaining[~np.isnan(remaining)]
    return ROUNDING / 2 if kind != REQUESTS and len(known) and not (known % ROUNDING).any() else 0.0
