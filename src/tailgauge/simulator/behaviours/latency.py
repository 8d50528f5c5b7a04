"""Times of an endpoint without an engine: when the tokens of a call are made, as if it were alone.

The draws of a call depend on the seed and its key only, and are made before the first chunk. The first draw is the time to
the first chunk and the others are the gaps in order: a longer answer never changes the times of earlier chunks.
"""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np

from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.behaviours.draws import digest

# About 146 years: sums of the largest lognormal draws stay inside int64.
_FAR_NS = 2.0**62


def delays_ns(table: Simulated, seed: int, key: str, chunks: int) -> list[int]:
    """Return the nanoseconds from the request's receipt to each of its chunks."""
    ttft_ns = table.ttft_ms * 1e6
    gaps = np.full(chunks, table.chunk_gap_ms * 1e6)  # ns; the first is the TTFT
    gaps[0] = ttft_ns
    if table.ttft_sigma or table.chunk_gap_sigma or table.ttft_exponential:
        generator = np.random.Generator(np.random.Philox(key=digest(16, seed, key)))
        normal = generator.standard_normal(chunks)
        first_draw = normal[0]
        normal[0] *= table.ttft_sigma
        normal[1:] *= table.chunk_gap_sigma
        gaps *= np.exp(normal)
        if table.ttft_exponential:
            # The upper tail probability of a standard normal draw is uniform; -log of that is exponential.
            gaps[0] = ttft_ns * -math.log(math.erfc(first_draw / math.sqrt(2)) / 2)
    delays: list[int] = np.minimum(np.cumsum(gaps), _FAR_NS).astype(np.int64).tolist()
    return delays


class TokenTimes:
    """When the tokens of one answer are made: `made_ns` has a time for each `per_chunk` of them.

    `factor` stretches all delays from `start_ns` on.
    """

    def __init__(
        self,
        table: Simulated,
        seed: int,
        key: str,
        tokens: int,
        *,
        start_ns: int,
        factor: float,
    ) -> None:
        self.per_chunk = table.tokens_per_chunk
        self.tokens = tokens
        delays = delays_ns(table, seed, key, max(1, -(-tokens // self.per_chunk)))
        if factor != 1.0:
            delays = [round(delay * factor) for delay in delays]
        self.first_delay_ns = delays[0]
        self.made_ns = [start_ns + delay for delay in delays]

    def tokens_made(self, now_ns: int) -> int:
        """Return how many tokens are made by a time."""
        return min(bisect_right(self.made_ns, now_ns) * self.per_chunk, self.tokens)


def draw_key(client_request_id: str, number: int) -> str:
    """Return the key of a call's draws: its client request id without the run, else its number.

    Without the run, two runs of one scenario meet the same endpoint; another seed gives another one.
    """
    _, slash, call = client_request_id.partition("/")
    if slash:
        return call
    return client_request_id or f"#{number}"
