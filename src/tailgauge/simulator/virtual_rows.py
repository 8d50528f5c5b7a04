"""The rows of a virtual run, built column by column.

Rule: the tables, columns and types are those of `tailgauge.rows.schema`; this file says which value a column has where no
network and no client exist. What only a socket has (reads, bytes, connection) is null or 0, and `stamps` is `virtual`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailgauge.rows.schema import PRIMARY, SCHEMA_VERSION, STEADY, TEXT, TURNS, columns
from tailgauge.simulator.engine.job import NO_INTS, Ints
from tailgauge.simulator.tokens import BYTES_PER_TOKEN
from tailgauge.simulator.virtual_fates import CLASSES, NEVER, Fates

_TYPES = {
    "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64(), "bool": pa.bool_(),
    "string": pa.string(), "list<int64>": pa.list_(pa.int64()),
}  # fmt: skip
_STATUS = np.array([200, 200, 529, 200], np.int16)  # by class
_OK, _REFUSED, _CANCELLED = 1, 2, 3
_RUN = "virtual"
_PROTOCOL = "anthropic"
_FIRSTS = ("first_event_at_ns", "first_content_at_ns", "first_content_read_at_ns", "first_text_at_ns")


@dataclass(frozen=True, slots=True)
class Rows:
    """One Arrow table for each kind of row."""

    requests: Any
    attempts: Any
    chunks: Any
    target: Any

    def column(self, name: str) -> Any:
        """A column of the attempts as a numpy array; a time that never was is NEVER."""
        return self.attempts.column(name).fill_null(NEVER).to_numpy()


def rows(
    fates: Fates, prompt_tokens: Ints, output_tokens: Ints, traffic: Sequence[str] | None, model: str
) -> Rows:
    """All tables of a run, in the order of its calls."""
    shared = _shared(fates, prompt_tokens, traffic)
    times = np.concatenate([NO_INTS, *fates.times])
    counts = fates.array("chunks") if fates.keep_chunks else np.zeros(len(prompt_tokens), np.int64)
    arrived = pa.array(times)
    return Rows(
        _table("requests", len(prompt_tokens), _requests(shared, prompt_tokens, output_tokens)),
        _table("attempts", len(prompt_tokens), _attempts(fates, shared, model)),
        _table("chunks", len(times), _chunks(fates, shared, counts, arrived)),
        _table("target", len(prompt_tokens), _truth(fates, shared, counts, arrived)),
    )


def _shared(fates: Fates, prompt_tokens: Ints, traffic: Sequence[str] | None) -> dict[str, Any]:
    """Columns that several tables have, and those that others are made of."""
    n, codes = len(prompt_tokens), fates.array("codes")
    sent, ended, cached = fates.array("sent_ns"), fates.array("ended_ns"), fates.array("cached")
    return {
        "request_id": np.arange(n, dtype=np.int64) * TURNS,
        "stage": _repeated(STEADY, n),
        "traffic": _repeated(_RUN, n) if traffic is None else pa.array(list(traffic), pa.string()),
        "scheduled_at_ns": sent,
        "dispatched_at_ns": sent,
        "ended_at_ns": _unless_never(ended),
        "ended": pa.array(CLASSES, pa.string()).take(pa.array(codes)),
        "protocol": _repeated(_PROTOCOL, n),
        "status": _STATUS[codes],
        "input_tokens": prompt_tokens - cached,
        "output_tokens": fates.array("tokens"),
        "cancelled_at_ns": _where(codes == _CANCELLED, ended),
        "codes": codes,
    }


def _requests(shared: Mapping[str, Any], prompt_tokens: Ints, output_tokens: Ints) -> dict[str, Any]:
    n = len(prompt_tokens)
    ones = np.ones(n, np.int16)
    return {
        **shared,
        "pattern": _repeated("streaming", n),
        "legs": ones,
        "attempts": ones,
        "asked_prompt_tokens": prompt_tokens,
        "asked_output_tokens": output_tokens,
    }


def _attempts(fates: Fates, shared: Mapping[str, Any], model: str) -> dict[str, Any]:
    codes, n = shared["codes"], len(shared["codes"])
    ok, ended = codes == _OK, fates.array("ended_ns")
    first, last = fates.array("first_ns"), fates.array("last_ns")
    # Headers leave with the first event; those of a refusal at once.
    headers = _unless_never(np.where(codes == _REFUSED, ended, first))
    named = _repeated(model, n)
    chunks = fates.array("chunks")
    answered = {"stop_reason": _repeated("max_tokens", n), "model": named}
    return {
        **shared,
        **{name: _only(ok, values) for name, values in answered.items()},
        "cause": _repeated(PRIMARY, n),
        "asked_model": named,
        "sent_at_ns": shared["scheduled_at_ns"],
        "headers_at_ns": headers,
        "first_byte_at_ns": headers,
        **dict.fromkeys(_FIRSTS, _unless_never(first)),
        "last_content_at_ns": _unless_never(last),
        "stopped_at_ns": _where(ok, last),
        "cache_read_input_tokens": _where(ok, fates.array("cached")),
        "cache_creation_input_tokens": _where(ok, np.zeros(n, np.int64)),
        "input_tokens": _where(ok, shared["input_tokens"]),
        "output_tokens": _where(ok, shared["output_tokens"]),
        "chunks": chunks,
        "stamps": _repeated("virtual", n),
    }


def _chunks(fates: Fates, shared: Mapping[str, Any], counts: Ints, arrived: Any) -> dict[str, Any]:
    index = np.arange(len(arrived)) - np.repeat(np.cumsum(counts) - counts, counts)
    return {
        "request_id": np.repeat(shared["request_id"], counts),
        "chunk_index": index,
        "kind": _repeated(TEXT, len(arrived)),
        "arrived_at_ns": arrived,
        "lag_ns": np.zeros(len(arrived), np.int64),
        "exact": np.ones(len(arrived), np.bool_),
        "read_index": index,
        "chars": np.concatenate([NO_INTS, *fates.sizes]) * BYTES_PER_TOKEN,
    }


def _truth(fates: Fates, shared: Mapping[str, Any], counts: Ints, arrived: Any) -> dict[str, Any]:
    names = [f"{_RUN}/{request}/0/0" for request in shared["request_id"].tolist()]
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return {
        **shared,
        "client_request_id": pa.array(names, pa.string()),
        "received_at_ns": shared["scheduled_at_ns"],
        "headers_at_ns": _unless_never(fates.array("first_ns")),
        "chunk_sent_at_ns": pa.ListArray.from_arrays(offsets, arrived),
    }


def _table(name: str, n: int, values: Mapping[str, Any]) -> Any:
    """A table of the records; a column without a value is null, or 0 where null is not allowed."""
    described = columns(name)
    fields = [pa.field(c.name, _TYPES[c.kind], c.nullable) for c in described]
    schema = pa.schema(fields, {"tailgauge.schema_version": str(SCHEMA_VERSION)})
    return pa.Table.from_arrays([_column(values.get(f.name), f, n) for f in fields], schema=schema)


def _column(value: Any, field: Any, n: int) -> Any:
    if value is None:
        return pa.nulls(n, field.type) if field.nullable else pa.array(np.zeros(n, np.int64)).cast(field.type)
    array = value if isinstance(value, pa.Array) else pa.array(value)
    return array if array.type == field.type else array.cast(field.type)


def _repeated(text: str, n: int) -> Any:
    """The same text n times, made without n Python objects."""
    offsets = np.arange(n + 1, dtype=np.int32) * len(text)
    data = np.frombuffer(text.encode() * n, np.uint8)
    return pa.StringArray.from_buffers(n, pa.py_buffer(offsets), pa.py_buffer(data))


def _where(which: Any, values: Ints) -> Any:
    return pa.array(values, mask=~which)


def _only(which: Any, values: Any) -> Any:
    return pc.if_else(pa.array(which), values, pa.scalar(None, values.type))


def _unless_never(values: Ints) -> Any:
    return pa.array(values, mask=values == NEVER)
