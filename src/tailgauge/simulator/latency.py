"""When the chunks of one call are due.

Rule: pure. A call's draws depend on nothing but the seed and the call's key, and are all drawn before the first chunk,
so that the sending loop only compares integers. The first draw is the time to the first chunk and the others are the
gaps, in order: asking for more output never changes the times of the chunks before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

# About 146 years: sums of the wildest lognormal draws stay inside int64.
_FAR_NS = 2.0**62


@dataclass(frozen=True, slots=True)
class Latency:
    """A constant where sigma is 0, else a lognormal with that median and that sigma of the logarithm.

    `ttft_exponential`: the time to the first chunk is exponential instead, with that mean.
    """

    ttft_ms: float
    ttft_sigma: float
    chunk_gap_ms: float
    chunk_gap_sigma: float
    tokens_per_chunk: int
    seed: int
    ttft_exponential: bool = False

    def chunks(self, tokens: int) -> int:
        """Chunks that carry `tokens` tokens; the last may carry fewer than `tokens_per_chunk`."""
        return -(-tokens // self.tokens_per_chunk)

    def delays_ns(self, key: str, chunks: int) -> list[int]:
        """Nanoseconds from the request's receipt to each of its chunks."""
        delays = np.full(chunks, self.chunk_gap_ms * 1e6)
        delays[0] = self.ttft_ms * 1e6
        if self.ttft_sigma or self.chunk_gap_sigma or self.ttft_exponential:
            normal = _generator(self.seed, key).standard_normal(chunks)
            # Of the first draw, what a standard normal leaves above itself is uniform.
            first = -math.log(math.erfc(normal[0] / math.sqrt(2)) / 2) if self.ttft_exponential else None
            normal[0] *= self.ttft_sigma
            normal[1:] *= self.chunk_gap_sigma
            delays *= np.exp(normal)
            if first is not None:
                delays[0] = self.ttft_ms * 1e6 * first
        due: list[int] = np.minimum(np.cumsum(delays), _FAR_NS).astype(np.int64).tolist()
        return due


def draw_key(client_request_id: str, number: int) -> str:
    """What a call's draws hang on: its client request id without the run, else its running number.

    The run is left out so that two runs of one scenario meet the same endpoint; another seed gives another one.
    """
    _, slash, call = client_request_id.partition("/")
    return call if slash else client_request_id or f"#{number}"


def _generator(seed: int, key: str) -> np.random.Generator:
    # Python's own hash() is salted per process; this one is the same everywhere.
    digest = blake2b(f"{seed}/{key}".encode("utf-8", "surrogateescape"), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))
