"""Commands that repeat a run: its own scenario, target, overrides, plugins and workers, and what is changed of them."""

from __future__ import annotations

from collections.abc import Sequence

from tailgauge.command_line import run_line
from tailgauge_analysis.text.json_values import Json, number, table

HEADROOM = "headroom"
CURVE = "curve"


def again(record: Json, sets: Sequence[str] = (), options: Sequence[str] = ()) -> str | None:
    """Return the command that runs the same traffic with these changes; None where the run does not name its scenario.

    The tasks of a locustfile are no scenario, and the file of an experiment's step does not last.
    """
    if not record["scenario_file"] or table(record["scenario"], "arrival").get("process") == "tasks":
        return None
    overrides = [*record["overrides"], *sets]
    if options:  # a length replaces the stages, or the number of requests, that an earlier length made
        replaced = ("stages=", "arrival.closed.requests=") if "--requests" in options else "stages="
        overrides = [text for text in overrides if not text.startswith(replaced)]
    return run_line(
        record["scenario_file"],
        overrides,
        plugins=[str(one.get("given") or one.get("file")) for one in record["plugins"]],
        workers=len(record["workers"]) - elsewhere(record),
        dry_run=record["dry_run"],
        options=options,
    )


def experiment(record: Json, kind: str, rate_per_s: float | None) -> str | None:
    """Return the command of an experiment on the same traffic; None where it cannot set the load of this run.

    `rate_per_s`: the rate offered, for a trace that sets none.
    """
    arrival = table(record["scenario"], "arrival")
    sets = [f"experiment.kind={kind}"]
    if arrival.get("process") == "closed":
        if kind != CURVE:
            return None
        sets.append("experiment.curve.by=concurrency")
    elif arrival.get("process") == "trace" and number(arrival.get("rate_per_s")) is None:
        if rate_per_s is None:
            return None
        sets.append(f"arrival.rate_per_s={rate_per_s:.4g}")
    return again(record, sets)


def elsewhere(record: Json) -> int:
    """Return how many workers ran on other machines than the master's."""
    host = record["master"].get("host")
    return sum(worker["host"] != host for worker in record["workers"] if host and worker["host"])
