"""The reason why a worker's part of a run failed: every cause once."""

import pytest

from tailgauge.scenario.model import Scenario
from tailgauge.worker.run_state import RunState

FULL = "a part could not be written: no space is left"
LOST = f"{FULL}; after a retry at the end: rows lost: 21"
NO_ANSWER = "an answer could not be written: permission denied"


@pytest.mark.parametrize(
    ("failed", "lost", "reason"),
    [
        (None, [LOST], LOST),
        (FULL, [LOST], LOST),
        (FULL, [NO_ANSWER], f"{FULL}; {NO_ANSWER}"),
        (FULL, [LOST, NO_ANSWER], f"{LOST}; {NO_ANSWER}"),
    ],
)
def test_a_cause_that_comes_again_is_named_once(tmp_path, failed, lost, reason):
    state = RunState(Scenario(name="any"), tmp_path, lambda *_: None)

    if failed:
        state.fail(failed)
    for text in lost:
        state.lose_rows(text)

    assert state.reason == reason
