"""How much of the time of a closed loop's users the client took.

A user who waits for the client, not for the target, sends his next request later, and the target is asked for less: what
looks like the target's throughput is in part the client's.
"""

from __future__ import annotations

import pandas as pd

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
    late_ns = pd.Series(BY_NAME["client_delay"].ns(stage), requests["request_id"]).dropna()
    if count is None or not len(late_ns):
        return None
    first = stage.attempts[(stage.attempts["leg"] == 0) & (stage.attempts["attempt"] == 0)]
    connect_ns = first.drop_duplicates("request_id").set_index("request_id")[CONNECT].sum(axis=1)
    late_ns -= connect_ns.reindex(late_ns.index).fillna(0.0).astype("float64")
    spent_ns = requests["over_at_ns"] - requests["scheduled_at_ns"]
    span_ns = requests["over_at_ns"].max() - requests["scheduled_at_ns"].min()
    time_ns = max(float(spent_ns.sum()), count * float(span_ns))  # the latter has their thinking, too
    return float(late_ns.clip(lower=0.0).sum()) / time_ns if time_ns > 0 else 0.0


def effect(part: float) -> str:
    """Say what such a share of the time means for the load."""
    return (
        f"The users waited {share(part)} of their time for the client, not for the target: without that it would have got"
        f" about {share(part / (1 - part))} more requests."
    )
