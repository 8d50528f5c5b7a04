"""The streaming pattern: one call, a user who may lose patience, and what of the table reaches the call."""

import pytest
from patterns.scripted_calls import MS, Outcome, S, World, answers, asked, fails

from tailgauge.call import Call, Prompt
from tailgauge.patterns.events import (
    Cancel,
    Done,
    Due,
    Ended,
    FirstContent,
    Request,
    Send,
    Sent,
    Wait,
)
from tailgauge.patterns.streaming import Streaming
from tailgauge.patterns.table import PATTERNS, Traffic
from tailgauge.rows.schema import ENDED_CLASSES, PRIMARY, SERVED

REQUEST = Request(65536, 1000, (Prompt.of("some words"),), 50)
PLAIN = Streaming(Traffic()).steps


def one(traffic, *outcomes, draw=0.0):
    """The only request of a run in which the calls have these outcomes, in the order of sending."""
    rest = iter(outcomes)
    (request,) = World(lambda *_: next(rest)).run(Streaming(traffic), [asked(draw=draw)])
    assert next(rest, None) is None, "fewer calls than scripted"
    return request


class TestPlain:
    def test_it_sends_one_call_with_what_the_schedule_asked_for(self):
        assert next(PLAIN(REQUEST)) == Send(
            Call(Prompt.of("some words"), 50), leg=0, cause=PRIMARY, of_attempt=None
        )

    @pytest.mark.parametrize("ended", ENDED_CLASSES)
    def test_it_ends_as_its_call_does(self, ended):
        pattern = PLAIN(REQUEST)
        next(pattern)

        assert pattern.send(Sent(0, 0, 2000)) == Wait()
        with pytest.raises(StopIteration) as stop:
            pattern.send(Ended(0, 0, 3000, ended, None))
        assert stop.value.value == Done(ended, winner=0 if ended in SERVED else None)

    def test_what_breaks_off_after_content_is_still_what_the_user_got(self):
        request = one(Traffic(), answers(100, ended="truncated"))

        assert request.done == Done("truncated", winner=0)

    @pytest.mark.parametrize(("had_content", "winner"), [(True, 0), (False, None)])
    def test_the_end_says_whether_there_was_content_where_nobody_acts_on_it(
        self, had_content, winner
    ):
        pattern = PLAIN(REQUEST)
        next(pattern)
        pattern.send(Sent(0, 0, 2000))

        with pytest.raises(StopIteration) as stop:
            pattern.send(Ended(0, 0, 3000, "truncated", None, had_content=had_content))
        assert stop.value.value == Done("truncated", winner=winner)

    def test_it_waits_through_everything_that_is_not_the_end(self):
        pattern = PLAIN(REQUEST)
        next(pattern)

        for event in (Sent(0, 0, 1), FirstContent(0, 0, 3, 1), Due(4)):
            assert pattern.send(event) == Wait()

    def test_every_pattern_that_a_scenario_may_name_exists(self):
        assert set(PATTERNS) == set(Traffic.model_fields["pattern"].annotation.__args__)


class TestCall:
    @pytest.mark.parametrize(
        ("table", "fields"),
        [
            ({"stream": False}, {"stream": False}),
            ({"thinking": "adaptive"}, {"thinking": "adaptive", "thinking_tokens": 0}),
            (
                {"thinking": "enabled", "thinking_tokens": 20},
                {"thinking": "enabled", "thinking_tokens": 20},
            ),
            ({"tools": 3}, {"use_tool": True}),
            ({"model": "large"}, {"model": "large"}),
            ({"reader": {"bytes_per_s": 500.0}}, {"bytes_per_s": 500.0}),
            ({"session": {"turns_mean": 4.0}}, {"keep_text": True}),
            ({"session": {"turns_mean": 4.0, "grow": False}}, {"keep_text": False}),
        ],
    )
    def test_it_carries_what_the_table_says(self, table, fields):
        step = next(Streaming(Traffic.model_validate(table)).steps(REQUEST))

        assert {name: getattr(step.call, name) for name in fields} == fields

    def test_thinking_leaves_room_for_an_answer(self):
        table = {"thinking": "enabled", "thinking_tokens": 40_000, "output_tokens": 50_000}
        step = next(Streaming(Traffic.model_validate(table)).steps(REQUEST))

        assert step.call.thinking_tokens == 49  # the request at hand has 50 only

    def test_the_answer_is_handed_on_where_it_is_needed_again(self):
        kept = one(
            Traffic.model_validate({"session": {"turns_mean": 2.0}}), answers(1, text="so it was")
        )

        assert kept.done.text == "so it was"
        assert one(Traffic(), answers(1, text="so it was")).done.text is None


def fallback(after_s=1.0, **more):
    return Traffic.model_validate({"fallback": {"after_s": after_s, "model": "small"}, **more})


class TestFallback:
    def test_no_content_in_time_another_model_is_asked(self):
        request = one(fallback(), answers(3000), answers(200, 400))

        assert request.causes == ["primary", "fallback"]
        assert [(entry.at_ns, entry.what) for entry in request.steps(Cancel)] == [
            (S, Cancel(0, 0, "timeout"))
        ]
        assert (request.sends[1].call.model, request.sends[1].of_attempt) == ("small", 0)
        assert request.done == Done("ok", winner=1)
        assert request.done_at_ns == 1400 * MS

    def test_content_in_time_nothing_else_happens_however_long_it_takes(self):
        request = one(fallback(), answers(999, 60_000))

        assert request.causes == ["primary"]
        assert request.done == Done("ok", winner=0)

    @pytest.mark.parametrize(
        ("ended", "retried"),
        [(ended, ended not in {*SERVED, "cancelled", "client_error"}) for ended in ENDED_CLASSES],
    )
    def test_a_failure_before_content_does_the_same_but_a_wrong_request_does_not(
        self, ended, retried
    ):
        outcomes = [fails(ended, 10), answers(50)] if retried else [fails(ended, 10)]
        request = one(fallback(), *outcomes)

        assert request.causes == ["primary", "fallback"][: len(outcomes)]
        assert request.done.ended == ("ok" if retried else ended)
        assert request.cancels == []

    def test_a_failure_after_content_does_not(self):
        assert one(fallback(), answers(10, ended="stream_error")).causes == ["primary"]

    def test_retries_come_first_and_the_second_model_is_not_retried(self):
        table = fallback(60.0, retry={"policy": "naive", "max_retries": 1})
        request = one(table, *[fails("server_error", 5)] * 3)

        assert request.causes == ["primary", "retry", "fallback"]
        assert request.done == Done("server_error")

    def test_patience_counts_from_the_first_sending_retries_included(self):
        table = fallback(1.0, retry={"policy": "naive", "naive_wait_s": 0.6})
        request = one(table, fails("overloaded", 100), answers(5000), answers(10))

        assert request.causes == ["primary", "retry", "fallback"]
        assert request.steps(Cancel)[0].at_ns == S

    def test_a_call_to_be_sent_again_later_is_not_sent_once_another_was_asked(self):
        table = fallback(1.0, retry={"policy": "naive", "naive_wait_s": 20.0})
        request = one(table, fails("overloaded", 100), answers(10, 50_000))

        assert request.causes == ["primary", "fallback"]


def leaving(resubmit=False, **when):
    return Traffic.model_validate({"cancel": {"share": 0.5, "resubmit": resubmit, **when}})


class TestLeaving:
    def test_a_user_leaves_after_n_chunks(self):
        request = one(leaving(after_chunks=7), answers(100, 9000, chunks_ns=300 * MS), draw=0.49)

        assert request.sends[0].call.watch_chunks == 7
        assert request.steps(Cancel)[0].what == Cancel(0, 0, "cancelled")
        assert (request.done, request.done_at_ns) == (Done("cancelled", winner=0), 300 * MS)

    def test_or_after_t_seconds_though_nothing_has_come(self):
        request = one(leaving(after_s=2.0), answers(5000), draw=0.49)

        assert (request.done, request.done_at_ns) == (Done("cancelled"), 2 * S)

    def test_the_others_stay(self):
        request = one(
            leaving(after_chunks=7, after_s=2.0), answers(5000, 9000, chunks_ns=1), draw=0.5
        )

        assert request.sends[0].call.watch_chunks == 0
        assert request.done == Done("ok", winner=0)

    def test_who_got_the_whole_answer_before_does_not_leave(self):
        assert one(leaving(after_s=2.0), answers(100, 1900), draw=0.0).done == Done("ok", winner=0)

    def test_the_same_is_asked_again_and_read_to_its_end(self):
        table = leaving(resubmit=True, after_chunks=3, after_s=2.0)
        request = one(
            table,
            answers(100, 9000, chunks_ns=300 * MS),
            answers(100, 9000, chunks_ns=300 * MS),
            draw=0.0,
        )

        assert request.causes == ["primary", "resubmit"]
        assert request.sends[1].of_attempt == 0
        assert request.sends[1].call.prompt == request.sends[0].call.prompt
        assert request.done == Done("ok", winner=1)
        assert request.done_at_ns == 9300 * MS


def test_a_run_that_ends_is_not_answered_with_more_calls():
    table = fallback(1.0, retry={"policy": "naive"})

    assert one(table, Outcome(None, 5, "censored")).done == Done("censored")


@pytest.mark.parametrize(
    ("table", "acts"),
    [
        ({}, False),
        ({"hedge": {"policy": "fixed", "delay_ms": 5.0}}, True),
        ({"retry": {"policy": "naive"}}, True),
        ({"fallback": {"after_s": 1.0}}, True),
        ({"cancel": {"share": 0.5, "after_s": 1.0}}, True),
    ],
)
def test_a_call_that_is_only_read_to_its_end_acts_on_nothing(table, acts):
    assert Streaming(Traffic(**table)).acts is acts


def test_steps_of_a_plugin_may_act_on_anything():
    class Again(Streaming):
        def steps(self, request):
            return (yield from super().steps(request))

    assert Again(Traffic()).acts
