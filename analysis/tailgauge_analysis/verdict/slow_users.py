"""How much of the time of a closed loop's users the client took.

A user who waits for the client, not for the target, sends his next request later, and the target is asked for less: what
looks like the target's throughput is in part the client's.
"""

from __future__ import annotations

from tailgauge_analysis.metrics.slots import users
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.metrics.waiting import late_ns
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import share

NAMED = 0.01  # of the time; less is no news


def clients_share(frames: Frames, stage: Steady) -> float | None:
    """Return the share of the users' time in which a request was due and not sent, without the opening of connections.

    None where no users of a closed loop sent any.
    """
    count = users(frames)
    if count is None:
        return None
    requests = stage.requests
    late = late_ns(frames, requests)
    if late.isna().all():
        return None
    scheduled_ns = requests["scheduled_at_ns"]
    # A run with a number of requests may end before its stage does.
    until_ns = min(stage.to_s * 1e9, requests["over_at_ns"].max())
    time_ns = count * (until_ns - scheduled_ns.min())
    waited_ns = late.clip(upper=(until_ns - scheduled_ns).clip(lower=0.0))
    if not time_ns > 0:
        return 0.0
    return float(waited_ns.sum() / time_ns)


def effect(part: float) -> str:
    """Say what such a share of the time means for the load."""
    return (
        f"The users waited {share(part)} of their time for the client, not for the target: without that wait the target would"
        f" have got about {share(part / (1 - part))} more requests."
    )
