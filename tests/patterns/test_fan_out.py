"""Fan-out: legs, joins, partial answers and places."""

from contextlib import nullcontext

import pytest
from patterns.scripted_calls import MS, Outcome, S, World, answers, asked, fails

from tailgauge.patterns.events import (
    Cancel,
    Done,
    Ended,
    FirstContent,
    Give,
    Queued,
    Sent,
    Take,
    Taken,
    Wait,
)
from tailgauge.patterns.fan_out import GATE, FanOut, gated
from tailgauge.patterns.legs import Legs
from tailgauge.patterns.table import Traffic


def table(retry="none", hedge=None, **values):
    tree = {"pattern": "fan_out", "fan_out": values, "retry": {"policy": retry}}
    return Traffic.model_validate({**tree, **({"hedge": hedge} if hedge else {})})


def one(traffic, *outcomes, attempts=()):
    """The only request of a run; `outcomes` by leg, `attempts` those of later attempts, in the order of sending."""
    more = iter(attempts)
    world = World(
        lambda _request, send, attempt, _now: next(more) if attempt else outcomes[send.leg]
    )
    (request,) = world.run(FanOut(traffic), [asked(legs=len(outcomes))])
    return request


def sent_at_ms(request):
    return [entry.at_ns // MS for entry in request.log if hasattr(entry.what, "call")]


class TestLegs:
    def test_each_leg_is_a_call_of_its_own_all_at_once(self):
        request = one(table(legs=4), *[answers(10 * leg + 10, 100) for leg in range(4)])

        assert [send.leg for send in request.sends] == [0, 1, 2, 3]
        assert len({send.call.prompt for send in request.sends}) == 4
        assert sent_at_ms(request) == [0, 0, 0, 0]

    def test_one_prompt_serves_all_legs(self):
        (request,) = World(lambda *_: answers(1)).run(FanOut(table(legs=3)), [asked(legs=1)])

        assert len(request.sends) == 3
        assert len({send.call.prompt for send in request.sends}) == 1

    def test_legs_of_different_kinds_have_sizes_of_their_own(self):
        kinds = [
            {"prompt_tokens": 9, "output_tokens": 7, "count": 2},
            {"prompt_tokens": 9, "output_tokens": 400},
        ]
        request = one(table(kinds=kinds), *[answers(1)] * 3)

        assert [send.call.max_tokens for send in request.sends] == [7, 7, 400]

    def test_in_sequence_each_begins_when_the_one_before_ended(self):
        request = one(
            table(legs=3, order="sequential"), answers(10, 100), answers(10, 200), answers(10, 300)
        )

        assert sent_at_ms(request) == [0, 100, 300]
        assert request.done == Done("ok", winner=0, joined_at_ns=600 * MS)

    def test_at_most_so_many_of_one_request(self):
        request = one(table(legs=5, at_once=2), *[answers(10, 100 * (leg + 1)) for leg in range(5)])

        assert sent_at_ms(request) == [0, 0, 100, 200, 400]

    def test_at_most_so_many_of_all_requests(self):
        world = World(lambda *_: answers(10, 100))
        requests = world.run(FanOut(table(legs=4, at_once_per_worker=3)), [asked(0), asked(1)])

        assert world.most_taken == {GATE: 3}
        assert world.taken == {GATE: 0}
        assert sorted(t for r in requests for t in sent_at_ms(r)) == [
            0,
            0,
            0,
            100,
            100,
            100,
            200,
            200,
        ]
        assert all(len(r.steps(Taken)) == len(r.steps(Give)) == 4 for r in requests)

    def test_what_is_closed_at_the_join_gives_its_place_back_at_once(self):
        def outcome(_request, send, _attempt, _now):
            return answers(10, 100) if send.leg == 0 else answers(5000)

        traffic = table(legs=3, join="first_k", k=1, at_once_per_worker=3)
        first, second = World(outcome).run(FanOut(traffic), [asked(0), asked(1)])

        assert len(first.steps(Taken)) == len(first.steps(Give)) == 3
        assert sent_at_ms(second) == [100, 100, 100]
        assert second.done.joined_at_ns == 200 * MS

    def test_a_place_that_comes_too_late_is_given_back(self):
        """A leg that was closed while it waited for its place, in a request that goes on."""
        legs = Legs()
        starting = legs.start(0, gated(iter(()), 1, 0))
        assert next(starting) == Take(GATE, 1, 0)
        with pytest.raises(StopIteration):
            starting.send(Queued(0, 0))
        assert list(legs.close(0)) == []
        waiting = legs.receive()
        assert next(waiting) == Wait()

        assert waiting.send(Taken(0, 5)) == Give(GATE)

    def test_who_waits_for_a_place_does_not_keep_other_legs_from_their_copies(self):
        hedge = {"policy": "fixed", "delay_ms": 50.0}
        request = one(
            table(legs=2, at_once_per_worker=1, hedge=hedge),
            answers(900), answers(10, 20), attempts=[answers(30, 40)],
        )  # fmt: skip

        assert request.causes == ["primary", "hedge", "primary"]
        assert sent_at_ms(request) == [0, 50, 90]


class TestJoin:
    def test_all(self):
        request = one(table(legs=3), answers(10, 100), answers(10, 300), answers(10, 200))

        assert request.done == Done("ok", winner=0, joined_at_ns=300 * MS)

    def test_ends_that_are_heard_in_the_wrong_order(self):
        """Two sockets readable at the same time are read in any order; the stamps are the kernel's."""
        pattern = FanOut(table(legs=2)).steps(asked(legs=2))
        next(pattern)
        pattern.send(Sent(0, 0, 0))
        assert isinstance(pattern.send(Sent(1, 0, 0)), Wait)
        for leg, content_ns, ended_ns in ((1, 10 * MS, 300 * MS), (0, 20 * MS, 200 * MS)):
            pattern.send(FirstContent(leg, 0, content_ns, 0))
            with pytest.raises(StopIteration) if leg == 0 else nullcontext() as stop:
                pattern.send(Ended(leg, 0, ended_ns, "ok", None))

        assert stop.value.value == Done("ok", winner=0, joined_at_ns=300 * MS)

    def test_the_first_k_and_the_others_are_closed(self):
        request = one(
            table(legs=4, join="first_k", k=2),
            answers(10, 400), answers(10, 100), answers(500), answers(10, 200),
        )  # fmt: skip

        assert request.done == Done("ok", winner=None, joined_at_ns=200 * MS)
        assert request.cancels == [Cancel(0, 0), Cancel(2, 0)]
        assert request.done_at_ns == 200 * MS

    def test_the_first_k_do_not_mind_others_that_fail(self):
        request = one(
            table(legs=3, join="first_k", k=2),
            fails("overloaded", 1),
            answers(10, 50),
            answers(10, 90),
        )

        assert request.done.ended == "ok"

    def test_the_first_k_in_sequence_need_no_more(self):
        request = one(
            table(legs=4, join="first_k", k=2, order="sequential"), *[answers(10, 100)] * 4
        )

        assert len(request.sends) == 2

    def test_what_is_there_at_the_deadline(self):
        request = one(
            table(legs=3, join="deadline", deadline_s=1.0),
            answers(10, 100), answers(10, 5000), answers(3000),
        )  # fmt: skip

        assert request.done == Done("ok", winner=0, joined_at_ns=S)
        assert request.cancels == [Cancel(1, 0), Cancel(2, 0)]

    def test_before_the_deadline_if_all_is_there(self):
        request = one(
            table(legs=2, join="deadline", deadline_s=1.0), answers(10, 100), answers(10, 200)
        )

        assert request.done.joined_at_ns == 200 * MS

    def test_nothing_there_at_the_deadline_is_a_timeout(self):
        request = one(
            table(legs=2, join="deadline", deadline_s=1.0), answers(2000), answers(10, 2000)
        )

        assert request.done == Done("timeout")
        assert request.done_at_ns == S

    def test_legs_that_had_no_turn_by_the_deadline_have_none(self):
        request = one(
            table(legs=9, join="deadline", deadline_s=1.0, order="sequential"),
            *[answers(10, 400)] * 9,
        )

        assert len(request.sends) == 3
        assert request.done == Done("ok", winner=0, joined_at_ns=S)


class TestFailures:
    @pytest.mark.parametrize("join", ["all", "deadline"])
    def test_a_leg_fails_the_request_at_once(self, join):
        request = one(
            table(legs=3, join=join), answers(10, 900), fails("server_error", 50), answers(10, 20)
        )

        assert request.done == Done("server_error")
        assert request.done_at_ns == 50 * MS
        assert request.cancels == [Cancel(0, 0)]

    @pytest.mark.parametrize("join", ["all", "deadline"])
    def test_or_the_answers_of_the_others_are_accepted(self, join):
        request = one(
            table(legs=3, join=join, partial="accept"),
            answers(10, 900), fails("server_error", 50), answers(10, 20),
        )  # fmt: skip

        assert request.done == Done("ok", winner=0, joined_at_ns=900 * MS)

    def test_unless_there_are_none(self):
        request = one(
            table(legs=2, partial="accept"), fails("overloaded", 10), fails("rate_limited", 50)
        )

        assert request.done == Done("rate_limited")

    @pytest.mark.parametrize(
        ("partial", "ended", "at_ms"), [("fail", "overloaded", 20), ("accept", "ok", 90)]
    )
    def test_too_few_are_left_for_the_first_k(self, partial, ended, at_ms):
        request = one(
            table(legs=3, join="first_k", k=2, partial=partial),
            fails("overloaded", 10), fails("overloaded", 20), answers(10, 90),
        )  # fmt: skip

        assert (request.done.ended, request.done_at_ns) == (ended, at_ms * MS)

    def test_a_leg_is_retried_by_itself(self):
        request = one(
            table(legs=2, retry="naive"),
            fails("overloaded", 10), answers(10, 50), attempts=[answers(10, 60)],
        )  # fmt: skip

        assert [(s.leg, s.cause) for s in request.sends] == [
            (0, "primary"),
            (1, "primary"),
            (0, "retry"),
        ]
        assert request.done == Done("ok", winner=1, joined_at_ns=170 * MS)

    def test_a_run_that_ends_leaves_no_answer(self):
        request = one(
            table(legs=2, partial="accept"), Outcome(None, 5 * MS, "censored"), answers(1, 2)
        )

        assert request.done == Done("censored", winner=None)

    def test_why_a_copy_was_held_is_reported(self):
        hedge = {"policy": "fixed", "delay_ms": 50.0, "budget_share": 0.0, "budget_burst": 1}
        request = one(
            table(legs=2, hedge=hedge), answers(100), answers(100), attempts=[answers(900)]
        )

        assert request.causes == ["primary", "primary", "hedge"]
        assert request.done.hedge_held == "budget"
