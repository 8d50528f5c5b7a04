"""How much of a closed loop's time the client took, against what was planted; and what the report says of it."""

import numpy as np
import pytest
from run_folders.run_data import edited_run

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.run import Run
from tailgauge_analysis.verdict.slow_users import clients_share

N = 1000
RATE_PER_S = 50.0
EVERY_TENTH = np.where(np.arange(N) % 10 == 0, 1000.0, 0.0)


def closed(write, delay_ms, users, **changes):
    loop = {"process": "closed", "closed": {"users": users, "think_s": 0.0}}
    folder = write(
        n=N, rate_per_s=RATE_PER_S, delay_ms=delay_ms, scenario={"arrival": loop}, **changes
    )
    with edited_run(folder) as run:
        run["arrival"] = "closed"
    return folder


def judged(folder):
    found = Run([folder])
    return found.verdict, {reason.check: reason for reason in found.reasons}


def planted_share(folder, users):
    """From the rows alone: what each user has waited for the client by the end of the stage, of all time until then."""
    stage = steady(load([folder]))
    until_ns = stage.to_s * 1e9
    late_ns = 0.0
    for row in stage.requests.itertuples():
        late_ns += max(0.0, min(row.first_sent_at_ns, until_ns) - row.scheduled_at_ns)
    return late_ns / (users * (until_ns - stage.requests["scheduled_at_ns"].min()))


@pytest.mark.slow
@pytest.mark.parametrize("users", [30, 100, 400])
@pytest.mark.parametrize("delay_ms", [0.5, 40.0, EVERY_TENTH])
def test_the_share_is_what_was_planted(write, users, delay_ms):
    """Some users always think for a while: the more there are, the less the client's part is of their time."""
    folder = closed(write, delay_ms, users)
    frames = load([folder])

    assert clients_share(frames, steady(frames)) == pytest.approx(
        planted_share(folder, users), abs=1e-3
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("delay_ms", "verdict"),
    [(1.0, VALID), (20.0, VALID), (50.0, DEGRADED), (300.0, INVALID), (EVERY_TENTH, INVALID)],
)
def test_users_who_wait_for_the_client_ask_for_less(write, delay_ms, verdict):
    folder = closed(write, delay_ms, users=30)
    part = planted_share(folder, 30)
    _, reasons = judged(folder)

    assert (part > 0.05, part > 0.10) == (verdict != VALID, verdict == INVALID)
    assert (reasons["slow_users"].verdict if "slow_users" in reasons else VALID) == verdict
    if verdict != VALID:
        assert "more requests" in reasons["slow_users"].text
        assert "did not move counts" not in "".join(reason.text for reason in reasons.values())


def test_an_open_load_has_no_users(write):
    assert "slow_users" not in judged(write(n=N, delay_ms=300.0))[1]


def test_a_user_who_opens_a_connection_waits_for_the_target(write):
    """Its time is the network's and the target's."""
    folder = closed(write, 80.0, users=30, pool_wait_ms=80.0)

    assert "slow_users" not in judged(folder)[1]
