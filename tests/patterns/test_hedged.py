"""A leg with a hedge: who wins, who is closed, and who goes without."""

import pytest
from patterns.scripted_calls import MS, S, World, answers, asked, fails

from tailgauge.patterns.events import Cancel, Done, Due, FirstContent, Send, Sent, Wait
from tailgauge.patterns.streaming import Streaming
from tailgauge.patterns.table import Traffic


def table(retry="none", **hedge):
    hedge = {"policy": "fixed", "delay_ms": 100.0, **hedge}
    return Traffic.model_validate({"pattern": "hedged", "hedge": hedge, "retry": {"policy": retry}})


def one(traffic, *outcomes):
    """The only request of a run in which the calls have these outcomes, in the order of sending."""
    rest = iter(outcomes)
    (request,) = World(lambda *_: next(rest)).run(Streaming(traffic), [asked()])
    assert next(rest, None) is None, "fewer calls than scripted"
    return request


class TestTheCopy:
    def test_content_before_the_delay_and_there_is_none(self):
        request = one(table(), answers(99, 5000))

        assert request.causes == ["primary"]
        assert request.done == Done("ok", winner=0)

    def test_the_copy_wins_and_the_first_is_closed_in_the_same_step(self):
        request = one(table(), answers(900), answers(50))
        kinds = [(entry.at_ns, entry.what) for entry in request.log]
        (at,) = [i for i, (_, what) in enumerate(kinds) if isinstance(what, FirstContent)]

        assert request.causes == ["primary", "hedge"]
        assert request.sends[1].of_attempt == 0
        assert kinds[at + 1] == (150 * MS, Cancel(0, 0, "cancelled"))
        assert request.done == Done("ok", winner=1)

    def test_the_first_wins_and_the_copy_is_closed(self):
        request = one(table(), answers(120), answers(50))

        assert request.cancels == [Cancel(0, 1, "cancelled")]
        assert request.done == Done("ok", winner=0)

    def test_headers_do_not_count_as_content(self):
        """The events of the scripted calls bring headers with the content; here they come alone, early."""
        pattern = Streaming(table()).steps(asked())
        assert isinstance(next(pattern), Send)
        assert pattern.send(Sent(0, 0, 0)) == Wait(100 * MS)
        assert pattern.send(Due(100 * MS)).cause == "hedge"

    def test_a_timer_that_fires_too_early_is_ignored(self):
        pattern = Streaming(table()).steps(asked())
        next(pattern)
        pattern.send(Sent(0, 0, 0))

        assert pattern.send(Due(100 * MS - 1)) == Wait(100 * MS)

    def test_at_once_both_leave_together(self):
        request = one(table(policy="immediate"), answers(80), answers(70))

        assert [entry.at_ns for entry in request.log if getattr(entry.what, "cause", None)] == [
            0,
            0,
        ]
        assert request.done == Done("ok", winner=1)

    def test_the_copy_goes_where_the_table_says(self):
        request = one(table(target="second"), answers(900), answers(50))

        assert [send.call.target for send in request.sends] == ["main", "second"]
        assert request.sends[0].call.prompt == request.sends[1].call.prompt

    def test_single_r_sends_some_of_them(self):
        world = World(lambda _request, _send, attempt, _now: answers(50 if attempt else 500))
        traffic = table(policy="single_r", probability=0.25, budget_share=1.0)
        requests = world.run(Streaming(traffic), [asked(i, i * S, seed=9) for i in range(2000)])
        hedged = [r.planned.request_id for r in requests if "hedge" in r.causes]

        assert len(hedged) / 2000 == pytest.approx(0.25, abs=0.04)
        again = World(lambda _request, _send, attempt, _now: answers(50 if attempt else 500)).run(
            Streaming(traffic), [asked(i, i * S, seed=9) for i in range(2000)]
        )
        assert hedged == [r.planned.request_id for r in again if "hedge" in r.causes]


class TestFailures:
    @pytest.mark.parametrize(
        "ended", ["rate_limited", "overloaded", "client_error", "connect_error", "timeout"]
    )
    def test_a_copy_that_fails_does_not_win_the_other_goes_on(self, ended):
        request = one(table(), answers(500), fails(ended, 20))

        assert request.cancels == []
        assert request.done == Done("ok", winner=0)

    @pytest.mark.parametrize("ended", ["rate_limited", "server_error", "stream_error"])
    def test_the_first_fails_after_the_copy_left_and_the_copy_goes_on(self, ended):
        assert one(table(retry="polite"), fails(ended, 150), answers(500)).done == Done(
            "ok", winner=1
        )

    def test_both_fail_and_the_last_failure_is_the_request_s(self):
        request = one(table(retry="polite"), fails("overloaded", 300), fails("server_error", 100))

        assert request.causes == ["primary", "hedge"]  # a hedged call is not retried
        assert request.done == Done("overloaded")

    def test_the_winner_breaks_off_and_that_is_how_it_ends(self):
        request = one(table(retry="polite"), answers(500), answers(50, ended="stream_error"))

        assert request.done == Done("stream_error", winner=1)

    def test_an_answer_without_content_is_an_answer(self):
        request = one(table(), answers(500), fails("empty", 20))

        assert request.done == Done("empty", winner=1)
        assert request.cancels == [Cancel(0, 0, "cancelled")]

    @pytest.mark.parametrize("ended", ["connect_error", "server_error"])
    def test_the_first_fails_for_no_good_reason_and_the_copy_leaves_at_once(self, ended):
        request = one(table(retry="polite"), fails(ended, 10), answers(50))

        assert request.causes == ["primary", "hedge"]
        assert request.done_at_ns == 160 * MS
        assert request.done == Done("ok", winner=1)

    def test_unless_the_target_says_that_it_has_no_use(self):
        request = one(table(retry="polite"), fails("server_error", 10, should_retry=False))

        assert request.causes == ["primary"]

    @pytest.mark.parametrize("ended", ["rate_limited", "overloaded"])
    def test_after_a_refusal_there_is_no_copy_only_the_retry_policy(self, ended):
        assert one(table(), fails(ended, 10)).causes == ["primary"]
        request = one(table(retry="naive"), fails(ended, 10, retry_after_s=30.0), answers(900))
        assert request.causes == ["primary", "retry"]

    def test_a_call_that_was_sent_again_gets_no_copy_however_late(self):
        request = one(table(retry="naive"), fails("overloaded", 10), answers(9000))

        assert request.causes == ["primary", "retry"]
        assert request.done == Done("ok", winner=1, hedge_held="retry")

    def test_a_run_that_ends_is_not_answered_with_a_copy(self):
        assert one(table(), fails("censored", 10)).causes == ["primary"]


class TestHeld:
    def test_the_budget_is_used_up(self):
        world = World(lambda *_: answers(500))
        traffic = table(budget_share=0.0, budget_burst=2)
        requests = world.run(Streaming(traffic), [asked(i, i * 10 * S) for i in range(5)])

        assert [r.done.hedge_held for r in requests] == [None, None, "budget", "budget", "budget"]

    def test_no_copy_while_the_target_wants_to_be_left_alone(self):
        def outcome(request, *_):
            return (
                fails("rate_limited", 10, retry_after_s=5.0)
                if request.request_id == 0
                else answers(500)
            )

        times = [0, S, 4 * S, 6 * S]
        requests = World(outcome).run(
            Streaming(table()), [asked(i, at) for i, at in enumerate(times)]
        )

        assert [r.done.hedge_held for r in requests] == [None, "pushback", "pushback", None]
        assert ["hedge" in r.causes for r in requests] == [False, False, False, True]

    def test_no_copy_while_much_fails(self):
        def outcome(request, *_):
            return fails("timeout", 10) if request.request_id < 5 else answers(500)

        requests = World(outcome).run(Streaming(table()), [asked(i, i * S) for i in range(6)])

        assert requests[-1].done.hedge_held == "throttle"

    def test_a_delay_that_had_not_come_is_not_held(self):
        assert (
            one(table(retry="naive"), fails("overloaded", 10), answers(50)).done.hedge_held is None
        )
