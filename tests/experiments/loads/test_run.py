"""What the first attempts of a request use of a limit, call by call."""

import numpy as np
import pandas as pd
import pytest

from tailgauge.experiments.loads.run import charges
from tailgauge.rows.schema import HEDGE, OK, POLL, PRIMARY, RATE_LIMITED, RETRY, TURNS
from tailgauge_analysis import INPUT, REQUESTS

JOB = [
    (1, 0, PRIMARY, OK, None),
    (1, 0, POLL, OK, None),
    (1, 0, POLL, OK, None),
    (1, 0, POLL, OK, 120),
]
REFUSED_JOB = [*JOB, (2, 0, PRIMARY, RATE_LIMITED, None)]
POLLS_REFUSED = [
    *JOB,
    (2, 0, PRIMARY, OK, None),
    (2, 0, POLL, RATE_LIMITED, None),
    (2, 0, POLL, OK, 80),
]
FAN_OUT = [(1, leg, PRIMARY, OK, 50 + leg) for leg in range(3)]
HEDGED = [(1, 0, PRIMARY, "cancelled", None), (1, 0, HEDGE, OK, 70), (2, 0, PRIMARY, OK, 90)]
RETRIED = [(1, 0, PRIMARY, RATE_LIMITED, None), (1, 0, RETRY, OK, 60), (2, 0, PRIMARY, OK, 60)]


@pytest.mark.parametrize(
    ("calls", "requests", "tokens"),
    [
        (JOB, [1], [120]),
        (REFUSED_JOB, [1, 1], [120, 120]),
        (POLLS_REFUSED, [4, 3], [480, 240]),
        (FAN_OUT, [3], [153]),
        (HEDGED, [2, 1], [140, 90]),
        (RETRIED, [1, 1], [60, 60]),
    ],
    ids=["job", "refused job", "polls are limited", "fan-out", "hedged", "retried"],
)
def test_a_job_uses_the_tokens_of_its_fetch_once_and_its_polls_nothing(calls, requests, tokens):
    rows = pd.DataFrame(calls, columns=["request_id", "leg", "cause", "ended", "input_tokens"])
    rows["request_id"] *= TURNS
    rows["sent_at_ns"] = np.arange(len(rows)) * 1e9
    rows["traffic"] = "chat"
    for name in ("cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens"):
        rows[name] = rows["input_tokens"] * 0
    rows["input_tokens"] = rows["input_tokens"].astype("float64")
    found = charges(rows)

    assert found.cached[REQUESTS].tolist() == requests
    assert found.cached[INPUT].tolist() == tokens
