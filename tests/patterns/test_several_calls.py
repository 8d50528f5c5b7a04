"""Patterns of several calls that follow or accompany each other: structured, progressive, batch."""

import json

import pytest
from patterns.scripted_calls import MS, Outcome, S, World, answers, asked, fails

from tailgauge.call import ASSISTANT, JOB_CANCEL, JOB_FETCH, JOB_POLL, JOB_SUBMIT, USER
from tailgauge.patterns.events import Cancel, Done, Send
from tailgauge.patterns.job import LEAST_WAIT_S
from tailgauge.patterns.table import PATTERNS, Traffic


def run(tree, outcome, legs=1):
    """The only request of a run."""
    traffic = Traffic.model_validate(tree)
    (request,) = World(outcome).run(PATTERNS[traffic.pattern](traffic), [asked(legs=legs)])
    return request


def scripted(*outcomes):
    rest = iter(outcomes)
    return lambda *_: next(rest)


class TestStructured:
    def test_one_call_follows_a_schema_and_its_fields_are_watched(self):
        request = run({"pattern": "structured"}, scripted(answers(10)))
        (send,) = request.sends

        assert json.loads(send.call.schema)["type"] == "object"
        assert send.call.watch_field
        assert request.done == Done("ok", winner=0)

    def test_two_calls_prose_first_then_its_fields(self):
        tree = {"pattern": "structured", "structured": {"mode": "two_calls", "field_tokens": 33}}
        request = run(
            tree, scripted(answers(10, 100, text="The answer is 42."), answers(10, 50, text="{}"))
        )
        prose, fields = request.sends

        assert (prose.leg, prose.call.schema, prose.call.watch_field) == (0, None, False)
        assert (fields.leg, fields.call.max_tokens, fields.call.watch_field) == (1, 33, True)
        assert [message.role for message in fields.call.prompt.messages] == [USER, ASSISTANT, USER]
        assert fields.call.prompt.messages[0] == prose.call.prompt.messages[0]
        assert fields.call.prompt.messages[1].parts[0].text == "The answer is 42."
        assert request.done == Done("ok", winner=0, joined_at_ns=150 * MS, text="The answer is 42.")

    @pytest.mark.parametrize("ended", ["overloaded", "empty", "censored"])
    def test_without_prose_there_is_no_second_call(self, ended):
        tree = {"pattern": "structured", "structured": {"mode": "two_calls"}}
        request = run(tree, scripted(fails(ended, 10)))

        assert len(request.sends) == 1
        assert request.done.ended == ended

    def test_a_second_call_that_fails_fails_the_request(self):
        tree = {"pattern": "structured", "structured": {"mode": "two_calls"}}
        request = run(tree, scripted(answers(10, text="so"), fails("overloaded", 10)))

        assert (request.done.ended, request.done.joined_at_ns) == ("overloaded", None)


FAST = {"pattern": "progressive", "progressive": {"fast_model": "small", "fast_tokens": 9}}


class TestProgressive:
    def test_both_models_are_asked_at_once(self):
        request = run(FAST, scripted(answers(500, 900), answers(50, 100)))
        large, fast = request.sends

        assert (large.leg, large.call.model, large.call.max_tokens) == (0, None, 50)
        assert (fast.leg, fast.call.model, fast.call.max_tokens) == (1, "small", 9)
        assert large.call.prompt == fast.call.prompt
        assert request.done == Done("ok", winner=0, joined_at_ns=900 * MS)

    def test_a_fast_answer_that_fails_does_not_fail_the_request(self):
        request = run(FAST, scripted(answers(500, 900), fails("overloaded", 5)))

        assert request.done == Done("ok", winner=0)

    def test_a_fast_answer_that_is_slower_is_closed(self):
        request = run(FAST, scripted(answers(50, 100), answers(500, 900)))

        assert request.cancels == [Cancel(1, 0)]
        assert (request.done, request.done_at_ns) == (Done("ok", winner=0), 100 * MS)

    def test_without_the_large_answer_there_is_none(self):
        request = run(FAST, scripted(fails("server_error", 70), answers(50, 100)))

        assert (request.done, request.done_at_ns) == (Done("server_error"), 70 * MS)

    def test_the_fast_answer_may_be_another_target_s(self):
        tree = {"pattern": "progressive", "progressive": {"target": "second"}}
        request = run(tree, scripted(answers(1), answers(1)))

        assert [send.call.target for send in request.sends] == ["main", "second"]


def service(polls, results, *, instead=()):
    """A batch service whose batch has ended at poll `polls`; `instead` replace polls, by their number."""
    seen = {"polls": 0}

    def outcome(_request, send, _attempt, _now):
        call = send.call
        if call.kind == JOB_SUBMIT:
            return answers(5, 10, text=json.dumps({"id": "b1", "processing_status": "in_progress"}))
        assert call.job == "b1"
        if call.kind == JOB_FETCH:
            return answers(
                5, 10, text="\n".join(json.dumps({"result": result}) for result in results)
            )
        seen["polls"] += 1
        if seen["polls"] in dict(instead):
            return dict(instead)[seen["polls"]]
        status = "ended" if seen["polls"] >= polls else "in_progress"
        return answers(5, 10, text=json.dumps({"id": "b1", "processing_status": status}))

    return outcome


WENT_WELL = {"type": "succeeded", "message": {}}


def batches(**values):
    return {"pattern": "batch", "batch": {"requests": 3, "poll_s": 2.0, **values}}


class TestBatch:
    def test_submitted_polled_and_fetched(self):
        request = run(batches(), service(2, [WENT_WELL] * 3), legs=3)

        assert [send.call.kind for send in request.sends] == [
            JOB_SUBMIT, JOB_POLL, JOB_POLL, JOB_FETCH,
        ]  # fmt: skip
        assert request.causes == ["primary", "poll", "poll", "poll"]
        assert [send.of_attempt for send in request.sends] == [None, 0, 0, 0]
        assert len(set(request.sends[0].call.batch)) == 3
        assert request.done.ended == "ok"
        # Two seconds between the end of one call and the next poll.
        assert request.done_at_ns == 2 * 2 * S + 4 * 10 * MS

    def test_one_prompt_serves_all_calls_of_the_batch(self):
        assert len(run(batches(), service(1, [WENT_WELL] * 3)).sends[0].call.batch) == 3

    @pytest.mark.parametrize(
        ("result", "ended"),
        [
            ({"type": "expired"}, "timeout"),
            ({"type": "canceled"}, "cancelled"),
            (
                {"type": "errored", "error": {"type": "error", "error": {"type": "api_error"}}},
                "server_error",
            ),
            (
                {
                    "type": "errored",
                    "error": {"type": "error", "error": {"type": "invalid_request_error"}},
                },
                "client_error",
            ),
            ({"type": "unheard of"}, "client_error"),
            ({"type": ["expired"]}, "client_error"),
            ({"type": "errored", "error": "no object"}, "client_error"),
            ({"type": "errored", "error": {"error": [1], "type": ["x"]}}, "client_error"),
            ({"type": "errored", "error": {"error": {"type": {"x": 1}}}}, "client_error"),
            (["no object"], "client_error"),
            ("no object", "client_error"),
        ],
    )
    def test_a_result_that_is_none_fails_the_request(self, result, ended):
        assert run(batches(), service(1, [WENT_WELL, result, WENT_WELL])).done.ended == ended

    def test_no_results_are_no_success(self):
        assert run(batches(), service(1, [])).done.ended == "client_error"

    def test_it_is_given_up_at_its_deadline(self):
        request = run(batches(deadline_s=5.0), service(99, []))

        assert (request.done.ended, request.done_at_ns) == ("timeout", 5 * S)
        assert request.causes == ["primary", "poll", "poll"]

    @pytest.mark.parametrize("ended", ["overloaded", "connect_error", "rate_limited", "timeout"])
    def test_a_poll_that_fails_for_the_moment_is_followed_by_the_next(self, ended):
        request = run(batches(), service(2, [WENT_WELL], instead={1: fails(ended, 10)}.items()))

        assert request.causes == ["primary", "poll", "poll", "poll"]
        assert request.done.ended == "ok"

    @pytest.mark.parametrize("ended", ["client_error", "censored"])
    def test_a_poll_that_cannot_succeed_ends_it(self, ended):
        request = run(batches(), service(2, [WENT_WELL], instead={1: fails(ended, 10)}.items()))

        assert request.done.ended == ended

    def test_a_batch_that_is_not_taken_ends_as_its_call(self):
        assert run(batches(), scripted(fails("rate_limited", 10))).done.ended == "rate_limited"

    @pytest.mark.parametrize("text", ["", "[]", "not JSON", '{"id": 7}', None, '{"id": 7, "processing_status": "ended"}', "[" * 9000,
                                      json.dumps({"id": "x" * 201, "processing_status": "ended"})])  # fmt: skip
    def test_an_answer_that_is_not_the_protocol_is_an_error_of_the_client(self, text):
        request = run(batches(), scripted(Outcome(1, 2, text=text)))

        assert request.done.ended == "client_error"


def jobs(*, cancel=None, **values):
    return {
        "pattern": "job",
        "job": {"poll_s": 2.0, **values},
        **({"cancel": cancel} if cancel else {}),
    }


def queue(polls, ended="ok", *, instead=(), is_fetched=False):
    """A target whose job has ended at poll `polls`, as `ended`; `instead` replace polls, by their number."""
    seen = {"polls": 0}

    def outcome(_request, send, _attempt, _now):
        call = send.call
        if call.kind == JOB_SUBMIT:
            return answers(5, 10, text=json.dumps({"name": "/jobs/1"}))
        assert call.job == ("/jobs/1/result" if call.kind == JOB_FETCH else "/jobs/1")
        if call.kind != JOB_POLL:
            return answers(5, 10, text="")
        seen["polls"] += 1
        if seen["polls"] in dict(instead):
            return dict(instead)[seen["polls"]]
        state = {"ended": ended, "result": "/jobs/1/result"} if seen["polls"] >= polls else {}
        return answers(5, 10, text=json.dumps(state | {"is_fetched": is_fetched}))

    return outcome


class TestJob:
    def test_submitted_polled_and_fetched(self):
        request = run(jobs(), queue(2))

        assert [send.call.kind for send in request.sends] == [
            JOB_SUBMIT,
            JOB_POLL,
            JOB_POLL,
            JOB_FETCH,
        ]
        assert request.causes == ["primary", "poll", "poll", "poll"]
        assert (request.done.ended, request.done_at_ns) == ("ok", 2 * 2 * S + 4 * 10 * MS)

    def test_a_result_that_came_with_the_state_is_not_fetched(self):
        assert run(jobs(), queue(1, is_fetched=True)).causes == ["primary", "poll"]

    def test_the_time_between_polls_grows_to_its_most(self):
        request = run(jobs(backoff=2.0, poll_max_s=6.0), queue(5))

        polls = [entry.at_ns for entry in request.steps(Send) if entry.what.call.kind == JOB_POLL]
        waits = [b - a - 10 * MS for a, b in zip([0, *polls], polls, strict=False)]
        assert waits == [2 * S, 4 * S, 6 * S, 6 * S, 6 * S]

    @pytest.mark.parametrize("ended", ["timeout", "server_error", "cancelled", "client_error"])
    def test_a_job_that_did_not_succeed_ends_the_request_and_nothing_is_fetched(self, ended):
        request = run(jobs(), queue(1, ended))

        assert (request.done.ended, request.causes) == (ended, ["primary", "poll"])

    def test_the_targets_wait_goes_first_and_none_is_no_loop(self):
        waits = run(
            jobs(), queue(2, instead={1: fails("overloaded", 10, retry_after_s=7.0)}.items())
        )
        at_once = answers(5, 10, text="{}", retry_after_s=0.0)
        instead = dict.fromkeys(range(999), at_once).items()
        loop = run(jobs(poll_s=0.1, deadline_s=2.0), queue(999, instead=instead))

        sent = waits.sent_at_ns
        assert sent[2] - sent[1] == 7 * S + 10 * MS
        assert loop.causes.count("poll") <= 2.0 / LEAST_WAIT_S
        assert loop.done.ended == "timeout"

    def test_its_user_gives_up_and_the_job_is_cancelled(self):
        request = run(jobs(cancel={"share": 1.0, "after_s": 5.0}), queue(9))

        assert request.causes == ["primary", "poll", "poll", "cancel"]
        assert request.sends[-1].call.kind == JOB_CANCEL
        assert (request.done.ended, request.done_at_ns) == ("cancelled", 5 * S + 10 * MS)

    def test_a_user_who_would_give_up_later_gets_the_result(self):
        assert run(jobs(cancel={"share": 1.0, "after_s": 5.0}), queue(2)).done.ended == "ok"

    def test_a_job_is_cancelled_at_its_deadline(self):
        request = run(jobs(deadline_s=3.0), queue(9))

        assert (request.done.ended, request.causes) == ("timeout", ["primary", "poll", "cancel"])

    def test_a_cancellation_that_fails_changes_nothing(self):
        taken = queue(9)

        def outcome(request, send, attempt, now):
            if send.call.kind == JOB_CANCEL:
                return fails("client_error", 10)
            return taken(request, send, attempt, now)

        assert run(jobs(cancel={"share": 1.0, "after_s": 1.0}), outcome).done.ended == "cancelled"

    @pytest.mark.parametrize(
        "text", ["", "[]", None, "{}", '{"name": 7}', json.dumps({"name": "x" * 2001})]
    )
    def test_a_submission_that_names_no_job_is_an_error_of_the_client(self, text):
        assert run(jobs(), scripted(Outcome(1, 2, text=text))).done.ended == "client_error"

    @pytest.mark.parametrize(
        "cancel",
        [{"share": 0.5, "after_chunks": 3}, {"share": 0.5, "after_s": 1.0, "resubmit": True}],
    )
    def test_its_users_see_no_chunks_and_submit_once(self, cancel):
        with pytest.raises(ValueError, match='expected after_s alone, for pattern = "job"'):
            Traffic.model_validate(jobs(cancel=cancel))
