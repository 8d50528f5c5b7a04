"""Random numbers of one call.

A draw depends on the seed, the call's key and its purpose, never on the order in which calls come: taking one
call out leaves the others as they were, and a copy with another key draws anew.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from statistics import NormalDist

import numpy as np

from tailgauge.simulator.engine.config import EngineConfig
from tailgauge.simulator.engine.job import Call, Ints

_NORMAL = NormalDist()
_ones: Ints = np.ones(4096, np.int64)
_ones.setflags(write=False)


def uniform(seed: int, key: object, purpose: str) -> float:
    """A number in (0, 1)."""
    return ((_digest(seed, key, purpose) >> 12) + 0.5) / 2**52


def lognormal(median: float, sigma: float, seed: int, key: object, purpose: str) -> float:
    """A lognormal number; the median itself where sigma is 0."""
    if not sigma:
        return median
    return median * math.exp(sigma * _NORMAL.inv_cdf(uniform(seed, key, purpose)))


def counts(config: EngineConfig, tokens: int, slowdown: float, seed: int, key: object) -> Ints:
    """Tokens of each step of a call, the prefill's first; their sum is `tokens`, the last step may be short.

    Under a slowdown S token group i comes S*i steps after the first: the steps between carry none.
    """
    drawn = _cut(_accepted(config, tokens, seed, key), tokens) if config.drafts else _all_ones(tokens)
    if slowdown == 1.0:
        return drawn
    steps = np.ceil(np.arange(len(drawn)) * slowdown - 1e-9).astype(np.int64)
    spread = np.zeros(int(steps[-1]) + 1, np.int64)
    np.add.at(spread, steps, drawn)
    return spread


def draw(call: Call, config: EngineConfig, seed: int) -> None:
    """Give a call the steps of its answer."""
    call.counts = counts(config, call.job.output_tokens, call.slowdown, seed, call.job.key)
    call.plain = not config.drafts and call.slowdown == 1.0


def _accepted(config: EngineConfig, tokens: int, seed: int, key: object) -> Ints:
    if config.draft_distribution == "fixed":
        return np.full(tokens, 1 + config.draft_tokens, np.int64)
    rng = np.random.Generator(np.random.Philox(key=_digest(seed, key, "drafts")))
    if config.draft_distribution == "binomial":
        accepted = rng.binomial(config.draft_tokens, config.draft_accept, tokens)
    else:
        refused_at = rng.geometric(1.0 - config.draft_accept, tokens) if config.draft_accept < 1 else None
        accepted = np.full(tokens, config.draft_tokens) if refused_at is None else refused_at - 1
    emitted: Ints = 1 + np.minimum(accepted, config.draft_tokens).astype(np.int64)
    emitted[0] = 1
    return emitted


def _cut(emitted: Ints, tokens: int) -> Ints:
    reached = np.cumsum(emitted)
    steps = int(np.searchsorted(reached, tokens)) + 1
    emitted = emitted[:steps]
    emitted[-1] -= reached[steps - 1] - tokens
    return emitted


def _all_ones(tokens: int) -> Ints:
    # One array that all calls look into: no memory and no time a call.
    global _ones  # noqa: PLW0603 - a cache that only grows
    if tokens > len(_ones):
        _ones = np.ones(2 * tokens, np.int64)
        _ones.setflags(write=False)
    return _ones[:tokens]


def _digest(seed: int, key: object, purpose: str) -> int:
    # Python's own hash() is salted per process; this one is the same everywhere.
    digest = blake2b(f"{seed}/{purpose}/{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little")
