"""Traffic for the engine's tests, and how far a measured number may lie from the truth.

Rule: fixed seeds. Waiting times follow each other, so errors come from the means of 20 batches of consecutive calls.
"""

import numpy as np

from tailgauge.simulator import virtual
from tailgauge.simulator.engine.config import EngineConfig, FluidLaw
from tailgauge.simulator.virtual import Demands

BATCHES = 20


def poisson_ns(rate_per_s, n, seed):
    gaps = np.random.default_rng([seed, 1]).exponential(1e9 / rate_per_s, n)
    return np.rint(np.cumsum(gaps)).astype(np.int64)


def exponential_ms(mean_ms, n, seed):
    return np.random.default_rng([seed, 2]).exponential(mean_ms, n)


def alike(n, prompt_tokens, output_tokens, **more):
    return Demands(np.full(n, prompt_tokens), np.full(n, output_tokens), **more)


def sojourns_ms(rho, work_ms, seed, *, servers=1, slots=1, slowdown=0.0):
    """Times in system of Poisson customers at utilisation rho, the first tenth left out: the system began empty."""
    n = len(work_ms)
    config = EngineConfig(FluidLaw(slowdown), slots=slots)
    rate_per_s = rho * servers * 1e3 / float(np.mean(work_ms))
    rows = virtual.run(config, poisson_ns(rate_per_s, n, seed), Demands.of_work(work_ms), seed, chunks=False)
    return ((rows.column("ended_at_ns") - rows.column("sent_at_ns")) / 1e6)[n // 10 :]


def assert_is(truth, values, statistic, relative):
    """The statistic is the truth within `relative`, or within four standard errors where those are wider."""
    batches = [statistic(batch) for batch in np.array_split(np.asarray(values), BATCHES)]
    error = np.std(batches, ddof=1) / np.sqrt(BATCHES)
    measured = statistic(np.asarray(values))

    assert abs(measured - truth) <= max(relative * abs(truth), 4 * error), (measured, truth, error)


def p99(values):
    return np.quantile(values, 0.99, method="inverted_cdf")


def ttft_ms(rows):
    return (rows.column("first_content_at_ns") - rows.column("sent_at_ns")) / 1e6


def tpot_ms(rows):
    span = rows.column("last_content_at_ns") - rows.column("first_content_at_ns")
    return span / 1e6 / (rows.column("output_tokens") - 1)


def gaps_ms(rows, call=0):
    """Chunk gaps of one call."""
    times = rows.target.column("chunk_sent_at_ns")[call].values.to_numpy()
    return np.diff(times) / 1e6
