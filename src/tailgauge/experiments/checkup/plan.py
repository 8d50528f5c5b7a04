"""The course of a checkup: all probes at once, those that do not count once more, then the answer.

Rule: probes need nothing of each other, so that one child runs them all; what compares two of them (load, fan-out) is
computed at the end. A probe without a run that counts is lost, and said to be. A quick checkup repeats nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from tailgauge.errors import UsageError
from tailgauge.experiments.answer import Answer
from tailgauge.experiments.checkup import report
from tailgauge.experiments.checkup.cache import Popular, cached
from tailgauge.experiments.checkup.cancellation import cancelled
from tailgauge.experiments.checkup.check import Check
from tailgauge.experiments.checkup.fan_out import amplified, fan_out
from tailgauge.experiments.checkup.light import light
from tailgauge.experiments.checkup.loaded import loaded, queueing
from tailgauge.experiments.checkup.probe_result import Bounds, Measured, Seen
from tailgauge.experiments.checkup.probes import PROBES, Asked, width
from tailgauge.experiments.checkup.traffic import tested
from tailgauge.experiments.course import Course, Ran, SpentError, Step
from tailgauge.experiments.ledger import RUN_S
from tailgauge.experiments.reading import Reading
from tailgauge.experiments.steps import Base
from tailgauge_analysis.stats.quantiles import Floats

QUICK_MINUTES = 3.0
START_S = 25.0  # the rehearsal and the first run's processes
LOAD = 0.8  # of what is left: the rest is for a busy machine, and for probes that run again
LEAST_S = 5.0  # of a probe


def make(base: Base) -> Checkup:
    """The experiment of a scenario. Raises UsageError where it has no rate, no call to time, or skips what there is not."""
    for name in base.asked.checkup.skip:
        if name not in PROBES:
            raise UsageError(
                f"{base.path}: experiment.checkup.skip: no probe {name!r}: expected {', '.join(PROBES)}"
            )
    return Checkup(base)


class Checkup:
    """The course, and what was seen on it."""

    def __init__(self, base: Base) -> None:
        self._base, self._of, self._table = base, tested(base), base.asked.checkup
        has_cache = self._of.table.cache is not None
        self._probes = [
            name for name in PROBES if name not in self._table.skip and (has_cache or name != "cached")
        ]
        if not self._probes:
            raise UsageError(f"{base.path}: experiment.checkup.skip: no probe is left")
        minutes = min(base.asked.minutes, QUICK_MINUTES) if self._table.quick else base.asked.minutes
        load_s = LOAD * (minutes * 60 - START_S - RUN_S * len(self._probes))
        weight = sum(PROBES[name].weight for name in self._probes)
        self._asked = {
            name: Asked(
                self._of, self._table, max(LEAST_S, load_s * PROBES[name].weight / weight),
                base.scenario.seed + 7919 * (1 + place),
            )
            for place, name in enumerate(PROBES) if name in self._probes
        }  # fmt: skip
        self._bounds = Bounds(
            self._table.first_ms, self._table.tokens_per_s, self._table.threshold,
            self._of.table.stream, self._of.legs or self._table.legs,
        )  # fmt: skip
        self._seen: dict[str, Seen] = {}

    def course(self) -> Course:
        """Probe, and answer."""
        remarks = self._left_out()
        try:
            yield from self._run(self._probes)
            again = [name for name in self._probes if name not in self._seen]
            if again and not self._table.quick:
                yield from self._run(again)
        except SpentError as spent:
            remarks.append(f"{spent}: the answer is of the probes until then.")
        return self._answer(remarks)

    def look(self, step: Step, reading: Reading) -> Seen:
        """The checks of a probe."""
        name = next(name for name, asked in self._asked.items() if asked.seed == step.seed)
        if name == "light":
            return light(reading, self._bounds)
        if name == "cached":
            return cached(reading, self._popular())
        if name == "fan_out":
            return fan_out(reading)
        if name == "cancelled":
            return cancelled(reading, self._of.left_share)
        return loaded(reading)

    def _run(self, names: Sequence[str]) -> Generator[Sequence[Step], Sequence[Ran], None]:
        steps = {name: PROBES[name].step(self._asked[name]) for name in names}
        by_seed = {step.seed: name for name, step in steps.items()}
        for ran in (yield list(steps.values())):
            if ran.counts or ran.seen.failed:
                self._seen[by_seed[ran.step.seed]] = ran.seen

    def _popular(self) -> Popular:
        """Requests a second for each prefix, by the table's part of the arrivals."""
        cache, scenario = self._of.table.cache, self._base.scenario
        assert cache is not None
        part = self._of.table.weight / sum(one.weight for one in scenario.traffic.values())
        weights: Floats = np.arange(1, cache.prefixes + 1, dtype=np.float64) ** -cache.zipf
        return Popular(self._of.rate_per_s * part * weights / weights.sum(), cache.ttl)

    def _left_out(self) -> list[str]:
        said = []
        if len(self._base.scenario.traffic) > 1:
            said.append(
                f"Of several traffic tables only {self._of.name} was looked at, which weighs most; at the rate of all."
            )
        if self._table.skip:
            said.append(f"Left out, as experiment.checkup.skip asks: {', '.join(self._table.skip)}.")
        if self._of.table.cache is None:
            said.append("This traffic has no table `cache`, so nothing is said of a prefix cache.")
        return said

    def _answer(self, remarks: Sequence[str]) -> Answer:
        seen = self._seen
        checks = [check for one in seen.values() for check in one.checks]
        measured = [number for one in seen.values() for number in one.measured]
        if "light" in seen:
            for more in self._compared(seen):
                checks.append(more[0])
                measured += more[1]
        lost = [name for name in self._probes if name not in seen]
        return report.answer(checks, measured, lost, remarks)

    def _compared(self, seen: dict[str, Seen]) -> list[tuple[Check, list[Measured]]]:
        """What two probes tell together."""
        today = seen["light"].samples
        out = []
        if "loaded" in seen:
            out.append(queueing(today["first"], seen["loaded"].samples["quiet"], self._table.threshold))
        if "fan_out" in seen:
            legs = width(self._asked["fan_out"])
            out.append(amplified(seen["fan_out"].samples["joins"], today["alone"], legs))
        return out
