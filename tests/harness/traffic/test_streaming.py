"""The streaming pattern, driven by hand."""

from __future__ import annotations

import pytest

from tailgauge.records import ENDED_CLASSES, PRIMARY
from tailgauge.traffic_tables import Traffic
from tailgauge.traffic.patterns import PATTERNS
from tailgauge.traffic.steps import Ask, Call, Due, Ended, FirstContent, Headers, Send, Sent, Wait
from tailgauge.traffic.streaming import streaming

ASK = Ask(65536, 1000, "some words", 50)


def test_it_sends_one_call_with_what_the_schedule_asked_for():
    assert next(streaming(ASK)) == Send(Call("some words", 50), leg=0, cause=PRIMARY, of_attempt=None)


@pytest.mark.parametrize("ended", ENDED_CLASSES)
def test_it_ends_as_its_call_does(ended):
    pattern = streaming(ASK)
    next(pattern)

    assert pattern.send(Sent(0, 0, 2000)) == Wait()
    with pytest.raises(StopIteration) as stop:
        pattern.send(Ended(0, 0, 3000, ended, None))
    assert stop.value.value == ended


def test_it_waits_through_everything_that_is_not_the_end():
    pattern = streaming(ASK)
    next(pattern)

    for event in (Sent(0, 0, 1), Headers(0, 0, 2, 200), FirstContent(0, 0, 3), Due(4)):
        assert pattern.send(event) == Wait()


def test_two_requests_do_not_share_anything():
    first, second = streaming(ASK), streaming(ASK)
    next(first)
    first.send(Sent(0, 0, 1))

    assert isinstance(next(second), Send)


def test_every_pattern_that_a_scenario_may_name_exists():
    assert set(PATTERNS) == set(Traffic.model_fields["pattern"].annotation.__args__)
