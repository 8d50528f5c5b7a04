"""Rate-limit headers as numbers: how many are allowed, and how many are left.

JSON text becomes columns while a part is loaded: the text is many times as long as its numbers.
Anthropic's and OpenAI's names are known; a header that cannot be read is as good as absent. Of token limits `remaining`
may be rounded to the nearest 1,000, which shows in the numbers; no assumption is made on who rounds.

Sources: Anthropic's rate-limit page (2026-08): `anthropic-ratelimit-<kind>-<field>`. OpenAI's rate-limit guide:
`x-ratelimit-<field>-<kind>`.
"""

from __future__ import annotations

from io import BytesIO
from itertools import product

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.json_values import parsed

REQUESTS, INPUT, OUTPUT, TOKENS = "requests", "input_tokens", "output_tokens", "tokens"
KINDS = (REQUESTS, INPUT, OUTPUT, TOKENS)
LIMIT, REMAINING = "limit", "remaining"
FIELDS = (LIMIT, REMAINING)
SOURCE = "rate_limit_headers"
HEADER = "header_"  # how the frame's columns begin
ROUNDING = 1000  # tokens

_NAMES = {
    **{f"anthropic-ratelimit-{k.replace('_', '-')}-{f}": (k, f) for k in KINDS for f in FIELDS},
    **{f"x-ratelimit-{f}-{k}": (k, f) for k in (REQUESTS, TOKENS) for f in FIELDS},
}
_SCHEMA = pa.schema([(name, pa.string()) for name in _NAMES])


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
    headers, found = _parsed(texts.take(pa.array(at))), dict[tuple[str, str], Floats]()
    for name in headers.column_names:
        if headers[name].null_count < len(at):
            values, what = _each(headers[name]), _NAMES[name]
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
    known = [{name: str(v) for name, v in parsed(line).items() if name in _NAMES} for line in lines]
    return pa.Table.from_pylist(known, schema=_SCHEMA)


def _each(texts: pa.ChunkedArray) -> Floats:
    """Numbers of many texts, of which few are different."""
    coded = texts.combine_chunks().dictionary_encode()
    numbers = pd.to_numeric(coded.dictionary.to_pandas(), errors="coerce").to_numpy(np.float64)
    known = np.append(np.where(np.isfinite(numbers) & (numbers >= 0), numbers, np.nan), np.nan)
    found: Floats = known[np.asarray(pc.fill_null(coded.indices, len(known) - 1))]
    return found


def rounding(kind: str, remaining: Floats) -> float:
    """How far `remaining` may be off: half a thousand where every one is a whole thousand of tokens."""
    known = remaining[~np.isnan(remaining)]
    return ROUNDING / 2 if kind != REQUESTS and len(known) and not (known % ROUNDING).any() else 0.0
