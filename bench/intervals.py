"""How often the intervals of percentiles hold the true percentile, on traffic whose percentiles are known.

    .venv/bin/python bench/intervals.py [--runs N] [--seed N] [--write]

Of each condition many runs are drawn and analysed as a report would. `make intervals` puts the table into docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tailgauge_analysis.objectives.outcome import PASS, decide
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import Floats, Quantile, quantiles
from tailgauge_analysis.text.formatting import percentile

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- intervals: begin -->", "<!-- intervals: end -->"
PS = (0.5, 0.95, 0.99)
RUNS = 1000
SIGMA = 0.5  # of lognormal values
EXPECTED = 5  # slow episodes, from which on the intervals of dependent traffic must hold
MISSED = 0.999  # bound of an objective that is missed, as a part of the true percentile
Draw = Callable[[np.random.Generator, int], Floats]
Known = Callable[[float], float]


def exponential(rng: np.random.Generator, n: int) -> Floats:
    """Independent."""
    return rng.exponential(size=n)


def autoregressive(phi: float) -> Draw:
    """Lognormal, each correlated with the one before."""

    def draw(rng: np.random.Generator, n: int) -> Floats:
        noise = rng.standard_normal(n) * math.sqrt(1 - phi**2)
        noise[0] = rng.standard_normal()
        for i in range(1, n):
            noise[i] += phi * noise[i - 1]
        values: Floats = np.exp(noise)
        return values

    return draw


def queue(load: float) -> Draw:
    """Times in an M/M/1 queue in its steady state, arrival rate 1."""

    def draw(rng: np.random.Generator, n: int) -> Floats:
        service = rng.exponential(load, n)
        first = rng.exponential(1 / (1 / load - 1)) if rng.random() < load else 0.0
        steps = np.concatenate(([first], first + np.cumsum(service[:-1] - rng.exponential(1.0, n - 1))))
        return steps - np.minimum(np.minimum.accumulate(steps), 0.0) + service

    return draw


def slow_periods(share: float, length: int, factor: float) -> Draw:
    """Lognormal, and `factor` times as long in periods of `length` requests that come at random."""

    def draw(rng: np.random.Generator, n: int) -> Floats:
        between = length * (1 - share) / share
        before = 10 * length / share  # when it begins
        gaps = rng.geometric(1 / between, int(1.5 * (n + before) * share / length) + 30)
        slow = np.zeros(n, np.bool_)
        for end in np.cumsum(gaps + length) - int(before):
            slow[max(0, end - length) : max(0, end)] = True
        return np.exp(rng.normal(0, SIGMA, n)) * np.where(slow, factor, 1.0)

    return draw


def lognormal_part(share: float, factor: float) -> Known:
    """Percentiles where a share is `factor` times as long."""

    def below(x: float) -> float:
        fast, slow = (math.erf(math.log(x / by) / SIGMA / math.sqrt(2)) / 2 + 0.5 for by in (1, factor))
        return (1 - share) * fast + share * slow

    def known(p: float) -> float:
        low, high = 1e-6, 1e6
        for _ in range(200):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if below(middle) < p else (low, middle)
        return high

    return known


def normal_quantile(p: float) -> float:
    """Of the standard normal distribution."""
    return math.log(lognormal_part(0.0, 1.0)(p)) / SIGMA


@dataclass(frozen=True, slots=True)
class Condition:
    """One kind of traffic. `demanded`: from how many requests on its intervals must hold."""

    name: str
    draw: Draw
    known: Known
    sizes: tuple[int, ...]
    demanded: int
    rare: bool = False
    """Demanded only where `EXPECTED` slow episodes are expected."""


def _waiting(load: float) -> Known:
    return lambda p: -math.log(1 - p) / (1 / load - 1)


def _lognormal(p: float) -> float:
    return math.exp(normal_quantile(p))


CONDITIONS = (
    Condition("independent", exponential, lambda p: -math.log(1 - p), (300, 1000, 5000), 1000),
    Condition("AR(1), 0.7", autoregressive(0.7), _lognormal, (1000, 5000), 1000),
    Condition("AR(1), 0.9", autoregressive(0.9), _lognormal, (1000, 5000), 1000, True),
    Condition("M/M/1, load 0.8", queue(0.8), _waiting(0.8), (1000, 5000, 20_000), 1000),
    Condition("M/M/1, load 0.9", queue(0.9), _waiting(0.9), (1000, 5000, 20_000), 1000, True),
    Condition("M/M/1, load 0.95", queue(0.95), _waiting(0.95), (5000, 20_000, 100_000), 1000, True),
    Condition(
        "1% are 8x as long, in bursts of 10",
        slow_periods(0.01, 10, 8), lognormal_part(0.01, 8), (1000, 10_000), 10_000, True,
    ),
    Condition(
        "3% are 5x as long, in periods of 60",
        slow_periods(0.03, 60, 5), lognormal_part(0.03, 5), (1000, 20_000), 20_000, True,
    ),
)  # fmt: skip


@dataclass(slots=True)
class Cell:
    """What many runs of one condition and size showed of one percentile."""

    condition: Condition
    n: int
    p: float
    runs: int = 0
    held: int = 0
    unmarked: int = 0
    unmarked_held: int = 0
    passed: int = 0
    episodes: int = 0

    def add(self, q: Quantile, values: Floats) -> None:
        """One run."""
        known = self.condition.known(self.p)
        held = (q.low is None or q.low <= known) and (q.high is None or known <= q.high)
        self.runs += 1
        self.held += held
        self.unmarked += not q.mark
        self.unmarked_held += held and not q.mark
        self.passed += passes(q, values, MISSED * known)
        self.episodes += q.episodes

    @property
    def demanded(self) -> bool:
        """Whether nine in ten of its unmarked intervals must hold."""
        enough = not self.condition.rare or self.episodes >= EXPECTED * self.runs
        return self.n >= self.condition.demanded and enough

    @property
    def shares(self) -> tuple[tuple[int, int], ...]:
        """The figures of the table: how many of how many."""
        return (
            (self.held, self.runs),
            (self.unmarked_held, self.unmarked),
            (self.runs - self.unmarked, self.runs),
            (self.passed, self.runs),
        )


def passes(q: Quantile, values: Floats, bound: float) -> bool:
    """Whether an objective passes."""
    return decide(proportion(values > bound), q, bound)[0] == PASS


def measure(
    seed: int, runs: int, conditions: Sequence[Condition] = CONDITIONS, most: int = 10**9
) -> list[Cell]:
    """Every cell of the table; `most`: without runs of more requests."""
    cells = []
    for index, condition in enumerate(conditions):
        for n in (n for n in condition.sizes if n <= most):
            rng = np.random.default_rng([seed, index, n])
            row = [Cell(condition, n, p) for p in PS]
            for _ in range(runs):
                values = condition.draw(rng, n)
                for cell, q in zip(row, quantiles(values, PS), strict=True):
                    cell.add(q, values)
            cells += row
    return cells


HEADER = (
    "traffic",
    "requests",
    "percentile",
    "slow episodes",
    "held",
    "held, unmarked",
    "marked",
    "missed, yet passed",
)


def table(cells: Sequence[Cell]) -> str:
    """The cells as Markdown."""
    lines = [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    for c in cells:
        figures = (f"{k / n:.1%}" if n else "–" for k, n in c.shares)
        first = (c.condition.name, f"{c.n:,}", percentile(c.p), f"{c.episodes / c.runs:,.0f}")
        lines.append(f"| {' | '.join((*first, *figures))} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print the table, and write it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS, help="of each condition and size")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/explanation/benchmarks.md"
    )
    arguments = parser.parse_args()
    text = f"{arguments.runs:,} runs of each size, seed {arguments.seed}:\n\n{table(measure(arguments.seed, arguments.runs))}"
    print(text)
    if arguments.write:
        before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, end, after = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{PAGE}: the marks {BEGIN} and {END} are not there")
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
