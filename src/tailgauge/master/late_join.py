"""Whether a worker that comes in the middle of a run can take part in it.

Rule: pure; a reason, or none.
"""

from __future__ import annotations

from tailgauge.plan.spend_limit import Amount
from tailgauge.scenario.model import Scenario


def why_not(scenario: Scenario, limit: Amount, workers: int) -> str | None:
    """Why a late joiner waits for the next run; `workers`: how many have the plan already. None where it can join."""
    if not scenario.arrival.is_open:
        return "every user of the closed loop has its worker"
    if limit != Amount(None, None, None):
        return "the limits of the run were shared out at its start"
    if workers == 1 and any(traffic.cache for traffic in scenario.traffic.values()):
        return "the one worker that there was takes itself for the only writer of the prompt cache"
    return None
