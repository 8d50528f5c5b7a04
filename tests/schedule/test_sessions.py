"""What follows a request: turns of a session, requests of a user in a closed loop."""

import math
import statistics

import pytest

from tailgauge.call import Prompt
from tailgauge.patterns.settings import Session
from tailgauge.patterns.table import Traffic
from tailgauge.rows.schema import ENDED_CLASSES, TURNS
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.sessions import (
    AFTER_DROP_S,
    Turn,
    conversation,
    draw,
    following,
    loop,
    requests_in,
)
from tailgauge.schedule.settings import Arrival, Closed

OPEN = Arrival()
CLOSED = Arrival(process="closed", closed=Closed(users=3, think_s=0.5))
TALK = Traffic(
    session=Session(turns_mean=3, think_s=2.0, think_sigma=0.0), prompt_tokens=30, output_tokens=9
)
S = 1_000_000_000


def first(turns=3, index=5, source=None):
    return Turn.first(Planned(index * TURNS, 7 * S, "main", 20, 10, turns, source))


def after(turn, ended="ok", ended_at=20 * S, arrival=OPEN, traffic=TALK):
    return following(turn, ended, ended_at, seed=1, arrival=arrival, traffic=traffic)


def test_a_later_turn_is_due_a_think_time_after_the_answer():
    second = after(first())

    assert (second.request_id, second.number, second.at_ns) == (5 * TURNS + 1, 1, 22 * S)
    assert after(second).request_id == 5 * TURNS + 2
    assert after(after(second)) is None, "three turns, and no fourth"


@pytest.mark.parametrize("ended", [*ENDED_CLASSES, "censored", "client_drop"])
def test_a_session_goes_on_after_an_answer_only(ended):
    assert (after(first(), ended) is not None) == (ended in {"ok", "empty", "cut"})


@pytest.mark.parametrize("ended", [*ENDED_CLASSES, "client_drop"])
def test_a_user_of_a_closed_loop_stays_whatever_came_of_the_request(ended):
    second = after(first(turns=0), ended, arrival=CLOSED)

    assert (second.request_id, second.at_ns) == (5 * TURNS + 1, 20.5 * S)


def test_a_user_who_was_turned_away_never_comes_back_at_once():
    hasty = Arrival(process="closed", closed=Closed(users=3, think_s=0.0))

    assert after(first(turns=0), "ok", arrival=hasty).at_ns == 20 * S
    assert after(first(turns=0), "client_drop", arrival=hasty).at_ns == (20 + AFTER_DROP_S) * S


def test_ids_of_a_closed_loop_never_meet():
    """After 65,536 turns a user goes on with the id of an arrival that nobody has."""
    users = [first(turns=0, index=user) for user in range(3)]
    ends = [Turn(0, user.request_id + TURNS - 1, user.planned, user.asked) for user in users]
    beyond = [after(end, arrival=CLOSED) for end in ends]

    assert [turn.request_id for turn in beyond] == [3 * TURNS, 4 * TURNS, 5 * TURNS]
    assert [turn.asked.request_id for turn in beyond] == [3 * TURNS, 4 * TURNS, 5 * TURNS]
    assert [turn.planned for turn in beyond] == [user.planned for user in users]


def test_think_times_are_lognormal_with_the_median_asked_for():
    arrival = Arrival(process="closed", closed=Closed(think_s=2.0, think_sigma=0.7))
    logs = []
    for index in range(4000):
        turn = after(first(turns=0, index=index), ended_at=0, arrival=arrival)
        logs.append(math.log(turn.at_ns / 2e9))

    assert abs(statistics.fmean(logs)) < 4 * 0.7 / 4000**0.5
    assert statistics.stdev(logs) == pytest.approx(0.7, rel=0.05)


def test_sizes_of_later_turns_are_drawn_anew_and_the_same_everywhere():
    wide = Traffic(prompt_tokens=100, prompt_sigma=1.0, output_tokens=50, output_sigma=1.0)
    seconds = [after(first(turns=0, index=i), arrival=CLOSED, traffic=wide) for i in range(50)]
    again = [after(first(turns=0, index=i), arrival=CLOSED, traffic=wide) for i in range(50)]

    assert len({turn.asked.prompt_tokens for turn in seconds}) > 25
    assert [turn.asked for turn in seconds] == [turn.asked for turn in again]
    assert (after(first()).asked.prompt_tokens, after(first()).asked.output_tokens) == (30, 9)


def test_a_line_of_a_prompt_file_goes_before_what_is_drawn():
    lines = {
        "prompt_tokens": 4,
        "name": "a",
        "later": [{"prompt_tokens": 6, "name": "b", "output_tokens": 2}],
    }
    second = after(first(source=lines))

    assert (
        second.asked.prompt_tokens,
        second.asked.output_tokens,
        second.asked.source["name"],
    ) == (
        6,
        2,
        "b",
    )


def test_the_conversation_so_far():
    turn = first()
    turn.prompts = (Prompt.of("Why?"),)
    second = Turn(
        0, 1, turn.planned, turn.asked, conversation(turn, "Because."), (Prompt.of("And?"),)
    )

    assert conversation(second, None) == (("Why?", "Because."), ("And?", ""))


def test_every_request_has_a_draw_of_its_own():
    draws = [draw(1, i * TURNS) for i in range(20_000)]

    assert min(draws) >= 0
    assert max(draws) < 1
    assert len(set(draws)) == 20_000
    assert statistics.fmean(draws) == pytest.approx(0.5, abs=4 * 0.2887 / 20_000**0.5)
    assert statistics.fmean(d * d for d in draws) == pytest.approx(1 / 3, abs=0.01)
    assert draw(2, 0) != draw(1, 0)


def test_a_slice_counts_every_turn_and_nothing_of_a_closed_loop():
    assert requests_in([first(3).planned, first(1).planned]) == 4
    assert requests_in([first(0).planned]) == 0


def test_a_run_says_how_its_requests_come_to_be():
    assert loop(OPEN, [Traffic()]) == "open"
    assert loop(OPEN, [Traffic(), TALK]) == "partly open"
    assert loop(CLOSED, [Traffic()]) == "closed"
