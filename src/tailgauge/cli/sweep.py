"""Several loads, as options.py reads them from `--rate 2,4,8`, `--concurrency 1,2,4` or `--sweep`: a load curve, as overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailgauge.errors import UsageError

CURVE = "curve"  # the experiment
CONCURRENCY = "concurrency"
RATE = "rate"
DURATION_S = 30.0  # of a load, where neither the scenario nor an option says
SPARE = 2.0  # times the time that the loads take: each run may be repeated
WARMED = 1.5  # times the measured time of a load, with the longest warm-up
SEARCH_MINUTES = 12.0  # where the curve chooses its loads
SEARCH_LOADS = 12
ENDLESS_MINUTES = 1440.0  # where the requests of each load decide how long it takes
MOST = 16  # times today's load, where the scenario is no curve: its target may have no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The loads, ascending; empty where the curve chooses its own. `option`: as it was typed, for messages."""

    by: str
    option: str
    loads: Sequence[float] = ()


def is_list(load: Any) -> bool:
    """Return whether an option has several loads."""
    return isinstance(load, tuple)


def sweep_of(
    values: Mapping[str, Any], scenario: Mapping[str, Any], *, wanted: bool
) -> Sweep | None:
    """Return the sweep that these options ask for; None for one load.

    `values`: options by parameter; a list of loads is a tuple. `scenario`: its file as plain values, not checked yet.
    `wanted`: by --sweep, which lets the curve choose its loads. UsageError for options or a scenario that contradict a
    sweep.
    """
    rate = values[RATE]
    concurrency = values[CONCURRENCY]
    process = table_of(scenario, "arrival").get("process")
    if is_list(concurrency):
        if rate is not None:
            raise UsageError("--rate: a sweep of --concurrency has no rate: omit it")
        sweep = Sweep(by=CONCURRENCY, option="--concurrency", loads=concurrency)
    elif is_list(rate):
        if process == "closed":
            raise UsageError("--rate: this scenario is a closed loop: use --concurrency 1,2,4")
        sweep = Sweep(by=RATE, option="--rate", loads=rate)
    elif wanted:
        is_closed = rate is None and (concurrency is not None or process == "closed")
        sweep = Sweep(by=CONCURRENCY if is_closed else RATE, option="--sweep")
    else:
        return None
    if wanted and sweep.loads:
        raise UsageError(
            f"--sweep: it chooses the loads, but {sweep.option} lists them: omit one of the two"
        )
    kind = _kind(scenario)
    if kind not in {None, CURVE}:
        raise UsageError(f"{sweep.option}: {kind} plans its own loads: give one load")
    return sweep


def overrides(
    sweep: Sweep,
    scenario: Mapping[str, Any],
    *,
    duration_s: float | None,
    requests: int | None,
    rests: bool,
) -> list[str]:
    """Return the overrides that turn a scenario into this sweep, as texts of --set.

    `duration_s`, `requests`: of each load; None where not given. `rests`: whether the target keeps state between runs. A
    scenario that is a curve already keeps its settings where no option changes them.
    """
    from tailgauge.scenario.model import spelled

    if requests is not None and not sweep.loads:
        raise UsageError(
            f"--requests: with {sweep.option} give the length of each load instead: --duration 30s"
        )
    if requests is not None and duration_s is not None and sweep.by == RATE:
        raise UsageError(
            "--duration and --requests: at a given rate one follows from the other: choose one"
        )
    texts = []
    is_curve = _kind(scenario) == CURVE
    if duration_s is None and requests is None and sweep.loads and not is_curve:
        duration_s = _duration_s(scenario)
    minutes = _minutes(sweep, duration_s, requests, rests=rests)
    if not is_curve:
        texts.append(spelled("experiment", {"kind": CURVE, "minutes": minutes}))
        if not sweep.loads:
            texts.append(spelled("experiment.curve.most", MOST))
    elif duration_s is not None or requests is not None:
        texts.append(spelled("experiment.minutes", minutes))
    texts.append(spelled("experiment.curve.by", sweep.by))
    if sweep.loads:
        texts.append(spelled("experiment.curve.loads", list(sweep.loads)))
    if requests is not None:
        texts.append(spelled("experiment.curve.requests", requests))
    if duration_s is not None:
        texts.append(spelled("experiment.curve.step_s", duration_s))
    return texts


def table_of(scenario: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a table of a scenario's file; an empty one where it has none, or something else, which is refused later."""
    table = scenario.get(name)
    if not isinstance(table, Mapping):
        return {}
    return table


def _duration_s(scenario: Mapping[str, Any]) -> float:
    """Return the length of the scenario, where its file has a possible one."""
    seconds = table_of(scenario, "stages").get("duration_s")
    if isinstance(seconds, int | float) and math.isfinite(seconds):
        return float(seconds)
    return DURATION_S


def _kind(scenario: Mapping[str, Any]) -> str | None:
    """Return the experiment of a scenario."""
    table = scenario.get("experiment")
    if not isinstance(table, dict):
        return None
    return str(table.get("kind"))


def _minutes(sweep: Sweep, duration_s: float | None, requests: int | None, *, rests: bool) -> float:
    """Time for all loads, with spare for runs that are repeated."""
    from tailgauge.scenario.experiment import REST_S, RUN_S

    overhead_s = RUN_S  # of each run, beside its load
    if rests:
        overhead_s += REST_S
    if not sweep.loads:
        needed_s = SEARCH_LOADS * (WARMED * (duration_s or 0.0) + overhead_s)
        return max(SEARCH_MINUTES, float(math.ceil(needed_s / 60)))
    if requests is not None and sweep.by == CONCURRENCY and duration_s is None:
        return ENDLESS_MINUTES
    if requests is not None and sweep.by == RATE:
        load_s = sum(requests / load for load in sweep.loads)
    else:
        load_s = WARMED * len(sweep.loads) * (duration_s or DURATION_S)
    return float(math.ceil(SPARE * (load_s + len(sweep.loads) * overhead_s) / 60) + 1)
