"""Web searches: a server tool that runs before the text of an answer, with an input of its own.

Its input and its results are no content of the answer. The text comes when the search is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge.scenario.simulated import SearchTable
from tailgauge.simulator.behaviours import tokens
from tailgauge.simulator.behaviours.draws import draws


@dataclass(frozen=True, slots=True)
class Search:
    """One search."""

    delay_ns: int
    query: tuple[str, ...]  # pieces of the tool's input, JSON together
    result_tokens: int


def draw_search(table: SearchTable, seed: int, call_key: str) -> Search | None:
    """Return the search of a call; None: it does not search."""
    if not table.share or draws(seed, "search", call_key).random() >= table.share:
        return None
    words = tokens.text(table.query_tokens).decode().split()
    query = ('{"query":"', *(f"{word} " for word in words), '"}')
    return Search(round(table.seconds * 1e9), query, table.result_tokens)
