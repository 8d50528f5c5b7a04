"""How much of the time of a closed loop's users the client took.

A user who waits for the client, not for the target, sends his next request later, and the target is asked for less: what
looks like the target's throughput is in part the client's.
"""

from __future__ import annotations

import numpy as np

from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.slots import users
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.text.formatting import share

NAMED = 0.01  # of the time; less is no news
CONNECT = ["dns_ns", "connect_ns", "tls_ns"]


def clients_share(frames: Frames, stage: Steady) -> float | None:
    """Return the share of the users' time in which a request was due and not sent, without the opening of connections.

    None where no users of a closed loop sent any.
    """
    count = users(frames)
    requests = stage.requests
    if count is None or requests["first_sent_at_ns"].isna().all():
        return None
    first = stage.attempts[(stage.attempts["leg"] == 0) & (stage.attempts["attempt"] == 0)]
    connect_ns = first.drop_duplicates("request_id").set_index("request_id")[CONNECT].sum(axis=1)
    opening_ns = connect_ns.reindex(requests["request_id"]).fillna(0.0).to_numpy(np.float64)
    late_ns = BY_NAME["client_delay"].ns(stage) - opening_ns
    scheduled_ns = requests["scheduled_at_ns"].to_numpy(np.float64)
    until_ns = min(
        stage.to_s * 1e9, float(requests["over_at_ns"].max())
    )  # with a number of requests it ends before
    late_ns = np.clip(late_ns, 0.0, np.maximum(until_ns - scheduled_ns, 0.0))
    time_ns = count * (until_ns - scheduled_ns.min())
    return float(np.nansum(late_ns) / time_ns) if time_ns > 0 else 0.0


def effect(part: float) -> str:
    """Say what such a share of the time means for the load."""
    return (
        f"The users waited {share(part)} of their time for the client, not for the target: without that it would have got"
        f" about {share(part / (1 - part))} more requests."
    )
