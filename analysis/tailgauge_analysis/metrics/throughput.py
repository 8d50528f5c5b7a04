"""Throughput: what arrived, began and ended within the steady stage, each by its own time, over the stage's length.

A request of the warm-up that ends in the stage is work that the target did in it; a request of the stage that ends after
it is not. The interval of a rate is of the rate that goes on for ever: the stage is cut into equal windows, and stretches of
them are drawn again (stats/bootstrap.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import whole_at_ns
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.quantiles import Floats, Ints
from tailgauge_analysis.text.quantile import FOR_FIGURES

WINDOWS = 200
FEWEST = 20  # events, for an interval


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

    def rate(self, requests: Ints | None = None) -> Rate:
        """The rate of some requests, or of all."""
        mine = np.ones(len(self.of), np.bool_) if requests is None else np.isin(self.of, requests)
        mine &= (self.amounts > 0) & np.isfinite(self.begun_s + self.ended_s)
        amounts, begun, ended, n = self.amounts[mine], self.begun_s[mine], self.ended_s[mine], int(mine.sum())
        value = float(amounts.sum()) / self.seconds
        if n < FEWEST:
            return Rate(value, None, None, n)
        edges = np.linspace(0.0, self.seconds, WINDOWS + 1)
        low, high = ratio(_between(edges, amounts, begun, ended), np.diff(edges))
        one = float(amounts.mean()) / self.seconds  # one more or one less, however even the rate
        return Rate(value, max(0.0, min(low, value - one)), max(high, value + one), n)


def _between(edges: Floats, amounts: Floats, begun: Floats, ended: Floats) -> Floats:
    """How much came between each two edges."""
    at_once = ended <= begun
    came = np.histogram(ended[at_once], edges, weights=amounts[at_once])[0]
    begun, ended, amounts = begun[~at_once], ended[~at_once], amounts[~at_once]
    if len(amounts):
        came = came + np.diff(np.interp(edges, *received(begun, ended, amounts)))
    between: Floats = np.maximum(came, 0.0)
    return between


def received(begun: Floats, ended: Floats, amounts: Floats) -> tuple[Floats, Floats]:
    """Times, and what had come by then of amounts that come evenly: a line whose slope changes where one begins or ends."""
    at = np.concatenate((begun, ended))
    slopes = np.concatenate((amounts / (ended - begun), -amounts / (ended - begun)))
    order = np.argsort(at, kind="stable")
    at, slope = at[order], np.cumsum(slopes[order])
    return at, np.concatenate(([0.0], np.cumsum(slope[:-1] * np.diff(at))))


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the steady stage; None without one, and where no answer began at a known time or had a known number of tokens."""

    offered_per_s: float | None = None
    accepted_per_s: float | None = None
    completed_per_s: float | None = None
    output_tokens_per_s: float | None = None
    requests: Work | None = field(default=None, metadata=FOR_FIGURES)
    tokens: Work | None = field(default=None, metadata=FOR_FIGURES)


def throughput(frames: Frames, stage: Steady) -> Throughput:
    """Measure the rates of a run whose chunks still have their arrivals."""
    if not stage.seconds:
        return Throughput()
    requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
    attempts = frames.attempts[frames.attempts["stage"] != schema.PREFLIGHT]
    began = attempts["headers_at_ns"].fillna(attempts["first_content_at_ns"])[attempts["status"] < 300]
    first = began.groupby(attempts["request_id"]).min().dropna()
    done = requests[(requests["ended"] == schema.OK) & stage.holds(requests["ended_at_ns"])]
    ended_s = done["ended_at_ns"].to_numpy(np.float64) / 1e9 - stage.from_s
    ids, tokens = done["request_id"].to_numpy(np.int64), _tokens(frames, attempts, stage)
    return Throughput(
        len(stage.requests) / stage.seconds,
        float(stage.holds(first).sum()) / stage.seconds if len(first) else None,
        len(done) / stage.seconds,
        float(tokens.amounts.sum()) / stage.seconds if tokens is not None else None,
        Work(stage.seconds, np.ones(len(done)), ended_s, ended_s, ids),
        tokens,
    )


def _tokens(frames: Frames, attempts: pd.DataFrame, stage: Steady) -> Work | None:
    """Output tokens that arrived in the stage: an attempt's tokens arrive evenly over its chunks.

    The usage of an attempt that did not end ok is not its last word: it counts the run's mean of tokens per chunk.
    """
    chunks = frames.chunks
    places = chunks.places(*(attempts[name].to_numpy(np.int64) for name in ("request_id", "leg", "attempt")))
    streamed, last = places >= 0, whole_at_ns(attempts)
    at_once = stage.holds(last)  # the result of a job, or an answer whose chunks were not kept
    inside = chunks.within(stage.from_s * 1e9, stage.to_s * 1e9)
    within = np.where(streamed, np.append(inside, 0)[places], at_once)
    sizes = np.where(streamed, np.append(chunks.sizes, 0)[places], 1.0)
    tokens = attempts["output_tokens"].where(attempts["ended"] == schema.OK).to_numpy(np.float64)
    if np.isnan(tokens).all():
        return None
    known = streamed & ~np.isnan(tokens)
    per_chunk = float(tokens[known].sum() / sizes[known].sum()) if known.any() else 0.0
    each: Floats = np.where(np.isnan(tokens), per_chunk * sizes * streamed, tokens)
    ends = (attempts["first_content_at_ns"].where(streamed, last), last)
    begun_s, ended_s = (
        (at.to_numpy(np.float64) / 1e9 - stage.from_s).clip(0.0, stage.seconds) for at in ends
    )
    ids = attempts["request_id"].to_numpy(np.int64)
    return Work(stage.seconds, each * within / sizes, begun_s, ended_s, ids)
