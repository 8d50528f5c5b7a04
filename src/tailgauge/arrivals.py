"""When requests arrive: the whole plan of a run, drawn once from a seed, in absolute times.

Rule: pure functions of plain values. Arrivals are never rescaled to hit count or duration exactly: that would take
out the variance that the process has. Each field of a request has its own random stream, so that two fields are never
drawn from the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tailgauge.records import TURNS

_TIMES, _TRAFFIC, _SIZES = 0, 1, 2


def stream(seed: int, purpose: int) -> np.random.Generator:
    """An independent random stream for each purpose of a seed."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, purpose])))


@dataclass(frozen=True, slots=True)
class Mix:
    """One kind of traffic in the plan."""

    name: str
    weight: float
    prompt_tokens: int
    prompt_sigma: float
    output_tokens: int


class Planned(NamedTuple):
    """One arrival as it is handed to a worker. Of a session, its first turn."""

    request_id: int
    at_ns: int  # since the start of the run
    traffic: str
    prompt_tokens: int
    output_tokens: int
    turns: int = 1  # of the session; 0: without end, a user of a closed loop
    source: dict[str, Any] | None = None  # what a prompt file or a trace says of it: text, name, tags, blocks


@dataclass(frozen=True, slots=True)
class Schedule:
    """Arrivals in order; arrays of one length. Times in ns since the start of the run."""

    at_ns: Any
    traffic: Any  # index into names
    prompt_tokens: Any
    output_tokens: Any
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.at_ns)

    def slice(self, since_ns: int, until_ns: int) -> Iterator[Planned]:
        """Arrivals in [since, until)."""
        first, last = np.searchsorted(self.at_ns, [since_ns, until_ns])
        for i in range(int(first), int(last)):
            yield Planned(
                i * TURNS,
                int(self.at_ns[i]),
                self.names[self.traffic[i]],
                int(self.prompt_tokens[i]),
                int(self.output_tokens[i]),
            )


def arrival_times(process: str, rate_per_s: float, duration_s: float, rng: np.random.Generator) -> Any:
    """Times in seconds within [0, duration). Constant means equal gaps, the first after half a gap."""
    if process == "constant":
        count = int(np.ceil(rate_per_s * duration_s - 0.5))
        return (np.arange(count) + 0.5) / rate_per_s
    expected = rate_per_s * duration_s
    times = np.empty(0)
    last = 0.0
    while last < duration_s:
        gaps = rng.exponential(1.0 / rate_per_s, int(expected * 0.1) + int(expected) + 64)
        times = np.concatenate([times, last + np.cumsum(gaps)])
        last = float(times[-1])
    return times[times < duration_s]


def plan(process: str, rate_per_s: float, duration_s: float, mixes: Sequence[Mix], seed: int) -> Schedule:
    """The whole schedule of a run."""
    times = arrival_times(process, rate_per_s, duration_s, stream(seed, _TIMES))
    weights = np.array([m.weight for m in mixes])
    chosen = stream(seed, _TRAFFIC).choice(len(mixes), size=len(times), p=weights / weights.sum())
    median = np.array([m.prompt_tokens for m in mixes], dtype=float)[chosen]
    sigma = np.array([m.prompt_sigma for m in mixes])[chosen]
    sizes = median * np.exp(sigma * stream(seed, _SIZES).standard_normal(len(times)))
    return Schedule(
        at_ns=np.rint(times * 1e9).astype(np.int64),
        traffic=chosen.astype(np.int16),
        prompt_tokens=np.clip(np.rint(sizes), 1, 10_000_000).astype(np.int32),
        output_tokens=np.array([m.output_tokens for m in mixes], dtype=np.int32)[chosen],
        names=tuple(m.name for m in mixes),
    )
