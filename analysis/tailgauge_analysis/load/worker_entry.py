"""What is said of one worker: its entry in run.json, and its own record, workers/<n>.json.

Rule: plain tables in, one plain table a worker out, every key there with its right type; what is no number, no count or
no stretch of time is left out, never raised. Who is believed: while the master lives, the master; of a worker that the master
lost, its own last record, if it has one; of a run whose master died, the workers. A record that still says `running` was
written at the start: its counts are of then, and count nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailgauge_analysis.load.run_json import WorkerJson
from tailgauge_analysis.text.json_values import Json, table, text, whole

ENDED = ("drained", "failed")  # what a worker says of itself at its end
MOST = 10_000  # workers of a run
_COUNTED = ("counts", "leased", "rows")  # what was so only when it was written
_LAST_WORDS = ("rows", "counts", "unwritten", "why", "stamps")


def entries(by_master: Sequence[Any], own: Sequence[Json], *, master_ended: bool) -> list[Json]:
    """One entry a worker, in order of its number."""
    told = {number: w for w in by_master if (number := _number(w)) is not None}
    records: dict[int, Json] = {}
    for record in own:
        number = _number(record)
        if number is not None and not _has_ended(records.get(number, {})):
            records[number] = record
    join = _of_lost if master_ended else _of_orphan
    last = max(records, default=-1)  # a worker below it was there too, whether or not its folder is given
    others = range(last) if not told and last < MOST else ()
    numbers = sorted(told if master_ended else {*told, *records, *others})
    known = [join(told.get(number, {}), records.get(number, {})) for number in numbers]
    return [_complete({**entry, "worker": number}) for number, entry in zip(numbers, known, strict=True)]


def _number(entry: Any) -> int | None:
    return whole(entry.get("worker")) if isinstance(entry, dict) else None


def _has_ended(record: Json) -> bool:
    return record.get("state") in ENDED


def _of_lost(told: Json, record: Json) -> Json:
    """The master's entry; of a worker that it lost, with the worker's last words."""
    if told.get("state") != "lost" or not _has_ended(record):
        return told
    clock = {"clock": record["clock"]} if table(record, "clock").get("offset_ns") is not None else {}
    words = {key: record[key] for key in _LAST_WORDS if key in record}
    return {**told, **words, **clock, "own_state": record["state"]}


def _of_orphan(told: Json, record: Json) -> Json:
    """What its master had heard of it when it died, without counts, and over it its own record."""
    kept = {key: value for key, value in told.items() if key not in _COUNTED}
    words = record if _has_ended(record) else {k: v for k, v in record.items() if k not in _COUNTED}
    return {**kept, **words, "own_state": record.get("state", "")}


def _complete(entry: Json) -> Json:
    """Every key with its type, the clock's beside the others."""
    given = WorkerJson.model_validate(entry)
    leased = given.leased if "leased" in entry else whole(given.counts.get("leased"))
    return {
        **given.model_dump(exclude={"clock"}),
        **given.clock.model_dump(),
        "leased": leased,
        "own_state": text(entry.get("own_state")),
    }
