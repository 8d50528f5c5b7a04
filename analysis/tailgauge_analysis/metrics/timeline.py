"""Counts and percentiles over the time of the whole run, warm-up and cool-down included; sections/over_time.py draws them.

Counts are by bin of the run clock; a bin is a second, or as many seconds as keep the page small. Requests belong to the bin in
which they were scheduled; in-flight is counted at the bin's end.

A percentile over time comes from windows of at least 3 / (1 - p) requests, of one length per run. Where no length gives
enough such windows, each request is a point, and the largest of a bin is called the maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge.thresholds import fewest_for
from tailgauge_analysis.metrics.answers import answered, first_token_of, whole_at_ns
from tailgauge_analysis.metrics.throughput import received
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.stats.quantiles import Floats, Ints, rank

WIDTHS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
MOST_BINS = 600
FEWEST_WINDOWS = 5  # of a percentile over time
FILLED = 0.8  # of the windows with a request must have enough of them
MOST_POINTS = 2000
QUANTILES = (0.5, 0.99)
# What users wait for, and its metric.
WAITS = {"TTFT": "ttft_sched", "Join": "join_sched", "Turnaround": "turnaround"}


@dataclass(frozen=True, slots=True)
class Windows:
    """A percentile over time, in ms; NaN for a window with fewer than `fewest` requests."""

    p: float
    width_s: int
    fewest: int
    at_s: Floats  # middle of the window
    values_ms: Floats


def width(seconds: float) -> int:
    """Bin width in seconds for a span."""
    for width_s in WIDTHS_S:
        if seconds / width_s <= MOST_BINS:
            return width_s
    return math.ceil(seconds / MOST_BINS)


class Timeline:
    """Bins of `width_s` seconds of a run; NaN where nothing was measured."""

    def __init__(self, frames: Frames) -> None:
        """Count the run in bins that are equally long: offered, ended and in flight, output tokens, waits.

        Rates are per second. A request is counted as offered, and its wait and outcome are shown, when it was scheduled.
        """
        requests = frames.requests[frames.requests["stage"] != schema.PREFLIGHT].drop_duplicates(
            "request_id"
        )
        requests = answered(requests, frames.attempts, first_token_of(frames))
        scheduled = requests["scheduled_at_ns"].to_numpy(np.float64) / 1e9
        ended = requests["ended_at_ns"].to_numpy(np.float64) / 1e9
        last_s = float(np.nanmax(np.concatenate(([0.0], scheduled, ended))))
        self.width_s = step = width(last_s)
        bins = int(last_s // step) + 1
        edges = np.arange(bins, dtype=np.float64) * step
        # Middle and end of each bin.
        self.at_s = edges + step / 2
        self.end_s = edges + step
        bin_numbers = _bin(scheduled, step, bins)
        ended_counts = np.bincount(_bin(ended[~np.isnan(ended)], step, bins), minlength=bins)
        started = requests["dispatched_at_ns"].dropna().to_numpy(np.float64) / 1e9
        begun = np.bincount(_bin(started, step, bins), minlength=bins)
        self.offered_per_s = np.bincount(bin_numbers, minlength=bins) / step
        self.ended_per_s = ended_counts / step
        # Output tokens of answers, evenly from the first to the last content of each.
        self.tokens_per_s = _tokens(frames.attempts, self.end_s) / step
        self.in_flight = np.cumsum(begun - ended_counts).astype(np.float64)
        # Its name, and how long each request waited: for its first content, else its join, else its turnaround. The attributes
        # named after the TTFT have whichever it is. Requests that were read slowly on purpose have none here.
        self.wait, waited = _waits(requests[~requests["slow_reader"]])
        ttft = np.asarray(waited.reindex(requests.index) / 1e6, np.float64)
        is_known = ~np.isnan(ttft)
        # The percentiles for which the run is long enough: of the others `windows` returns None.
        percentiles = []
        for p in QUANTILES:
            series = windows(scheduled[is_known], ttft[is_known], p, step)
            if series is not None:
                percentiles.append(series)
        self.ttft = tuple(percentiles)
        self.ttft_max_ms = _quantile(bin_numbers[is_known], ttft[is_known], 1.0, bins)
        # One of so many answers is drawn as a point.
        self.points_every = max(1, -(-int(is_known.sum()) // MOST_POINTS))
        # TTFTs of single requests: when scheduled (s), and how long (ms).
        self.points = (
            scheduled[is_known][:: self.points_every],
            ttft[is_known][:: self.points_every],
        )
        classes = requests["ended"].to_numpy(dtype=object)
        self.classes_per_s: dict[str, Floats] = {}
        for name in pd.unique(classes):
            of_class = np.bincount(bin_numbers[classes == name], minlength=bins)
            self.classes_per_s[str(name)] = of_class / step

    def per_s(self, classes: Iterable[str]) -> Floats:
        """Return the rate of requests that ended in one of these classes, by the time at which they were scheduled."""
        total = np.zeros(len(self.at_s))
        for name in classes:
            total += self.classes_per_s.get(name, 0.0)
        return total


def _waits(requests: pd.DataFrame) -> tuple[str, pd.Series[float]]:
    """Return what users waited for, and how long."""
    is_done = (requests["answer"] == schema.TURNAROUND) & requests["ended"].isin(schema.COMPLETE)
    done_ns = requests["ended_at_ns"].where(is_done)
    ends = dict(
        zip(WAITS, (requests["first_at_ns"], requests["joined_at_ns"], done_ns), strict=True)
    )
    scheduled_ns = requests["scheduled_at_ns"]
    for name, ends_ns in ends.items():
        if ends_ns.notna().any():
            return name, ends_ns - scheduled_ns
    return "TTFT", ends["TTFT"] - scheduled_ns


def windows(at_s: Floats, values: Floats, p: float, shortest_s: int = 1) -> Windows | None:
    """Return the p-quantile in the shortest windows of which most have enough values; None if there are too few such windows."""
    fewest = fewest_for(p)
    for width_s in WIDTHS_S:
        if width_s < shortest_s:
            continue
        count = int(at_s.max(initial=0.0) // width_s) + 1
        number = _bin(at_s, width_s, count)
        counts = np.bincount(number, minlength=count)
        enough = counts >= fewest
        if enough.sum() >= max(FEWEST_WINDOWS, FILLED * (counts > 0).sum()):
            middle = (np.arange(count, dtype=np.float64) + 0.5) * width_s
            values_ms = np.where(enough, _quantile(number, values, p, count), np.nan)
            return Windows(p, width_s, fewest, middle, values_ms)
    return None


def _tokens(attempts: pd.DataFrame, ends_s: Floats) -> Floats:
    """Output tokens in each bin."""
    answers = attempts[
        attempts["ended"].isin(schema.COMPLETE) & (attempts["stage"] != schema.PREFLIGHT)
    ]
    answers = answers[answers["output_tokens"].notna()]
    last_s = whole_at_ns(answers).to_numpy(np.float64) / 1e9
    first_s = np.fmin(answers["first_content_at_ns"].to_numpy(np.float64) / 1e9, last_s)
    if not len(answers):
        return np.zeros(len(ends_s))
    line = received(
        first_s, np.maximum(last_s, first_s + 1e-3), answers["output_tokens"].to_numpy(np.float64)
    )
    return np.diff(np.interp(ends_s, *line), prepend=0.0)


def _bin(at_s: Floats, step: int, bins: int) -> Ints:
    return np.clip(at_s // step, 0, bins - 1).astype(np.int64)


def _quantile(bin_numbers: Ints, values: Floats, p: float, bins: int) -> Floats:
    """inverted_cdf quantile of each bin; NaN of an empty one."""
    order = np.lexsort((values, bin_numbers))
    counts = np.bincount(bin_numbers, minlength=bins)
    starts = np.cumsum(counts) - counts
    picks = np.full(bins, -1)
    for number in np.flatnonzero(counts):
        picks[number] = starts[number] + rank(int(counts[number]), p) - 1
    quantiles: Floats = np.append(values[order], np.nan)[picks]
    return quantiles
