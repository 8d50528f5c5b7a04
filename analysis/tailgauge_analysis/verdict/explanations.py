"""What made the client's work harder, for which worker, when, and what to do about it.

An explanation judges nothing; it accompanies the reasons of the verdict. It recommends more workers only if a core was
saturated. A worker whose event loop was late with time left on its core was blocked, or waited for a core.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import pandas as pd

from tailgauge.thresholds import BUSY_CPU, LAG_NS, PLANNED_CPU, STALL_NS
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.text.formatting import clock, count, ms, plural, share
from tailgauge_analysis.verdict.late_client import SHORT_OF_CORES, advice_on_cores, connections
from tailgauge_analysis.verdict.workers import growth, steady_health

LOSSES = 0.001  # of the reads
RETRANSMISSION_MS = 200.0
WAITED = 0.5  # of a lag, or of a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """`delay_ms`: the largest delay that it stands for. `is_suspension`: the process or its machine stood still."""

    delay_ms: float
    text: str
    is_suspension: bool = False


def explanations(frames: Frames, stage: Steady) -> list[Explanation]:
    """Return all of them, the one with the largest delay first, whichever its worker."""
    found: list[Explanation] = []
    # Advice is of the whole run, and takes long: it is made once, where a worker needs it.
    core_advice = cache(lambda: advice_on_cores(frames, stage))
    open_fewer = cache(lambda: connections(frames))
    for worker, rows in steady_health(frames, stage).groupby("worker"):
        whole_run = frames.health[frames.health["worker"] == worker]
        silent: Sequence[Stretch] = ()
        for entry in frames.run["workers"]:
            if entry["worker"] == worker:
                silent = entry["silent"]
                break
        of_worker = [
            *_busy(rows, core_advice),
            *_late(rows, silent),
            *_opened(rows, whole_run, open_fewer),
            *_network(rows, whole_run),
        ]
        for explanation in of_worker:
            found.append(replace(explanation, text=f"worker {worker} {explanation.text}"))
    return sorted(found, key=lambda explanation: -explanation.delay_ms)


def wait_for_core_ms(frames: Frames, stage: Steady) -> float:
    """Return for how much of a second a late worker waited for a core that other processes used; 0 where none did."""
    waits_ms = [0.0]
    for _, rows in steady_health(frames, stage).groupby("worker"):
        late = rows[rows["loop_lag_max_ns"] > LAG_NS]
        if not len(late):
            continue
        worst = _worst(late, "loop_lag_max_ns")
        if _waited(worst):
            waits_ms.append(float(worst["core_wait_ns"]) / 1e6)
    return max(waits_ms)


def _waited(worst: pd.Series[float]) -> bool:
    return bool(worst["core_wait_ns"] > WAITED * worst["loop_lag_max_ns"])


def _busy(rows: pd.DataFrame, advice: Callable[[], str]) -> Iterator[Explanation]:
    """Yield the longest time in which its core was full."""
    waits = rows["core_wait_ns"].fillna(0) / 1e9
    is_busy = rows["cpu_share"] + waits >= BUSY_CPU
    by_spell = rows[is_busy].groupby((~is_busy).cumsum()[is_busy])
    spells = [spell for _, spell in by_spell]
    if not spells:
        return
    longest = max(spells, key=len)
    waited = waits.loc[longest.index].mean()
    core = "its core"
    if waited > SHORT_OF_CORES:
        core = f"a core and waited for a free core {waited:.0%} of the time"
    span = f"from {clock(longest['at_ns'].iloc[0] / 1e9 - 1)} to {_clock(longest.iloc[-1])}"
    lags_ns = longest[["loop_lag_max_ns", "receive_lag_max_ns", "dispatch_late_max_ns"]].to_numpy()
    yield Explanation(
        delay_ms=float(lags_ns.max()) / 1e6,
        text=f"was at {longest['cpu_share'].mean():.0%} of {core} {span}: {advice()}",
    )


def _late(rows: pd.DataFrame, silent: Sequence[Stretch]) -> Iterator[Explanation]:
    """Yield why its event loop was late."""
    late = rows[rows["loop_lag_max_ns"] > LAG_NS]
    if not len(late):
        return
    worst = _worst(late, "loop_lag_max_ns")
    lag_ns = worst["loop_lag_max_ns"]
    frequency = f"above {LAG_NS // 10**6} ms in {len(late)} of {len(rows)} seconds"
    text = f"had an event loop up to {ms(lag_ns / 1e6)} ms late (at {_clock(worst)}), {frequency}"
    at_s = worst["at_ns"] / 1e9
    is_suspension = any(_froze(at_s, lag_ns / 1e9, stretch) for stretch in silent)
    cause = "; it sent no messages in that time: the process or its machine was suspended"
    if not is_suspension:
        cause = _cause(worst)
    yield Explanation(delay_ms=lag_ns / 1e6, text=text + cause, is_suspension=is_suspension)


def _cause(worst: pd.Series[float]) -> str:
    lag_ns = worst["loop_lag_max_ns"]
    if _waited(worst):
        waited = f"it waited {ms(worst['core_wait_ns'] / 1e6)} ms of that second for a core"
        return f"; {waited} that other processes used"
    if worst["gc_pause_ns"] > WAITED * lag_ns:
        return " (Python's garbage collector)"
    if lag_ns <= STALL_NS or worst["cpu_share"] >= PLANNED_CPU:
        return ""
    blocked = f"its core was at {share(worst['cpu_share'])} then, so the event loop was blocked"
    return f"; {blocked} (a sleep, a file or a name look-up in a plug-in or listener): remove it"


def _froze(at_s: float, lag_s: float, silent: Stretch) -> bool:
    """Return whether a lag that ended at `at_s` was most of a silence: a lost network delays no event loop."""
    until_s = math.inf if silent.to_s is None else silent.to_s
    overlaps = silent.from_s < at_s and at_s - lag_s < until_s
    return overlaps and lag_s > WAITED * (until_s - silent.from_s)


def _opened(
    rows: pd.DataFrame, whole_run: pd.DataFrame, advice: Callable[[], str]
) -> Iterator[Explanation]:
    """Attempts that waited for a new connection."""
    opened = growth("pool_waits", rows, whole_run)
    wait_ns = rows["pool_wait_max_ns"].max()
    if opened and wait_ns > LAG_NS:
        time = _clock(_worst(rows, "pool_wait_max_ns"))
        waited = f"{count(opened)} attempts, which waited up to {ms(wait_ns / 1e6)} ms (at {time})"
        yield Explanation(
            delay_ms=wait_ns / 1e6, text=f"opened connections for {waited}: {advice()}"
        )


def _network(rows: pd.DataFrame, whole_run: pd.DataFrame) -> Iterator[Explanation]:
    """Packets that were lost; null where the system does not report them."""
    again = growth("retransmits", rows, whole_run) or 0
    jumbled = growth("out_of_order", rows, whole_run) or 0
    if again + jumbled > LOSSES * (growth("reads", rows, whole_run) or 0):
        lost = f"{plural(again, 'segment')} retransmitted, {plural(jumbled, 'packet')} out of order"
        text = f"lost packets on the network: {lost}; a retransmission costs 200 ms or a round trip"
        yield Explanation(delay_ms=RETRANSMISSION_MS if again else 0.0, text=text)


def _worst(rows: pd.DataFrame, column: str) -> pd.Series[float]:
    return rows.iloc[int(rows[column].fillna(0).to_numpy().argmax())]


def _clock(row: pd.Series[float]) -> str:
    return clock(row["at_ns"] / 1e9)
