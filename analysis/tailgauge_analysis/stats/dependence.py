"""How much less dependent values say than independent ones: serial dependence, waves, and groups of values that are alike.

From the deviations of a share from its mean, one a value (or a request that has several values), in arrival order. Their
effect is the variance of their sum over that of independent ones, so that n_eff = n / effect:

    effect = time + excess

- time: 1 + 2 sum of their autocorrelations, summed over Geyer's initial positive pairs (Geyer 1992).
- excess: the sum of the products of all pairs of one group over the sum of squares, for the grouping with the largest; without
  pairs so near to each other that `time` has them (Cameron, Gelbach and Miller 2011, two-way clusters).
- Batch means: the variance of the sums of 20 and of 40 batches may show a longer wave, or one that Geyer's pairs miss.

An excess counts only where it is shown: if the values, permuted, reach it in less than 1%. The plain largest of several
estimates would cost independent values a third of their n_eff.

Groups whose requests follow each other by construction (conversations, users of a closed loop) are a sample of more such
groups. Others (workers, targets, tags, prompts) are one where there are at least 30; fewer are parts of the traffic, which any
run has in the same shares: that they differ is no error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LAGS = 1024  # of the autocorrelation that are looked at first
# How many lags are added at a time, and by how many standard errors their sum must exceed 0.
WIDTHS = ((2, 2.33), (8, 3.5))
BATCHES = (20, 40)
IN_BATCH = 5  # values at least
FEWEST_GROUPS = 30
FEW = 20  # values beyond a level; with fewer, its dependence is not known from them alone
PERMUTATIONS = 199  # of one test
ALLOWED = 2  # permutations with as much: 1% with itself
PERMUTED = 100_000  # values; of more the normal distribution says the same
WAVY = 3.2  # standard errors above which batches differ: chi-squared of 19 and 39, 0.5% each
UNLIKELY = 2.0  # standard errors below which nothing is shown
CERTAIN = 6.0  # standard errors above which no permutation is needed; twice as many of fewer than 20 rare values
PAIRS = 50_000_000  # of near values of one group that are looked at
SEED = 20_240_229  # the same rows give the same interval

PLAIN = ((2, 0.0),)

# What limits n_eff, beside the names of groupings.
NEIGHBOURS = "neighbours"
WAVES = "waves"


@dataclass(frozen=True)
class Grouping:
    """Which values belong together: `codes`, one a value or a group of `sizes`, in arrival order; -1 of what belongs to none.

    `follows_by_construction`: values of one group follow each other, as the turns of a conversation or of a user do.
    """

    name: str
    codes: Ints
    follows_by_construction: bool = False

    def only(self, mask: Mask | Ints) -> Grouping:
        """Return the grouping of some values."""
        return replace(self, codes=self.codes[mask])

    @cached_property
    def clusters(self) -> Clusters | None:
        """Return its groups of two values or more; None where none has."""
        _, index, counts = np.unique(self.codes, return_inverse=True, return_counts=True)
        sizes = counts[index]
        has_others = (sizes > 1) & (self.codes >= 0)
        if not has_others.any():
            return None
        places = np.flatnonzero(has_others)
        order = places[np.argsort(index[places], kind="stable")]
        group = index[order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        lengths = np.diff(starts, append=len(order))
        squares = float(np.square(lengths, dtype=np.float64).sum()) + len(self.codes) - len(order)
        return Clusters(
            name=self.name,
            is_sample=self.follows_by_construction,
            places=order,
            starts=starts,
            lengths=lengths,
            count=len(self.codes) ** 2 / squares,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Groups of two values or more: the `places` of their values, one group after the other, each in arrival order.

    `count`: how many groups of one size would be as many, single values among them.
    """

    name: str
    is_sample: bool
    places: Ints
    starts: Ints
    lengths: Ints
    count: float

    def sums(self, values: Floats) -> Floats:
        """Return the sum of each group."""
        sums: Floats = np.add.reduceat(values[self.places], self.starts)
        return sums

    @property
    def pairs(self) -> float:
        """Return how many ordered pairs of values are of one group."""
        return float((self.lengths.astype(np.float64) * (self.lengths - 1)).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What the groups of a grouping add to the effect; `freedom`: degrees of freedom of that estimate."""

    name: str
    value: float
    whole: float
    """The same with the pairs that the correlation time has."""
    is_shown: bool
    groups: float
    freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """How values depend on each other. `time`: correlation time, in values; `waves`: effect by batch means, 0 if not shown."""

    time: float = 1.0
    excesses: tuple[Excess, ...] = ()
    waves: float = 0.0
    batches: int = 0

    def largest(self, alike: frozenset[str] = frozenset()) -> Excess | None:
        """Return the largest excess of those shown here or elsewhere, None without one."""
        largest = None
        largest_value = 0.0
        for excess in self.excesses:
            is_counted = excess.is_shown or excess.name in alike
            if is_counted and excess.value > largest_value:
                largest = excess
                largest_value = excess.value
        return largest

    @property
    def shown(self) -> frozenset[str]:
        """Return the names of the groupings whose effect is shown."""
        names = set()
        for excess in self.excesses:
            if excess.is_shown:
                names.add(excess.name)
        return frozenset(names)

    def effect(self, alike: frozenset[str] = frozenset()) -> float:
        """Return the variance of the sum over that of independent values."""
        largest = self.largest(alike)
        return max(self.time + (largest.value if largest else 0.0), self.waves)

    def limited_by(self, alike: frozenset[str] = frozenset()) -> str:
        """Return what makes most of the effect; empty where there is none."""
        largest = self.largest(alike)
        excess = largest.value if largest else 0.0
        if self.waves > self.time + excess:
            return WAVES
        if largest is not None and largest.whole >= (self.time - 1 + excess) / 2:
            return largest.name
        return NEIGHBOURS if self.time > 1 else ""


INDEPENDENT = Dependence()


def joined(parts: Sequence[tuple[Sequence[Grouping], int]]) -> tuple[Grouping, ...]:
    """Return the groupings of samples of so many values, one after the other; no group is in two of them."""
    by_name: dict[str, Grouping] = {}
    for groupings, _ in parts:
        for grouping in groupings:
            by_name[grouping.name] = grouping
    return tuple(_joined(grouping, parts) for grouping in by_name.values())


def _joined(grouping: Grouping, parts: Sequence[tuple[Sequence[Grouping], int]]) -> Grouping:
    codes = []
    offset = 0
    for groupings, count in parts:
        part = np.full(count, -1, np.int64)
        for candidate in groupings:
            if candidate.name == grouping.name:
                part = candidate.codes
        codes.append(np.where(part < 0, -1, part + offset))
        offset += 1 + int(part.max(initial=0))
    return replace(grouping, codes=np.concatenate(codes))


def clusters_of(groupings: Iterable[Grouping]) -> tuple[Clusters, ...]:
    """Return the groups that are a sample of more such groups."""
    samples = []
    for grouping in groupings:
        clusters = grouping.clusters
        if clusters and (clusters.is_sample or clusters.count >= FEWEST_GROUPS):
            samples.append(clusters)
    return tuple(samples)


def has_few_groups(groupings: Iterable[Grouping]) -> bool:
    """Return whether there is a grouping whose values follow each other and which has too few groups."""
    for grouping in groupings:
        clusters = grouping.clusters
        if clusters and clusters.is_sample and clusters.count < FEWEST_GROUPS:
            return True
    return False


def dependence(deviations: Floats, clusters: Sequence[Clusters] = ()) -> Dependence:
    """Return how the values of a series depend on each other: over time, within groups, and in long waves.

    `deviations`: from the mean, in order of time, so that their sum is 0; `clusters`: groupings of these values.
    """
    squares = float(np.square(deviations).sum())
    if squares <= 0:
        return INDEPENDENT
    time, reach = correlation(deviations)
    tests = len(clusters)
    excesses = []
    for groups in clusters:
        # What the pairs of one group add beyond those that `time` already has; `tests`: how many groupings share the chance.
        excess = _excess(deviations, squares, groups, time=time, reach=reach, tests=tests)
        excesses.append(excess)
    result = Dependence(time=time, excesses=tuple(excesses))
    effect = result.effect()
    rarity = _rarity(deviations)
    # Sums of batches show waves that are longer than the correlations; 0 where they do not exceed the effect so far.
    for batches in BATCHES:
        waves = _batch_effect(deviations, squares, batches, effect=effect, rarity=rarity)
        if waves > result.waves:
            result = replace(result, waves=waves, batches=batches)
    return result


def _excess(
    deviations: Floats,
    squares: float,
    clusters: Clusters,
    *,
    time: float,
    reach: int,
    tests: int,
) -> Excess:
    whole = _products(deviations[clusters.places], clusters) / squares
    value = whole - _near(deviations, reach, clusters) / squares
    return Excess(
        name=clusters.name,
        value=value,
        whole=whole,
        is_shown=_is_shown(deviations, squares, clusters, value / time, tests),
        groups=clusters.count,
        freedom=freedom(clusters.sums(deviations)),
    )


def effective_count(sizes: Floats | Ints) -> float:
    """Return how many of one size say as much: (sum s)^2 / sum s^2 (Kish); +inf where all are 0."""
    squares = float(np.square(sizes).sum())
    if not squares > 0:
        return math.inf
    return float(sizes.sum()) ** 2 / squares


def freedom(sums: Floats) -> float:
    """Return the degrees of freedom of a variance that is estimated by the squares of sums: 2 sum(s^2)^2 / sum(s^4)."""
    return 2 * effective_count(np.square(sums))


def _rarity(deviations: Floats) -> float:
    """Return how many values the sum of squares comes from: of a share, about as many as the rarer outcome has."""
    return effective_count(np.square(deviations))


def _products(values: Floats, clusters: Clusters) -> float:
    """Return the sum of the products of all pairs of one group; `values`: those of the groups, one group after the other."""
    sums = np.add.reduceat(values, clusters.starts)
    # Deviations from a common mean are less than those from the mean of all such groups.
    factor = 1 - min(0.5, 1 / clusters.count)
    return float(np.square(sums).sum()) / factor - float(np.square(values).sum())


def _near(deviations: Floats, reach: int, clusters: Clusters) -> float:
    """Return the sum of the products of the pairs of one group that are at most `reach` apart."""
    places = clusters.places
    values = deviations[places]
    group = np.repeat(np.arange(len(clusters.starts)), clusters.lengths)
    total = 0.0
    looked_at = 0
    for distance in range(1, min(reach, int(clusters.lengths.max()) - 1) + 1):
        is_near = (group[distance:] == group[:-distance]) & (
            places[distance:] - places[:-distance] <= reach
        )
        if not is_near.any() or looked_at > PAIRS:
            break
        total += 2 * float((values[distance:] * values[:-distance])[is_near].sum())
        looked_at += len(places)
    return total


def _is_shown(
    deviations: Floats, squares: float, clusters: Clusters, excess: float, tests: int
) -> bool:
    """Return whether permuted values have such an excess in less than 1%, over so many tests.

    `deviations`: from the mean; `squares`: the sum of their squares; `excess`: the products of all pairs of one group over it.
    Permutations are tried only where the normal distribution leaves a doubt, and few enough values make them cheap.
    """
    n = len(deviations)
    # The standard error of the excess of independent values.
    error = math.sqrt(2 * clusters.pairs) / n
    if excess < UNLIKELY * error:
        return False
    if excess > 2 * CERTAIN * error:
        return True
    if excess > CERTAIN * error and _rarity(deviations) > FEW:
        return True
    if n > PERMUTED:
        return excess > CERTAIN / 2 * error
    rng = np.random.default_rng(SEED)
    larger = 0
    for _ in range(PERMUTATIONS * tests):
        values = rng.permutation(deviations)[: len(clusters.places)]
        larger += _products(values, clusters) / squares >= excess - 1e-12
        if larger >= ALLOWED:
            return False
    return True


def _batch_effect(
    deviations: Floats, squares: float, batches: int, *, effect: float, rarity: float
) -> float:
    """Return the effect by the sums of batches; 0 where it is not shown to be larger than `effect`.

    In less than 1% of independent values: an index of dispersion, whose variance a few rare values widen.
    """
    n = len(deviations)
    if n < IN_BATCH * batches:
        return 0.0
    starts = np.linspace(0, n, batches + 1).astype(np.int64)[:-1]
    sums = np.add.reduceat(deviations, starts)
    waves = float(np.square(sums).sum()) / squares / (1 - 1 / batches)
    error = math.sqrt(2 / (batches - 1) + 1 / rarity)
    if waves / effect > 1 + WAVY * error:
        return waves
    return 0.0


def correlation_time(series: Floats) -> float:
    """1 + 2 sum of autocorrelations over Geyer's initial positive pairs; never below 1."""
    return correlation(series, PLAIN)[0]


def correlation(series: Floats, widths: Sequence[tuple[int, float]] = WIDTHS) -> tuple[float, int]:
    """Return the correlation time, and the longest lag that is in it; 1 and 0 where no correlation is shown.

    The time is 1 + 2 sum of the autocorrelations, up to the first group of neighbouring lags whose sum is not above 0. `widths`:
    lags of a group, and by how many standard errors what they add must exceed 0.

    Calls that go round several replicas are correlated at every third lag, say, so that pairs end early: groups of eight lags
    are taken too, where what they add is shown.
    """
    n = len(series)
    # The mean of equal values may be off by a rounding, which would pass for a wave.
    if series.min() == series.max():
        return 1.0, 0
    centred = series - series.mean()
    # Products of rare values are as skewed as a Poisson variable (Cornish and Fisher).
    rarity = _rarity(centred)
    longest = 1.0, 0
    lags = min(n, LAGS)
    correlations = _autocorrelations(centred, lags)
    for width, errors in widths:
        # More lags are taken until a sum ends the series, or none is left.
        while True:
            sums = correlations[: lags // width * width].reshape(-1, width).sum(axis=1)
            ends = np.flatnonzero(sums <= 0)
            if len(ends) or lags == n:
                break
            lags = min(n, 8 * lags)
            correlations = _autocorrelations(centred, lags)
        pair_count = len(sums)
        if len(ends):
            pair_count = int(ends[0])
        if not pair_count:
            continue
        time = 2 * float(sums[:pair_count].sum()) - 1
        reach = width * pair_count - 1
        by_chance = errors * math.sqrt(reach / n) + (errors**2 - 1) / 6 / rarity
        if time > max(longest[0], 1 + 2 * by_chance):
            longest = time, reach
    return longest


def _autocorrelations(centred: Floats, lags: int) -> Floats:
    """Return the autocorrelations at 0 to lags - 1, by FFT, a block of the series after the other."""
    n = len(centred)
    size = 1 << max(14, (4 * lags - 1).bit_length())
    size = min(size, 1 << (n + lags - 2).bit_length())
    block = size - lags + 1
    total = np.zeros(size // 2 + 1, np.complex128)
    for begin in range(0, n, block):
        part = np.fft.rfft(centred[begin : begin + block], size)
        longer = np.fft.rfft(centred[begin : begin + size], size)
        total += part.conj() * longer
    covariances = np.fft.irfft(total, size)[:lags]
    correlations: Floats = covariances / covariances[0]
    return correlations
