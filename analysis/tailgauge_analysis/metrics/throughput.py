"""Throughput: what arrived, began and ended within the steady stage, each by its own time, over the stage's length.

A request of the warm-up that ends in the stage is work that the target did in it; a request of the stage that ends after
it is not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import Frames
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats


@dataclass(frozen=True, slots=True)
class Throughput:
    """Rates of the steady stage; None without one, and where no answer began at a known time or had a known number of tokens."""

    offered_per_s: float | None = None
    accepted_per_s: float | None = None
    completed_per_s: float | None = None
    output_tokens_per_s: float | None = None


def throughput(frames: Frames, stage: Steady) -> Throughput:
    """Measure the rates of a run whose chunks still have their arrivals."""
    if not stage.seconds:
        return Throughput()
    requests, attempts = (
        table[table["stage"] != schema.PREFLIGHT] for table in (frames.requests, frames.attempts)
    )
    requests = requests.drop_duplicates("request_id")
    completed = stage.holds(requests.loc[requests["ended"] == schema.OK, "ended_at_ns"])
    began = attempts["headers_at_ns"].fillna(attempts["first_content_at_ns"])[attempts["status"] < 300]
    first = began.groupby(attempts["request_id"]).min().dropna()
    tokens = _tokens(frames, attempts, stage)
    return Throughput(
        len(stage.requests) / stage.seconds,
        float(stage.holds(first).sum()) / stage.seconds if len(first) else None,
        float(completed.sum()) / stage.seconds,
        tokens / stage.seconds if tokens is not None else None,
    )


def _tokens(frames: Frames, attempts: pd.DataFrame, stage: Steady) -> float | None:
    """Output tokens that arrived in the stage: an attempt's tokens arrive evenly over its chunks.

    The usage of an attempt that did not end ok is not its last word: it counts the run's mean of tokens per chunk.
    """
    chunks = frames.chunks
    places = chunks.places(*(attempts[name].to_numpy(np.int64) for name in ("request_id", "leg", "attempt")))
    streamed = places >= 0
    within = np.zeros(len(attempts))
    within[streamed] = chunks.within(stage.from_s * 1e9, stage.to_s * 1e9)[places[streamed]]
    sizes = np.zeros(len(attempts))
    sizes[streamed] = chunks.sizes[places[streamed]]
    at_once = stage.holds(attempts["last_content_at_ns"])  # an answer whose chunks were not kept
    within, sizes = np.where(streamed, within, at_once), np.where(streamed, sizes, 1.0)
    tokens = attempts["output_tokens"].where(attempts["ended"] == schema.OK).to_numpy(np.float64)
    if np.isnan(tokens).all():
        return None
    known = streamed & ~np.isnan(tokens)
    per_chunk = float(tokens[known].sum() / sizes[known].sum()) if known.any() else 0.0
    each: Floats = np.where(np.isnan(tokens), per_chunk * sizes * streamed, tokens)
    return float((each * within / sizes).sum())
