"""How an answer was served, as it says itself: by which model, in which tier, and whether another model took over.

Sources: the types of the official SDKs (2026-11): `service_tier`, `speed` and `inference_geo` of a usage, the block `fallback`
and the entry `fallback_message` of `usage.iterations`; a gateway names the model behind its alias.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge.scenario.simulated import ServedTable
from tailgauge.simulator.behaviours.draws import draws


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAs:
    """How one answer was served; empty: it does not say."""

    model: str = ""
    service_tier: str = ""
    speed: str = ""
    inference_geo: str = ""
    fallback: str = ""  # the model that took over


NOTHING = ServedAs()


def draw_served(table: ServedTable, seed: int, call_key: str) -> ServedAs:
    """Draw how the answer to a call is served."""
    if table == ServedTable():
        return NOTHING
    has_fallback = draws(seed, "fallback", call_key).random() < table.fallback
    return ServedAs(
        model=table.model,
        service_tier=table.service_tier,
        speed=table.speed,
        inference_geo=table.inference_geo,
        fallback=table.fallback_model if has_fallback else "",
    )
