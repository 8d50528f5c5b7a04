"""The law of time of an endpoint without an engine: when a call's tokens are made, and its chunks with them.

Rule: pure. Each call is served as if it were alone; stragglers stretch all of its delays by one factor.
"""

from __future__ import annotations

from bisect import bisect_right

from tailgauge.simulator import stragglers
from tailgauge.simulator.exchange import Exchange
from tailgauge.simulator.pieces import Answer


def made_ns(exchange: Exchange) -> list[int]:
    """When each chunk's worth of tokens is made; the truth's row learns the first delay."""
    settings, row = exchange.behaviours.settings, exchange.row
    law = settings.latency
    delays = law.delays_ns(exchange.key, max(1, law.chunks(exchange.ask.max_tokens)))
    factor = stragglers.factor(settings.stragglers, exchange.key, 0, row.received_at_ns)
    if factor != 1.0:
        delays = [round(delay * factor) for delay in delays]
    row.planned_ttft_ns = delays[0]
    return [row.received_at_ns + delay for delay in delays]


def chunks_ns(made: list[int], per_chunk: int, tokens: int, answer: Answer) -> list[int]:
    """When each chunk of an answer of `tokens` tokens may leave."""
    due: list[int] = []
    for i, at_ns in enumerate(made[:-1], 1):
        due += [at_ns] * (answer.ready(i * per_chunk) - len(due))
    return due + [made[-1]] * (answer.ready(tokens) - len(due))


def made_until(made: list[int], per_chunk: int, tokens: int, now_ns: int) -> int:
    """Tokens made by a time."""
    return min(bisect_right(made, now_ns) * per_chunk, tokens)
