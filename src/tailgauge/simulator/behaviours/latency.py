"""Times of an endpoint without an engine: when the tokens of a call are made, as if it were alone.

A call's draws depend on the seed and its key only, and are drawn before the first chunk. The first draw is the time to
the first chunk and the others are the gaps, in order: a longer answer never changes the times of the chunks before.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.behaviours.draws import digest

# About 146 years: sums of the wildest lognormal draws stay inside int64.
_FAR_NS = 2.0**62


def delays_ns(table: Simulated, seed: int, key: str, chunks: int) -> list[int]:
    """Nanoseconds from the request's receipt to each of its chunks."""
    delays = np.full(chunks, table.chunk_gap_ms * 1e6)
    delays[0] = table.ttft_ms * 1e6
    if table.ttft_sigma or table.chunk_gap_sigma or table.ttft_exponential:
        generator = np.random.Generator(np.random.Philox(key=digest(16, seed, key)))
        normal = generator.standard_normal(chunks)
        # Of the first draw, what a standard normal leaves above itself is uniform.
        first = (
            -math.log(math.erfc(normal[0] / math.sqrt(2)) / 2) if table.ttft_exponential else None
        )
        normal[0] *= table.ttft_sigma
        normal[1:] *= table.chunk_gap_sigma
        delays *= np.exp(normal)
        if first is not None:
            delays[0] = table.ttft_ms * 1e6 * first
    due: list[int] = np.minimum(np.cumsum(delays), _FAR_NS).astype(np.int64).tolist()
    return due


class TokenTimes:
    """When the tokens of one answer are made: `made_ns` has a time for each `per_chunk` of them."""

    def __init__(
        self, table: Simulated, seed: int, key: str, tokens: int, start_ns: int, factor: float
    ) -> None:
        self.per_chunk = table.tokens_per_chunk
        self.tokens = tokens
        delays = delays_ns(table, seed, key, max(1, -(-tokens // self.per_chunk)))
        if factor != 1.0:
            delays = [round(delay * factor) for delay in delays]
        self.first_delay_ns = delays[0]
        self.made_ns = [start_ns + delay for delay in delays]

    def by(self, now_ns: int) -> int:
        """Tokens made by a time."""
        return min(bisect_right(self.made_ns, now_ns) * self.per_chunk, self.tokens)


def draw_key(client_request_id: str, number: int) -> str:
    """What a call's draws depend on: its client request id without the run, else its running number.

    The run is left out so that two runs of one scenario meet the same endpoint; another seed gives another one.
    """
    _, slash, call = client_request_id.partition("/")
    return call if slash else client_request_id or f"#{number}"
