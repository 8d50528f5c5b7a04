"""Open attempts, counted live and again from the rows."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tailgauge_analysis.verdict.conservation import in_flight

S = 1e9


def seen(live, ended_s=(1.5, 3.5, None)):
    """Calls that began at 1, 2 and 3 s, and what the worker counted at the end of the seconds 1 to 5."""
    attempts = pd.DataFrame({
        "worker": 0, "dispatched_at_ns": [1 * S, 2 * S, 3 * S],
        "ended_at_ns": [None if end is None else end * S for end in ended_s],
    }).astype({"ended_at_ns": float})  # fmt: skip
    health = pd.DataFrame({
        "worker": 0, "at_ns": [0.8 * S, 1.8 * S, 2.8 * S, 3.8 * S, 4.8 * S], "in_flight": live, "receive_lag_max_ns": 0,
        "loop_lag_max_ns": 0, "read_wait_max_ns": np.nan,
    })  # fmt: skip
    return in_flight(SimpleNamespace(attempts=attempts, health=health, run={"workers": []}, rows={})).outside


@pytest.mark.parametrize(
    ("live", "outside"),
    [
        ((0, 0, 1, 1, 1), 0.0),
        ((0, 0, 1, 1, 0), 0.0),  # the last call was never stamped as ended: it may have been closed by then
        ((0, 0, 1, 0, 0), 0.0),
        ((0, 0, 1, 2, 1), 0.2),  # one more than the rows have
        ((0, 0, 0, 1, 1), 0.2),  # one less, and its end is known
    ],
)
def test_what_no_row_says_may_be_counted_either_way(live, outside):
    assert seen(live) == pytest.approx(outside)


@pytest.mark.parametrize("column", ["receive_lag_max_ns", "read_wait_max_ns"])
def test_what_waited_was_counted_as_open(column):
    """Answers that arrived within 1.5 s were read, or decoded, at 4.2 s: that second knows how long they had waited, those
    before cannot."""
    ended = np.linspace(1.0, 1.5, 20) * S
    attempts = pd.DataFrame({"worker": 0, "dispatched_at_ns": 0.5 * S, "ended_at_ns": ended})
    health = pd.DataFrame({
        "worker": 0, "at_ns": [1 * S, 2 * S, 3 * S, 4 * S, 5 * S], "in_flight": [20, 20, 20, 20, 0],
        "receive_lag_max_ns": 0, "loop_lag_max_ns": 0, "read_wait_max_ns": 0,
    })  # fmt: skip
    health[column] = [0, 0, 0, 0, 3.2 * S]
    frames = SimpleNamespace(attempts=attempts, health=health, run={"workers": []}, rows={})

    assert in_flight(frames).outside == 0
    health.loc[4, column] = 1.5 * S  # too short for what was counted at 2, 3 and 4 s
    assert in_flight(frames).outside == pytest.approx(20 * 3 / 5)


def test_a_worker_whose_rows_are_known_to_be_missing_teaches_nothing():
    """Its health rows arrived, those of its attempts did not: that is reported already."""
    health = pd.DataFrame({
        "worker": [0, 0, 1], "at_ns": [1 * S, 2 * S, 2 * S], "in_flight": [5, 5, 0], "receive_lag_max_ns": 0, "loop_lag_max_ns": 0,
        "read_wait_max_ns": 0,
    })  # fmt: skip
    attempts = pd.DataFrame({"worker": [1], "dispatched_at_ns": [0.5 * S], "ended_at_ns": [0.9 * S]})
    run = {"workers": [{"worker": 0, "rows": {"attempts": 9}}, {"worker": 1, "rows": {"attempts": 1}}]}
    rows = {("attempts", 0): 2, ("attempts", 1): 1}
    frames = SimpleNamespace(attempts=attempts, health=health, run=run, rows=rows)

    assert in_flight(frames) == in_flight(SimpleNamespace(**vars(frames) | {"health": health[2:]}))
    assert in_flight(SimpleNamespace(**vars(frames) | {"health": health[:2]})) is None
    assert in_flight(SimpleNamespace(**vars(frames) | {"rows": {**rows, ("attempts", 0): 9}})).outside > 1
