"""One worker of a run, from its entry in run.json and its own record, workers/<n>.json.

Every key of the result has its type. The master's entry counts while the master lives; of a worker that the master lost, its
own last record, if there is one; of a run whose master died, the workers' records. A record that still says `running` was
written at the start, so its counts are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailgauge_analysis.load.run_json import WorkerJson
from tailgauge_analysis.text.json_values import Json, table, text, whole

ENDED = ("drained", "failed")  # final states of a worker's own record
MOST = 10_000  # workers of a run
_COUNTED = ("counts", "leased", "rows")  # true only at the time of writing
_FINAL = ("rows", "counts", "unwritten", "why", "stamps")


def entries(by_master: Sequence[Any], by_worker: Sequence[Json], *, master_ended: bool) -> list[Json]:
    """One entry per worker, by number."""
    listed = {number: w for w in by_master if (number := _number(w)) is not None}
    records: dict[int, Json] = {}
    for record in by_worker:
        number = _number(record)
        if number is not None and not _has_ended(records.get(number, {})):
            records[number] = record
    join = _of_lost if master_ended else _of_orphan
    last = max(records, default=-1)  # a worker below it was there too, whether or not its folder is given
    others = range(last) if not listed and last < MOST else ()
    numbers = sorted(listed if master_ended else {*listed, *records, *others})
    known = [join(listed.get(number, {}), records.get(number, {})) for number in numbers]
    return [_complete({**entry, "worker": number}) for number, entry in zip(numbers, known, strict=True)]


def _number(entry: Any) -> int | None:
    return whole(entry.get("worker")) if isinstance(entry, dict) else None


def _has_ended(record: Json) -> bool:
    return record.get("state") in ENDED


def _of_lost(entry: Json, record: Json) -> Json:
    """The master's entry; of a worker that it lost, with the final values of the worker's record."""
    if entry.get("state") != "lost" or not _has_ended(record):
        return entry
    clock = {"clock": record["clock"]} if table(record, "clock").get("offset_ns") is not None else {}
    final = {key: record[key] for key in _FINAL if key in record}
    return {**entry, **final, **clock, "recorded_state": record["state"]}


def _of_orphan(entry: Json, record: Json) -> Json:
    """The entry of a master that died, without counts, overridden by the worker's record."""
    kept = {key: value for key, value in entry.items() if key not in _COUNTED}
    recorded = record if _has_ended(record) else {k: v for k, v in record.items() if k not in _COUNTED}
    return {**kept, **recorded, "recorded_state": record.get("state", "")}


def _complete(entry: Json) -> Json:
    """Every key with its type, those of the clock among them."""
    given = WorkerJson.model_validate(entry)
    leased = given.leased if "leased" in entry else whole(given.counts.get("leased"))
    return {
        **given.model_dump(exclude={"clock"}),
        **given.clock.model_dump(),
        "leased": leased,
        "recorded_state": text(entry.get("recorded_state")),
    }
