"""A grammar that draws traffic whose distribution is known: serial x cluster x periodic x censoring x ties x failures x mixtures.

Every latency is T(z) times the factors of what slows it. z is standard normal however it depends on its neighbours, T is a
table, and each factor has few values of known chance. So the true percentiles follow from T and these chances alone. The
dependence of a queue is its own: only the distribution of its waits is known from a simulation of four million arrivals,
where no formula has it.

Times are in mean gaps between arrivals.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Generator = np.random.Generator

NORMAL = np.linspace(-8.0, 8.0, 16_001)
BELOW = np.array([NormalDist().cdf(z) for z in NORMAL])
PHASES = 48
LEVELS = 15
QUEUE_LENGTH = 1 << 22
BLOCK = 64  # of an autoregressive series
FAMILIES = ("serial", "cluster", "periodic", "censoring", "ties", "failures", "mixtures")
INDEPENDENT = "independent"
PLAIN = 10  # every tenth process is independent
ENOUGH_TIMES = 20
ENOUGH_CLUSTERS = 30


@dataclass(frozen=True, kw_only=True)
class Effect:
    """Factors of a latency, and the chance of each."""

    factors: Floats
    chances: Floats

    def drawn(self, rng: Generator, count: int) -> Ints:
        """Return the places of so many independent factors."""
        return rng.choice(len(self.factors), count, p=self.chances)


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Sojourn times of a queue with Poisson arrivals; `scatter`: standard deviation of a service over its mean."""

    load: float
    scatter: float

    def sojourns(self, rng: Generator, count: int) -> Floats:
        """Return the times of customers in their order, after a burn-in."""
        burn_in = int(30 / (1 - self.load) ** 2)
        total = count + burn_in
        service = self.load * _services(rng, total, self.scatter)
        steps = np.zeros(total)
        np.cumsum(service[:-1] - rng.exponential(1.0, total - 1), out=steps[1:])
        waits = steps - np.minimum.accumulate(np.minimum(steps, 0.0))
        sojourns: Floats = (waits + service)[burn_in:]
        return sojourns

    @functools.cached_property
    def distribution(self) -> tuple[Floats, Floats]:
        """Times, and the share of the sojourns below each."""
        if self.scatter == 1:
            times = -np.log1p(-BELOW[:-1]) * self.load / (1 - self.load)
            return times, BELOW[:-1]
        rng = np.random.default_rng([int(1e6 * self.load), int(1e6 * self.scatter)])
        ordered = np.sort(self.sojourns(rng, QUEUE_LENGTH))
        chances = (np.arange(QUEUE_LENGTH) + 0.5) / QUEUE_LENGTH
        return ordered[::64].copy(), chances[::64].copy()  # not the whole of it

    def normal(self, rng: Generator, count: int) -> Floats:
        """Return sojourns as standard normal values."""
        times, chances = self.distribution
        shares = np.interp(self.sojourns(rng, count), times, chances)
        return np.interp(shares, BELOW, NORMAL)

    @functools.cached_property
    def correlation_time(self) -> float:
        """Customers a sojourn is alike to, by the means of batches."""
        size = 1 << 14
        values = self.normal(np.random.default_rng(1), 64 * size)
        batches = values.reshape(-1, size).mean(axis=1)
        return max(1.0, float(size * batches.var(ddof=1) / values.var()))


def _services(rng: Generator, count: int, scatter: float) -> Floats:
    """Return service times of mean 1: gamma, exponential or lognormal."""
    if scatter == 1:
        return rng.exponential(1.0, count)
    if scatter < 1:
        return rng.gamma(scatter**-2, scatter**2, count)
    sigma = math.sqrt(math.log1p(scatter**2))
    return rng.lognormal(-(sigma**2) / 2, sigma, count)


@dataclass(frozen=True, kw_only=True)
class SlowPeriods:
    """Periods of requests, a share of all, in which something happens; they come at random."""

    share: float
    length: float
    is_fixed: bool

    @property
    def cycle(self) -> float:
        """Requests from one period to the next, in the mean."""
        return self.length / self.share

    @property
    def real_share(self) -> float:
        """Share of the requests in a period, of cycles of whole requests."""
        length = int(self.length) if self.is_fixed else self.length
        return length / (length + max(1.0, self.cycle - self.length))

    def drawn(self, rng: Generator, count: int) -> Mask:
        """Return which of the requests lie in such a period."""
        between = self.cycle - self.length
        burn_in = int(10 * self.cycle)
        number = int(1.5 * (count + burn_in) / self.cycle) + 40
        gaps = rng.geometric(1 / max(1.0, between), number)
        lengths = np.full(number, int(self.length))
        if not self.is_fixed:
            lengths = rng.geometric(1 / self.length, number)
        ends = np.cumsum(gaps + lengths) - burn_in
        change = np.zeros(count + 1, np.int64)
        np.add.at(change, np.clip(ends - lengths, 0, count), 1)
        np.add.at(change, np.clip(ends, 0, count), -1)
        within: Mask = np.cumsum(change[:-1]) > 0
        return within


@dataclass(frozen=True, kw_only=True)
class Serial:
    """What one request has of those before it: an autoregression, a queue or slow periods, of each of the replicas."""

    smooth: float = 0.0
    """coefficient of the autoregression"""
    queue: Queue | None = None
    slow: SlowPeriods | None = None
    slow_factor: float = 1.0
    replicas: int = 1
    is_round_robin: bool = True

    def times(self, requests: float) -> float:
        """Return how many correlation times or periods so many requests have; infinite where they are independent."""
        of_each = requests / self.replicas
        if self.smooth:
            return of_each * (1 - self.smooth) / (1 + self.smooth)
        if self.slow is not None:
            return of_each / self.slow.cycle
        return requests / self.queue.correlation_time if self.queue is not None else math.inf

    def replica_of(self, rng: Generator, count: int) -> Ints:
        """Return the replica of each request."""
        if self.is_round_robin:
            return np.arange(count) % self.replicas
        return rng.integers(0, self.replicas, count)

    def normal(self, rng: Generator, replica: Ints) -> Floats:
        """Return the standard normal values behind the latencies."""
        if self.queue is not None:
            return self.queue.normal(rng, len(replica))
        if self.smooth:
            return _by_group(replica, lambda number: autoregressive(rng, number, self.smooth))
        return rng.standard_normal(len(replica))

    def factors(self, rng: Generator, replica: Ints) -> Floats:
        """Return the factors of the slow periods."""
        slow = self.slow
        if slow is None:
            return np.ones(len(replica))
        is_slow = _by_group(replica, lambda number: slow.drawn(rng, number).astype(np.float64))
        return np.where(is_slow > 0, self.slow_factor, 1.0)

    @property
    def text(self) -> str:
        """What it is; empty of nothing."""
        parts = []
        if self.smooth:
            parts.append(f"AR {self.smooth:.2f}")
        if self.queue is not None:
            parts.append(f"queue {self.queue.load:.2f}, scatter {self.queue.scatter:.1f}")
        if self.slow is not None:
            periods = f"periods of {self.slow.length:.0f}"
            parts.append(f"{self.slow.share:.1%} slow x{self.slow_factor:.1f}, {periods}")
        if self.replicas > 1:
            parts.append(f"{self.replicas} replicas{' by turns' if self.is_round_robin else ''}")
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Censoring:
    """How waits are cut short: median `patience` of users over the true p90, 0 where nobody leaves; at the end of the run."""

    patience: float = 0.0
    sigma: float = 0.0
    is_cut_at_end: bool = False

    @property
    def text(self) -> str:
        """What it is; empty of nothing."""
        parts = []
        if self.patience:
            parts.append(f"patience {self.patience:.1f} p90, sigma {self.sigma:.1f}")
        if self.is_cut_at_end:
            parts.append("open at the end")
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Wave:
    """What goes up and down with a period; `is_square`: all or nothing, `of_rate`: the arrivals instead of the latencies."""

    period: float
    height: float
    is_square: bool
    of_rate: bool

    @property
    def text(self) -> str:
        """What it is."""
        what = "rate" if self.of_rate else "latency"
        return f"{what} {'square' if self.is_square else 'sine'} of {self.period:.0f}"

    @property
    def mean(self) -> float:
        """Mean factor."""
        return 1 + 0.3 * self.height if self.is_square else 1.0

    def at(self, phases: Floats) -> Floats:
        """Return the factors at phases from 0 to 1."""
        if self.is_square:
            return np.where(phases % 1.0 < 0.3, 1 + self.height, 1.0)
        return 1 + min(0.9, self.height) * np.sin(2 * math.pi * phases)

    @property
    def effect(self) -> Effect:
        """The factors over a whole period."""
        if self.is_square:
            return Effect(factors=np.array([1.0, 1 + self.height]), chances=np.array([0.7, 0.3]))
        factors = self.at((np.arange(PHASES * 10) + 0.5) / (PHASES * 10))
        factors = np.sort(factors).reshape(PHASES, 10).mean(axis=1)
        return Effect(factors=factors, chances=np.full(PHASES, 1 / PHASES))


@dataclass(frozen=True, kw_only=True)
class Arrivals:
    """How requests come: `kind` of ARRIVALS, `size` of a burst, a session or the number of users, `pause` within a session."""

    kind: str
    size: float
    pause: float
    is_fixed: bool


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Requests that fail: alone, in `periods`, or `cluster` by cluster; a failure takes a tenth of an answer's time."""

    share: float
    periods: SlowPeriods | None
    within: float
    """chance of a request in such a period, or of such a cluster"""
    cluster: str

    def drawn(self, rng: Generator, count: int, groups: dict[str, Ints]) -> Mask:
        """Return which of the requests fail."""
        chance = np.full(count, self.share)
        if self.periods is not None:
            chance = np.where(self.periods.drawn(rng, count), self.within, 0.0)
        if self.cluster:
            codes = groups[self.cluster]
            is_bad = rng.random(int(codes.max()) + 1) < self.share / self.within
            chance = np.where(is_bad[codes], self.within, 0.0)
        failed: Mask = rng.random(count) < chance
        return failed

    @property
    def text(self) -> str:
        """What it is."""
        bursts = "" if self.periods is None else f" in periods of {self.periods.length:.0f}"
        by = f" by {self.cluster}" if self.cluster else ""
        return f"{self.share:.2%} fail{bursts}{by}"


@dataclass(frozen=True, kw_only=True)
class Process:
    """Traffic of known distribution; the seed and the number draw it again."""

    seed: int
    number: int
    seconds: float
    base: str
    table: Floats
    """latency at each of NORMAL"""
    serial: Serial
    wave: Wave | None
    arrivals: Arrivals
    cluster: str
    """whose requests are alike"""
    effect: Effect | None
    """of a cluster"""
    cluster_count: int
    """prefixes or tags"""
    follows_pace: bool
    """users of slow answers send fewer requests"""
    failures: Failures | None
    censoring: Censoring
    unit: float
    """to which latencies are rounded"""
    within_request: float
    """share of a gap's variance that the request has"""
    tokens_sigma: float
    concurrency: float
    families: frozenset[str]

    # --- what is true --------------------------------------------------------------------------------------------

    @functools.cached_property
    def factors(self) -> Effect:
        """Every product of factors, and its chance."""
        effects = []
        slow = self.serial.slow
        if slow is not None:
            factors = np.array([1.0, self.serial.slow_factor])
            effects.append(
                Effect(factors=factors, chances=np.array([1 - slow.real_share, slow.real_share]))
            )
        if self.wave is not None and not self.wave.of_rate:
            effects.append(self.wave.effect)
        if self.effect is not None:
            effects.append(Effect(factors=self.effect.factors, chances=self.weights))
        factors = np.ones(1)
        chances = np.ones(1)
        for effect in effects:
            factors = np.outer(factors, effect.factors).ravel()
            chances = np.outer(chances, effect.chances).ravel()
        return Effect(factors=factors, chances=chances)

    @functools.cached_property
    def weights(self) -> Floats:
        """Share of the requests of each kind of cluster."""
        assert self.effect is not None
        if not self.follows_pace:
            return self.effect.chances
        requests = self.effect.chances / self.effect.factors
        weights: Floats = requests / requests.sum()
        return weights

    def below(self, latency: float) -> float:
        """Return the share of the answers that take at most so long."""
        normal = np.interp(latency / self.factors.factors, self.table, NORMAL)
        return float((self.factors.chances * np.interp(normal, NORMAL, BELOW)).sum())

    def quantile(self, share: float) -> float:
        """Return the time that this share of the answers takes at most."""
        low = math.log(self.table[0] * self.factors.factors.min())
        high = math.log(self.table[-1] * self.factors.factors.max())
        for _ in range(50):
            middle = (low + high) / 2
            if self.below(math.exp(middle)) < share:
                low = middle
            else:
                high = middle
        return self.rounded(math.exp(high))

    def offered_quantile(self, p: float) -> float:
        """Return the time within which this share of all requests has its answer; infinite where too many fail."""
        answered = p / (1 - self.failing)
        return self.quantile(answered) if answered < 1 else math.inf

    def beyond(self, bound: float) -> float:
        """Return the share of all requests without an answer within the bound."""
        return 1 - (1 - self.failing) * self.below(self.between(bound))

    def rounded(self, latency: float) -> float:
        """Return the latency as it is seen."""
        return latency if not self.unit else round(latency / self.unit) * self.unit

    def between(self, bound: float) -> float:
        """Return the bound, between two values that are seen."""
        return bound if not self.unit else (math.floor(bound / self.unit) + 0.5) * self.unit

    def bound_of(self, beyond: float) -> float:
        """Return a bound that about this share of all requests misses."""
        answered = (1 - beyond) / (1 - self.failing)
        return self.between(self.quantile(min(max(answered, 1e-6), 1 - 1e-9)))

    @property
    def failing(self) -> float:
        """Share of the requests that fail."""
        return self.failures.share if self.failures is not None else 0.0

    @functools.cached_property
    def patience_scale(self) -> float:
        """Median patience."""
        return self.censoring.patience * self.quantile(0.9)

    def stays(self, bound: float) -> float:
        """Return the share of all requests with an answer within the bound whose users did not leave before it."""
        if not self.censoring.patience:
            return (1 - self.failing) * self.below(self.between(bound))
        shares = (np.arange(400) + 0.5) / 400
        logs = self.censoring.sigma * np.interp(shares, BELOW, NORMAL)
        patience = self.patience_scale * np.exp(logs)
        answered = [self.below(min(wait, self.between(bound))) for wait in patience]
        return (1 - self.failing) * float(np.mean(answered))

    @functools.cached_property
    def completed(self) -> float:
        """Share of all requests with an answer whose user stayed for it."""
        return self.stays(1e12)

    @property
    def scale(self) -> float:
        """Mean gaps in a unit of latency."""
        median = self.quantile(0.5)
        longest = self.quantile(0.9995)
        return min(self.concurrency / median, 0.25 * self.seconds / longest)

    @functools.cached_property
    def times(self) -> float:
        """Correlation times or periods in a run, of what has fewest; infinite where all is independent."""
        counts = [self.serial.times(self.seconds)]
        if self.wave is not None:
            counts.append(self.seconds / self.wave.period)
        if self.failures is not None and self.failures.periods is not None:
            counts.append(self.seconds / self.failures.periods.cycle)
        return min(counts)

    @functools.cached_property
    def arrival_times(self) -> float:
        """The same of the arrivals, for rates."""
        arrivals = self.arrivals
        if arrivals.kind == "bursts":
            return self.seconds / arrivals.size
        if arrivals.kind == "sessions":
            return self.seconds / max(arrivals.size, arrivals.size * arrivals.pause)
        return math.inf

    @functools.cached_property
    def clusters(self) -> float:
        """Clusters in a run that differ at random; infinite where none do."""
        is_alike = self.effect is not None or (
            self.failures is not None and bool(self.failures.cluster)
        )
        if not is_alike or self.cluster == "tag":
            return math.inf
        if self.cluster == "session":
            return self.seconds / self.arrivals.size
        if self.cluster == "user":
            return self.arrivals.size
        popularity = _popularity(self.cluster_count)
        return float(1 / np.square(popularity).sum())

    @property
    def is_known(self) -> bool:
        """Whether a run holds enough of everything that is alike."""
        return self.times >= ENOUGH_TIMES and self.clusters >= ENOUGH_CLUSTERS

    @property
    def is_rate_known(self) -> bool:
        """The same of the rates of its requests."""
        return self.times >= ENOUGH_TIMES and self.arrival_times >= ENOUGH_TIMES

    @property
    def has_rate(self) -> bool:
        """Whether the rates do not depend on who the users are, or which prefixes there are."""
        by_cluster = self.failures.cluster if self.failures is not None else ""
        return not self.follows_pace and by_cluster not in {"user", "prefix"}

    def text(self) -> str:
        """Return the process in a line."""
        arrivals = f"{self.arrivals.kind} {self.arrivals.size:.0f}"
        parts = [f"{self.seconds:,.0f} requests", self.base, self.serial.text, arrivals]
        if self.wave is not None:
            parts.append(self.wave.text)
        if self.cluster:
            spread = "" if self.effect is None else f" x{self.effect.factors.max():.1f}"
            pace = ", slow ones send less" if self.follows_pace else ""
            parts.append(
                f"by {self.cluster} ({self.cluster_count or self.arrivals.size:.0f}){spread}{pace}"
            )
        if self.failures is not None:
            parts.append(self.failures.text)
        parts.append(self.censoring.text)
        if self.unit:
            parts.append(f"rounded to {self.unit:.3g}")
        return "; ".join(filter(None, parts))

    # --- runs ----------------------------------------------------------------------------------------------------

    def run(self, rng: Generator) -> Run:
        """Draw one run: the requests of its stage, and those before it that may end in it."""
        before = self.quantile(0.9995) * self.scale
        at, groups = self._arrivals(rng, before)
        turn = groups.pop("turn", None)
        phase = rng.random()
        if self.wave is not None and self.wave.of_rate:
            chance = self.wave.at(at / self.wave.period + phase) / (1 + self.wave.height)
            stays = rng.random(len(at)) < chance
            at = at[stays]
            groups = {name: codes[stays] for name, codes in groups.items()}
        count = len(at)
        replica = self.serial.replica_of(rng, count)
        self._add_groups(rng, groups, replica)
        normal = self.serial.normal(rng, replica)
        factors = self.serial.factors(rng, replica) * self._factors(rng, at, phase, groups)
        latency = np.interp(normal, NORMAL, self.table) * factors
        if self.unit:
            latency = np.round(latency / self.unit) * self.unit
        failed = np.zeros(count, np.bool_)
        if self.failures is not None:
            failed = self.failures.drawn(rng, count, groups)
        patience = np.full(count, np.inf)
        if self.censoring.patience:
            patience = self.patience_scale * np.exp(
                self.censoring.sigma * rng.standard_normal(count)
            )
        return Run(
            process=self,
            at=at,
            normal=normal,
            factors=factors,
            latency=latency,
            failed=failed,
            patience=patience,
            groups=groups,
            turn=np.zeros(count, np.int64) if turn is None else turn,
            first=int(np.searchsorted(at, 0.0)),
        )

    def _add_groups(self, rng: Generator, groups: dict[str, Ints], replica: Ints) -> None:
        """Add what else the rows know of each request."""
        count = len(replica)
        groups["worker"] = rng.integers(0, 3, count)
        if self.serial.replicas > 1:
            groups["target"] = replica
        if self.cluster == "tag":
            groups["tag"] = rng.integers(0, self.cluster_count, count)
        if self.cluster == "prefix":
            groups["prefix"] = rng.choice(
                self.cluster_count, count, p=_popularity(self.cluster_count)
            )

    def _factors(self, rng: Generator, at: Floats, phase: float, groups: dict[str, Ints]) -> Floats:
        """Return the factors of the period and of the clusters."""
        factors = np.ones(len(at))
        if self.wave is not None and not self.wave.of_rate:
            factors *= self.wave.at(at / self.wave.period + phase)
        if self.effect is not None:
            factors *= self.effect.factors[self._levels(rng, groups)]
        return factors

    def _levels(self, rng: Generator, groups: dict[str, Ints]) -> Ints:
        """Return the place of each request's factor among those of its kind of cluster."""
        assert self.effect is not None
        if self.cluster == "tag":
            return groups["tag"]
        if self.cluster == "user" and self.follows_pace:
            return groups.pop("level")
        codes = groups[self.cluster]
        return self.effect.drawn(rng, int(codes.max()) + 1)[codes]

    def _arrivals(self, rng: Generator, before: float) -> tuple[Floats, dict[str, Ints]]:
        """Return the times from `before` ahead of the stage to its end, and whose requests they are."""
        arrivals = self.arrivals
        length = self.seconds + before
        rate = 1.0
        if self.wave is not None and self.wave.of_rate:
            rate = (1 + self.wave.height) / self.wave.mean  # thinned to the rate of each moment
        if arrivals.kind == "sessions":
            return self._sessions(rng, before)
        if arrivals.kind == "users":
            return self._users(rng, before)
        if arrivals.kind == "even":
            return np.arange(rng.random(), length, 1.0) - before, {}
        if arrivals.kind == "bursts":
            number = rng.poisson(length / arrivals.size)
            sizes = rng.geometric(1 / arrivals.size, number)
            begin = np.repeat(rng.random(number) * length, sizes)
            at = np.sort(begin + rng.exponential(0.05, len(begin)))
            return at[at < length] - before, {}
        at = np.sort(rng.random(rng.poisson(rate * length)) * length)
        return at - before, {}

    def _sessions(self, rng: Generator, before: float) -> tuple[Floats, dict[str, Ints]]:
        arrivals = self.arrivals
        ahead = 12 * arrivals.size * arrivals.pause
        length = self.seconds + before + ahead
        number = rng.poisson(length / arrivals.size)
        turns = np.full(number, round(arrivals.size))
        if not arrivals.is_fixed:
            turns = rng.geometric(1 / arrivals.size, number)
        session = np.repeat(np.arange(number), turns)
        pauses = rng.exponential(arrivals.pause, len(session))
        passed = np.cumsum(pauses)
        first = np.cumsum(turns) - turns
        begin = rng.random(number) * length - before - ahead
        at = begin[session] + passed - passed[first][session]
        order = np.argsort(at)
        order = order[(at[order] >= -before) & (at[order] < self.seconds)]
        turn = np.arange(len(session)) - first[session]
        return at[order], {"session": session[order], "turn": turn[order]}

    def _users(self, rng: Generator, before: float) -> tuple[Floats, dict[str, Ints]]:
        """Return the requests of users who each go on for ever, some at a slower pace."""
        users = int(self.arrivals.size)
        cycle = np.full(users, float(users))
        level = np.zeros(users, np.int64)
        if self.follows_pace:
            assert self.effect is not None
            level = self.effect.drawn(rng, users)
            mean_rate = float((self.effect.chances / self.effect.factors).sum())
            cycle = users * self.effect.factors[level] * mean_rate
        length = self.seconds + before
        numbers = (1.3 * length / cycle + 40).astype(np.int64)
        user = np.repeat(np.arange(users), numbers)
        shape = 1.0 if not self.arrivals.is_fixed else 4.0
        gaps = rng.gamma(shape, 1 / shape, len(user)) * cycle[user]
        passed = np.cumsum(gaps)
        first = np.cumsum(numbers) - numbers
        at = passed - passed[first][user] - before - (rng.random(users) + 10)[user] * cycle[user]
        order = np.argsort(at)
        order = order[(at[order] >= -before) & (at[order] < self.seconds)]
        turn = np.arange(len(user)) - first[user]
        groups = {"user": user[order], "turn": turn[order]}
        if self.follows_pace:
            groups["level"] = level[user[order]]
        return at[order], groups


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a process, in order of arrival; the stage begins with the request `first`."""

    process: Process
    at: Floats
    normal: Floats
    factors: Floats
    latency: Floats
    failed: Mask
    patience: Floats
    groups: dict[str, Ints]
    turn: Ints
    """of a session or a user"""
    first: int

    @property
    def stage(self) -> slice:
        """The requests of the stage."""
        return slice(self.first, None)

    def waits(self) -> tuple[Floats, Mask, Mask]:
        """Return how long each request of the stage was waited for, whether it got its answer, and whether it was cut short."""
        process = self.process
        latency = self.latency[self.stage]
        failed = self.failed[self.stage]
        ends = np.where(failed, 0.1 * latency, latency)
        limit = self.patience[self.stage]
        if process.censoring.is_cut_at_end:
            limit = np.minimum(limit, (process.seconds - self.at[self.stage]) / process.scale)
        cut = ends > limit
        return np.minimum(ends, limit), ~failed & ~cut, cut

    def good(self, bound: float) -> Mask:
        """Return which requests of the stage got an answer within the bound before their users left."""
        latency = self.latency[self.stage]
        is_good: Mask = ~self.failed[self.stage] & (
            latency <= np.minimum(bound, self.patience[self.stage])
        )
        return is_good

    def gaps(self, rng: Generator, most: int) -> tuple[Floats, Ints]:
        """Return gaps of the first requests of the stage, one request after the other, and how many each has."""
        stage = slice(self.first, self.first + most)
        normal = self.normal[stage]
        sizes = 1 + rng.geometric(1 / 6, len(normal))
        request = np.repeat(np.arange(len(normal)), sizes)
        share = self.process.within_request
        noise = rng.standard_normal(len(request))
        latent = math.sqrt(share) * normal[request] + math.sqrt(1 - share) * noise
        values = np.interp(latent, NORMAL, self.process.table) * self.factors[stage][request]
        if self.process.unit:
            values = np.round(values / self.process.unit) * self.process.unit
        return values, sizes

    def arrival(self) -> Ints:
        """Return the arrival of each request: its session, its user, or itself."""
        for name in ("session", "user"):
            if name in self.groups:
                return self.groups[name]
        return np.arange(len(self.at))

    def whole(self) -> Mask:
        """Return which requests got an answer that their users stayed for."""
        is_whole: Mask = ~self.failed & (self.latency <= self.patience)
        return is_whole

    def work(self, rng: Generator) -> tuple[Floats, Floats, Floats]:
        """Return the tokens of the whole answers, of mean 1, when they began and when they ended."""
        is_whole = self.whole()
        at = self.at[is_whole]
        spent = self.latency[is_whole] * self.process.scale
        sigma = self.process.tokens_sigma
        tokens = np.exp(sigma * rng.standard_normal(len(at)) - sigma**2 / 2)
        return tokens, at + 0.3 * spent, at + spent


def autoregressive(rng: Generator, count: int, coefficient: float) -> Floats:
    """Return standard normal values, each correlated with the one before, a block at a time."""
    number = -(-count // BLOCK)
    noise = rng.standard_normal((number, BLOCK)) * math.sqrt(1 - coefficient**2)
    lags = np.subtract.outer(np.arange(BLOCK), np.arange(BLOCK))
    within = noise @ np.where(lags >= 0, coefficient ** np.maximum(lags, 0), 0.0).T
    decay = coefficient ** np.arange(1, BLOCK + 1)
    last = rng.standard_normal()
    for place in range(number):
        within[place] += decay * last
        last = within[place, -1]
    return within.ravel()[:count]


def _by_group(codes: Ints, draw: Callable[[int], Floats]) -> Floats:
    """Return a series of each group, spread over its requests."""
    order = np.argsort(codes, kind="stable")
    series = [draw(int(number)) for number in np.bincount(codes) if number]
    values = np.empty(len(codes))
    values[order] = np.concatenate(series) if series else np.empty(0)
    return values


@functools.cache
def _popularity(cluster_count: int) -> Floats:
    """Return the share of each prefix: the second is asked for less often than the first."""
    weights = 1 / np.sqrt(np.arange(1, cluster_count + 1))
    return np.asarray(weights / weights.sum())


# --- the grammar ----------------------------------------------------------------------------------------------------


def _log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def _lognormals(shares: Floats, medians: Floats, sigmas: Floats) -> Floats:
    """Return the table of a mixture of lognormal latencies."""
    logs = np.linspace(
        math.log(medians.min()) - 9 * sigmas.max(),
        math.log(medians.max()) + 9 * sigmas.max(),
        20_000,
    )
    below = np.zeros(len(logs))
    for share, median, sigma in zip(shares, medians, sigmas, strict=True):
        below += share * np.interp((logs - math.log(median)) / sigma, NORMAL, BELOW)
    table: Floats = np.exp(np.interp(BELOW, below, logs) + 1e-9 * NORMAL)
    return table


def _base(rng: Generator, kind: str) -> tuple[str, Floats]:
    """Return a distribution of latencies with median 100, and its name."""
    if kind == "constant":
        return kind, 100 * np.exp(1e-7 * NORMAL)
    if kind == "exponential":
        return kind, 100 / math.log(2) * -np.log(np.maximum(1 - BELOW, 1e-16)) + 1e-6 * (9 + NORMAL)
    if kind == "tail":
        share = _log_uniform(rng, 0.01, 0.2)
        times = _log_uniform(rng, 4, 40)
        table = _lognormals(
            np.array([1 - share, share]), np.array([100, 100 * times]), np.array([0.3, 0.5])
        )
        return f"{share:.1%} are {times:.0f}x as long", table
    if kind == "modes":
        shares = rng.dirichlet([3.0, 3.0, 3.0])
        medians = 100 * np.array([1.0, rng.uniform(1.5, 3), rng.uniform(3, 8)])
        return "three modes", _lognormals(shares, medians, rng.uniform(0.05, 0.4, 3))
    sigma = rng.uniform(0.15, 1.0)
    return f"lognormal {sigma:.1f}", 100 * np.exp(sigma * NORMAL)


def draw(seed: int, number: int, requests: float | None = None) -> Process:
    """Draw a process: whether each factor acts, then what it is; every tenth is independent."""
    rng = np.random.default_rng([seed, number])
    is_plain = number % PLAIN == 0
    acts = {family: bool(rng.random() < 0.4) for family in FAMILIES}
    if is_plain:
        acts = {family: family in {"ties", "mixtures"} and acts[family] for family in FAMILIES}
    kind = str(rng.choice(["lognormal", "exponential"]))
    if acts["mixtures"]:
        kind = str(rng.choice(["tail", "modes"]))
    elif acts["ties"] and rng.random() < 0.3:
        kind = "constant"
    base, table = _base(rng, kind)
    seconds = _log_uniform(rng, 400, 8000) if requests is None else requests
    serial = _draw_serial(rng, seconds) if acts["serial"] else Serial()
    cluster = ""
    if acts["cluster"]:
        cluster = str(rng.choice(["session", "session", "user", "prefix", "tag"]))
    arrivals = _draw_arrivals(rng, seconds, "none" if is_plain else cluster)
    cluster_count = 0
    if cluster == "prefix":
        cluster_count = int(_log_uniform(rng, 40, 300))
    if cluster == "tag":
        cluster_count = int(rng.integers(2, 7))
    effect = _draw_effect(rng, cluster, cluster_count) if cluster else None
    wave = _draw_wave(rng, seconds, arrivals, kind) if acts["periodic"] else None
    failures = _draw_failures(rng, seconds, cluster) if acts["failures"] else None
    if failures is not None and failures.cluster and rng.random() < 0.5:
        effect = None
    return Process(
        seed=seed,
        number=number,
        seconds=seconds,
        base=base,
        table=table,
        serial=serial,
        wave=wave,
        arrivals=arrivals,
        cluster=cluster,
        effect=effect,
        cluster_count=cluster_count,
        follows_pace=cluster == "user" and effect is not None and bool(rng.random() < 0.5),
        failures=failures,
        censoring=_draw_censoring(rng) if acts["censoring"] else Censoring(),
        unit=_unit(rng, kind) if acts["ties"] else 0.0,
        within_request=rng.uniform(0.05, 0.95),
        tokens_sigma=rng.uniform(0.2, 1.2),
        concurrency=_log_uniform(rng, 0.3, 30),
        families=frozenset(name for name, does in acts.items() if does) or frozenset({INDEPENDENT}),
    )


def _unit(rng: Generator, kind: str) -> float:
    return 0.01 if kind == "constant" else float(rng.choice([0.01, 1.0, 10.0, 25.0]))


@functools.cache
def _queue(load: float, scatter: float) -> Queue:
    """Return the queue that all processes with this load share, so that its distribution is simulated once."""
    return Queue(load=load, scatter=scatter)


def _draw_serial(rng: Generator, requests: float) -> Serial:
    """Draw how a request depends on those before it; a run has 12 to 300 correlation times or periods, about."""
    kind = str(rng.choice(["smooth", "queue", "slow"]))
    if kind == "queue":
        scatter = float(rng.choice([0.25, 0.5, 1.0, 1.0, 1.0, 2.0]))
        return Serial(queue=_queue(round(0.05 * rng.integers(6, 18), 2), scatter))
    replicas = int(rng.integers(2, 7)) if rng.random() < 0.5 else 1
    is_round_robin = bool(rng.random() < 0.6)
    time = requests / _log_uniform(rng, 12, 300) / replicas
    if kind == "smooth":
        smooth = min(0.995, (max(2.0, time) - 1) / (max(2.0, time) + 1))
        return Serial(smooth=smooth, replicas=replicas, is_round_robin=is_round_robin)
    return Serial(
        slow=_slow_periods(rng, max(4.0, time)),
        slow_factor=_log_uniform(rng, 1.5, 12),
        replicas=replicas,
        is_round_robin=is_round_robin,
    )


def _draw_wave(rng: Generator, seconds: float, arrivals: Arrivals, base: str) -> Wave:
    of_rate = arrivals.kind == "poisson" and bool(rng.random() < 0.4)
    return Wave(
        period=max(4.0, seconds / _log_uniform(rng, 15, 250)),
        height=rng.uniform(0.2, 0.9) if of_rate else _log_uniform(rng, 0.2, 4),
        is_square=base == "constant" or bool(rng.random() < 0.5),
        of_rate=of_rate,
    )


def _draw_censoring(rng: Generator) -> Censoring:
    if rng.random() < 0.3:
        return Censoring(is_cut_at_end=True)
    return Censoring(
        patience=_log_uniform(rng, 0.6, 10),
        sigma=float(rng.choice([0.0, 0.3, 1.0])),
        is_cut_at_end=bool(rng.random() < 0.5),
    )


def _slow_periods(rng: Generator, cycle: float) -> SlowPeriods:
    """Draw periods that come once in so many requests."""
    share = max(_log_uniform(rng, 0.005, 0.4), 1.0 / cycle)
    share = min(share, 0.5)
    return SlowPeriods(
        share=share, length=max(1.0, share * cycle), is_fixed=bool(rng.random() < 0.5)
    )


def _draw_arrivals(rng: Generator, seconds: float, cluster: str) -> Arrivals:
    kind = {"none": "poisson", "session": "sessions", "user": "users"}.get(cluster, "")
    if not kind:
        kind = str(rng.choice(["poisson", "poisson", "even", "bursts", "sessions"]))
    size = 1.0
    pause = 0.0
    if kind == "bursts":
        size = _log_uniform(rng, 1.5, max(2, min(50, seconds / 40)))
    if kind == "users":
        size = float(int(_log_uniform(rng, 20, max(25, min(400, seconds / 4)))))
    if kind == "sessions":
        size = float(round(_log_uniform(rng, 2, max(3, min(60, seconds / 40)))))
        pause = _log_uniform(rng, 0.5, max(1.0, min(60, seconds / 12 / size)))
    return Arrivals(kind=kind, size=size, pause=pause, is_fixed=bool(rng.random() < 0.5))


def _draw_effect(rng: Generator, cluster: str, cluster_count: int) -> Effect:
    """Draw how clusters differ: a few are slow, or all by a lognormal factor; those of tags are as they are."""
    if cluster == "tag":
        return Effect(
            factors=np.exp(rng.normal(0, 0.5, cluster_count)),
            chances=np.full(cluster_count, 1 / cluster_count),
        )
    if rng.random() < 0.5:
        share = _log_uniform(rng, 0.03, 0.4)
        factors = np.array([1.0, _log_uniform(rng, 2, 8)])
        return Effect(factors=factors, chances=np.array([1 - share, share]))
    sigma = _log_uniform(rng, 0.25, 1.0)
    levels = np.interp((np.arange(LEVELS) + 0.5) / LEVELS, BELOW, NORMAL)
    return Effect(factors=np.exp(sigma * levels), chances=np.full(LEVELS, 1 / LEVELS))


def _draw_failures(rng: Generator, seconds: float, cluster: str) -> Failures:
    share = _log_uniform(rng, 0.002, 0.25)
    manner = str(rng.choice(["alone", "periods", "cluster"]))
    if manner == "cluster" and cluster in {"session", "user", "prefix"}:
        within = max(share, rng.uniform(0.3, 1.0))
        return Failures(share=share, periods=None, within=within, cluster=cluster)
    if manner == "periods":
        cycle = max(4.0, seconds / _log_uniform(rng, 15, 250))
        within = rng.uniform(0.4, 1.0)
        length = max(1.0, round(share / within * cycle))
        between = max(1.0, cycle - length)
        periods = SlowPeriods(share=length / (length + between), length=length, is_fixed=True)
        return Failures(share=within * periods.share, periods=periods, within=within, cluster="")
    return Failures(share=share, periods=None, within=share, cluster="")
