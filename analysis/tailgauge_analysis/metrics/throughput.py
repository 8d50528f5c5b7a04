"""Throughput: what arrived, began and ended within the steady stage, each by its own time, over the stage's length.

A request of the warm-up that ends in the stage is work that the target did in it; a request of the stage that ends after
it is not. The interval of a rate is of the rate that goes on for ever: the stage is cut into equal windows, and stretches of
them are drawn again (stats/bootstrap.py). Sessions that last longer than such a stretch, and users of a closed loop, differ
in what they do: the interval is at least that of a sum over independent arrivals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import first_sign_at_ns, whole_at_ns
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import CALL, Frames
from tailgauge_analysis.stats.binomial import student
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.dependence import effective_count
from tailgauge_analysis.stats.quantiles import LEAST, Floats, Ints
from tailgauge_analysis.text.formatting import figures
from tailgauge_analysis.text.quantile import UNPUBLISHED

WINDOWS = 200
FEWEST_EVENTS = 20  # for an interval
ARRIVAL_WINDOWS = 40


@dataclass(frozen=True, slots=True)
class Rate:
    """Per second, with its 95% interval; without one where too few events came."""

    value: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True)
class Work:
    """What was done within a stage, as `amounts` that came evenly between two times, and of which request each was."""

    seconds: float
    amounts: Floats
    begun_s: Floats
    ended_s: Floats
    of: Ints
    is_closed: bool = False
    """The number of arrivals, users, is fixed; else it varies too."""

    def rate(self, requests: Ints | None = None) -> Rate:
        """Return the rate per second of some requests, given by their ids, or of all, with its 95% interval.

        The interval resamples stretches of windows of the stage. It is widened where sessions or users vary more, and is never
        narrower than one event more or less. Below FEWEST_EVENTS events there is none.
        """
        counts = (self.amounts > 0) & np.isfinite(self.begun_s + self.ended_s)
        if requests is not None:
            counts &= np.isin(self.of, requests)
        amounts = self.amounts[counts]
        n = len(amounts)
        value = float(amounts.sum()) / self.seconds
        if n < FEWEST_EVENTS:
            return Rate(value, None, None, n)
        # `ratio` returns the bootstrap interval of amount over time.
        edges = np.linspace(0.0, self.seconds, WINDOWS + 1)
        low, high = ratio(
            _per_window(edges, amounts, self.begun_s[counts], self.ended_s[counts]), np.diff(edges)
        )
        step = float(amounts.mean()) / self.seconds  # one more or one less, however even the rate
        wider = max(
            1.0, 2 * self._between_arrivals(amounts, self.of[counts]) / max(step, high - low)
        )
        low = value - wider * (value - low)
        high = value + wider * (high - value)
        return Rate(value, max(0.0, min(low, value - step)), max(high, value + step), n)

    def _between_arrivals(self, amounts: Floats, requests: Ints) -> float:
        """Return half of the interval by what sessions or users did; 0 where each arrival was one request.

        The variance of a sum over so many arrivals: sum (w - mean)^2 + mean^2 Var(their number), which is 0 in a closed loop.
        """
        arrivals, index = np.unique(requests // schema.TURNS, return_inverse=True)
        if len(arrivals) == len(np.unique(requests)):
            return 0.0
        sums = np.bincount(index, amounts)
        variance = float(np.square(sums - sums.mean()).sum())
        if not self.is_closed:
            begun_s = self.begun_s[np.isin(self.of, requests) & (self.of % schema.TURNS == 0)]
            variance += float(sums.mean()) ** 2 * len(sums) * self._dispersion(begun_s)
        freedom = max(LEAST, effective_count(sums) - 1)
        return student(round(freedom, 1)) * math.sqrt(variance) / self.seconds

    def _dispersion(self, begun_s: Floats) -> float:
        """Return the variance of the number of arrivals in a time over its mean; as of Poisson arrivals where few came."""
        if len(begun_s) < FEWEST_EVENTS:
            return 1.0
        numbers = np.histogram(begun_s, ARRIVAL_WINDOWS, (0.0, self.seconds))[0]
        if not numbers.any():
            return 1.0
        return float(numbers.var(ddof=1) / numbers.mean())


def _per_window(edges: Floats, amounts: Floats, begun: Floats, ended: Floats) -> Floats:
    """Return how much came between each two edges."""
    at_once = ended <= begun
    arrived = np.histogram(ended[at_once], edges, weights=amounts[at_once])[0]
    lasts = ~at_once
    if lasts.any():
        arrived = arrived + np.diff(
            np.interp(edges, *received(begun[lasts], ended[lasts], amounts[lasts]))
        )
    amounts_between: Floats = np.maximum(arrived, 0.0)
    return amounts_between


def received(begun: Floats, ended: Floats, amounts: Floats) -> tuple[Floats, Floats]:
    """Times, and what had come by then of amounts that come evenly: a line whose slope changes where one begins or ends."""
    slopes = amounts / (ended - begun)
    times = np.concatenate((begun, ended))
    order = np.argsort(times, kind="stable")
    times = times[order]
    slope = np.cumsum(np.concatenate((slopes, -slopes))[order])
    return times, np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(times))))


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the steady stage; None without one, and where no answer began at a known time or had a known number of tokens."""

    offered_per_s: float | None = None
    accepted_per_s: float | None = None
    completed_per_s: float | None = None
    output_tokens_per_s: float | None = None
    seconds: float = field(default=0.0, metadata=UNPUBLISHED)
    requests: Work | None = field(default=None, metadata=UNPUBLISHED)
    tokens: Work | None = field(default=None, metadata=UNPUBLISHED)

    @property
    def text(self) -> str:
        """`9.78 requests/s offered, 9.81/s completed (some sent in the warm-up)`; empty without both.

        Requests that completed after the stage are not among the second.
        """
        if self.offered_per_s is None or self.completed_per_s is None:
            return ""
        offered = figures(self.offered_per_s)
        completed = figures(self.completed_per_s)
        text = f"{offered} requests/s offered, {completed}/s completed"
        if completed == offered:
            return text
        if self.completed_per_s > self.offered_per_s:
            return f"{text} (some sent in the warm-up)"
        return f"{text} within the {figures(self.seconds)} s of the steady stage"


def throughput(frames: Frames, stage: Steady) -> Throughput:
    """Return the rates of the steady stage, each by its own time: offered by when requests were due, accepted by their first sign
    from the target, completed by their end, tokens by when they arrived.

    Accepted, completed and tokens are of requests of any stage but the preflight. The chunks of the frames must still have their
    arrivals. Without a stage every rate is None.
    """
    if not stage.seconds:
        return Throughput()
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates(
        "request_id"
    )
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    began = first_sign_at_ns(attempts)[attempts["status"] < 300]
    first_sign_ns = began.groupby(attempts["request_id"]).min().dropna()
    completed = requests[
        requests["ended"].isin(schema.COMPLETE) & stage.holds(requests["ended_at_ns"])
    ]
    ended_s = completed["ended_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    accepted_per_s = None
    if len(first_sign_ns):
        accepted_per_s = float(stage.holds(first_sign_ns).sum()) / stage.seconds
    tokens = _tokens(frames, attempts, stage)
    output_tokens_per_s = None
    if tokens is not None:
        output_tokens_per_s = float(tokens.amounts.sum()) / stage.seconds
    return Throughput(
        offered_per_s=len(stage.requests) / stage.seconds,
        accepted_per_s=accepted_per_s,
        completed_per_s=len(completed) / stage.seconds,
        output_tokens_per_s=output_tokens_per_s,
        seconds=stage.seconds,
        requests=Work(
            seconds=stage.seconds,
            amounts=np.ones(len(completed)),
            begun_s=ended_s,
            ended_s=ended_s,
            of=completed["request_id"].to_numpy(np.int64),
            is_closed=frames.run["arrival"] == "closed",
        ),
        tokens=tokens,
    )


@dataclass(frozen=True, slots=True)
class WholeRun:
    """What was answered from the first request to the last answer, warm-up and drain included."""

    answered: int
    seconds: float
    output_tokens: float | None

    @property
    def completed_per_s(self) -> float:
        """Return the rate over this span."""
        return self.answered / self.seconds

    @property
    def output_tokens_per_s(self) -> float | None:
        """Return the tokens of the answers over this span."""
        if self.output_tokens is None:
            return None
        return self.output_tokens / self.seconds


def whole_run(frames: Frames) -> WholeRun | None:
    """Return what a whole run got done; None without an answer."""
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates(
        "request_id"
    )
    answered = requests[requests["ended"].isin(schema.COMPLETE)]
    seconds = float(answered["ended_at_ns"].max() - requests["scheduled_at_ns"].min()) / 1e9
    if not seconds > 0:
        return None
    attempts = frames.attempts[frames.attempts["request_id"].isin(answered["request_id"])]
    tokens = attempts.loc[attempts["ended"].isin(schema.COMPLETE), "output_tokens"].dropna()
    output_tokens = None
    if len(tokens):
        output_tokens = float(tokens.sum())
    return WholeRun(len(answered), seconds, output_tokens)


def _tokens(frames: Frames, attempts: pd.DataFrame, stage: Steady) -> Work | None:
    """Return the output tokens that arrived in the stage, an amount per attempt; None where no answer reports its tokens.

    An attempt's tokens are spread evenly over its chunks. One without a complete answer, or whose count is unknown or beyond what
    was requested, has the run's mean of tokens per chunk.
    """
    chunks = frames.chunks
    is_closed = frames.run["arrival"] == "closed"
    # The entry of each attempt among the chunks; -1 of one without kept chunks.
    requests, legs, numbers = (attempts[name].to_numpy(np.int64) for name in CALL)
    places = chunks.places(requests, legs, numbers)
    streamed = places >= 0
    last_ns = whole_at_ns(attempts)
    at_once = stage.holds(last_ns)  # the result of a job, or an answer whose chunks were not kept
    inside = chunks.within(stage.from_s * 1e9, stage.to_s * 1e9)
    # How many of its `sizes` chunks arrived in the stage; without chunks, its whole answer or nothing.
    within = np.where(streamed, np.append(inside, 0)[places], at_once)
    sizes = np.where(streamed, np.append(chunks.sizes, 0)[places], 1.0)
    tokens = (
        attempts["output_tokens"]
        .where(attempts["ended"].isin(schema.COMPLETE))
        .to_numpy(np.float64)
    )
    if np.isnan(tokens).all():
        return None
    is_known = streamed & ~np.isnan(tokens)
    per_chunk = 0.0
    if is_known.any():
        per_chunk = float(tokens[is_known].sum() / sizes[is_known].sum())
    counts: Floats = np.where(np.isnan(tokens), per_chunk * sizes * streamed, tokens)
    return Work(
        seconds=stage.seconds,
        amounts=counts * within / sizes,
        begun_s=_since_begin(attempts["first_content_at_ns"].where(streamed, last_ns), stage),
        ended_s=_since_begin(last_ns, stage),
        of=requests,
        is_closed=is_closed,
    )


def _since_begin(at_ns: pd.Series[float], stage: Steady) -> Floats:
    """Seconds since the stage began, within it."""
    since_s: Floats = (at_ns.to_numpy(np.float64) / 1e9 - stage.from_s).clip(0.0, stage.seconds)
    return since_s
