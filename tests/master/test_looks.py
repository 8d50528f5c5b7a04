"""Looks at a run, one after the other: what is asked, what run.json says of them, and what happens without an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailgauge.master.looks import EVERY_S, WRITTEN_S, InterimLooks
from tailgauge.plan.looks import InterimLook
from tailgauge.rows.run_folder import RunFolder

PLAN = (
    InterimLook(100.0, 500, 0.9875),
    InterimLook(200.0, 1000, 0.9875),
    InterimLook(400.0, 2000, 0.975),
)
MISSING = {"known": False, "texts": []}
UNKNOWN, KNOWN = ({"known": known, "texts": ["ttft p95 ..."]} for known in (False, True))


class Answered(InterimLooks):
    """Gets these answers from its child."""

    def __init__(self, *answers: object) -> None:
        super().__init__(PLAN, RunFolder(Path("nowhere")))
        self.answers, self.asked = list(answers), list[dict[str, object]]()

    def _answer(self, message: str) -> str:
        self.asked.append(json.loads(message))
        return json.dumps(self.answers.pop(0)) if self.answers else ""


def test_a_look_is_repeated_until_its_rows_are_there() -> None:
    looks = Answered(MISSING, UNKNOWN)
    at_s = PLAN[0].until_s + WRITTEN_S

    assert not looks.is_due(at_s - 0.1)
    assert looks.is_due(at_s)
    assert looks.look(7) == []
    assert not looks.is_due(at_s + EVERY_S - 0.1)
    assert looks.is_due(at_s + EVERY_S)
    assert looks.look(7) == UNKNOWN["texts"]
    assert [one["precision"]["requests"] for one in looks.asked] == [500, 500]  # type: ignore[index]
    assert {one["start_at_ns"] for one in looks.asked} == {7}
    assert looks.next == PLAN[1]


@pytest.mark.parametrize(
    ("answers", "is_whole", "facts"),
    [
        ((), True, {"looks": 0, "confidence": 0.975}),
        ((UNKNOWN,), True, {"looks": 1, "confidence": 0.975}),
        (
            (UNKNOWN,),
            False,
            {"looks": 1, "confidence": 0.9875},
        ),  # by Ctrl-C: the level of the next look
        ((UNKNOWN, UNKNOWN), False, {"looks": 2, "confidence": 0.975}),
        (
            (UNKNOWN, KNOWN),
            False,
            {"looks": 2, "confidence": 0.9875, "until_s": 200.0, "requests": 1000},
        ),
    ],
)
def test_the_level_of_a_report_is_that_of_the_look_that_it_is(answers, is_whole, facts) -> None:
    looks = Answered(*answers)
    for _ in answers:
        looks.look(0)
    looks.stop(is_whole=is_whole)

    assert looks.facts == facts


def test_a_known_run_is_not_looked_at_again() -> None:
    looks = Answered(KNOWN)
    looks.look(0)

    assert (looks.is_known, looks.next, looks.is_due(1e6)) == (True, None, False)


def test_without_its_child_the_run_goes_on_to_its_end() -> None:
    looks = Answered()

    assert looks.look(0) == [
        "the run cannot be checked for an early stop: it goes on to its planned end"
    ]
    assert (looks.is_known, looks.next) == (False, None)
    assert InterimLooks((), RunFolder(Path("nowhere"))).facts == {}
