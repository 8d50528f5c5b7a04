"""A stream that is cut, by its user or by the target, and resumed."""

import pytest
from patterns.scripted_calls import MS, Outcome, World, answers, asked, fails

from tailgauge.patterns.events import Cancel
from tailgauge.patterns.table import PATTERNS, Traffic


def run(table, *connections, **request):
    """The only request of a run; a connection is its outcome and the ids that come over it."""
    traffic = Traffic.model_validate(
        {"pattern": "resume", "resume": table, **request.pop("more", {})}
    )
    rest, asked_for = iter(connections), []

    def outcome(_request, send, _attempt, _now):
        found, ids = next(rest)
        asked_for.append(send.call.event_ids.last_id)
        send.call.event_ids.connect()
        for one in ids:
            send.call.event_ids.receive(one, has_content=True)
        return found

    (played,) = World(outcome).run(PATTERNS["resume"](traffic), [asked(**request)])
    played.asked_for = asked_for
    return played


def cut(at_ms=20.0):
    return Outcome(round(10 * MS), round(at_ms * MS), "truncated")


CUT_BY_USER = {"after_chunks": 4}
WATCHED = Outcome(10 * MS, 900 * MS, chunks_ns=30 * MS)


def test_a_stream_that_is_not_cut_is_one_call():
    played = run({}, (answers(10, 50), ["a-0"]))

    assert (played.done.ended, played.done.winner, played.causes) == ("ok", 0, ["primary"])


def test_a_cut_of_the_target_is_followed_by_a_call_for_what_is_missing():
    played = run({}, (cut(), ["a-0", "a-1"]), (answers(5, 40), ["a-2"]))

    assert (played.done.ended, played.done.winner, played.causes) == (
        "ok",
        1,
        ["primary", "resume"],
    )
    assert played.asked_for == ["", "a-1"]
    assert [send.of_attempt for send in played.sends] == [None, 0]
    assert played.done_at_ns == 60 * MS


def test_a_user_cuts_and_comes_back_after_the_wait():
    table = CUT_BY_USER | {"wait_s": 0.5}
    played = run(table, (WATCHED, ["a-0"]), (answers(5, 40), ["a-1"]))

    assert played.cancels == [Cancel(0, 0)]
    assert played.sent_at_ns == [0, 530 * MS]
    assert 1 <= played.sends[0].call.watch_chunks <= 4
    assert played.sends[1].call.watch_chunks == 0  # one cut of its user


def test_a_user_cuts_after_a_time():
    played = run(
        {"after_s": 0.4, "cuts": 2}, *[(answers(500, 900), [])] * 2, (answers(5, 40), ["a-0"])
    )

    assert played.causes == ["primary", "resume", "resume"]
    assert played.asked_for == ["", "", ""]  # nothing had come
    assert played.done.ended == "ok"


def test_a_share_of_the_streams_is_cut():
    assert run(CUT_BY_USER | {"share": 0.3}, (WATCHED, ["a-0"]), draw=0.4).causes == ["primary"]


def test_cuts_are_drawn_anew_for_each_connection_and_the_same_in_each_run():
    table, connections = (
        {"after_chunks": 1000, "cuts": 3},
        [(WATCHED, [])] * 3 + [(answers(5, 40), ["a-0"])],
    )

    first, again = (run(table, *connections) for _ in range(2))
    drawn = [send.call.watch_chunks for send in first.sends]
    assert len(set(drawn)) == 4
    assert drawn == [send.call.watch_chunks for send in again.sends]


def test_it_is_given_up_after_so_many_reconnections():
    played = run({"reconnections": 2}, *[(cut(), [])] * 3)

    assert (played.done.ended, played.causes) == ("truncated", ["primary", "resume", "resume"])


def test_a_stream_that_was_found_damaged_is_not_resumed_again():
    played = run({}, (cut(), ["a-0", "a-1"]), (cut(), ["a-0"]), (answers(5), []))

    assert (played.done.ended, len(played.causes)) == ("truncated", 2)


@pytest.mark.parametrize("ended", ["stream_error", "timeout", "client_error", "censored"])
def test_what_is_no_cut_is_not_resumed(ended):
    played = run({}, (Outcome(10 * MS, 20 * MS, ended), ["a-0"]))

    assert (played.done.ended, played.causes) == (ended, ["primary"])


def test_a_reconnection_that_is_refused_is_retried_by_the_policy():
    retry = {"retry": {"policy": "polite", "base_s": 0.01}}
    played = run(
        {}, (cut(), ["a-0"]), (fails("overloaded", 5), []), (answers(5, 40), ["a-1"]), more=retry
    )

    assert played.causes == ["primary", "resume", "retry"]
    assert played.asked_for == ["", "a-0", "a-0"]
    assert played.done.ended == "ok"


@pytest.mark.parametrize("key", ["hedge", "session", "cancel", "fallback"])
def test_what_has_no_meaning_with_it_is_refused(key):
    tables = {
        "hedge": {"policy": "fixed"}, "session": {"turns_mean": 3.0}, "cancel": {"share": 0.5, "after_s": 1.0},
        "fallback": {"after_s": 1.0},
    }  # fmt: skip
    with pytest.raises(ValueError, match="does not apply with pattern = 'resume'"):
        Traffic.model_validate({"pattern": "resume", key: tables[key]})
