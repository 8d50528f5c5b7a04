"""Jobs: when they are polled, when nobody waits for them any more, and what ends them."""

from __future__ import annotations

import itertools
import json

from patterns.scripted_calls import MS, Outcome, S, World, asked, fails

from tailgauge.call import JOB_CANCEL, JOB_FETCH, JOB_POLL, JOB_SUBMIT
from tailgauge.patterns.events import Send
from tailgauge.patterns.job import LEAST_WAIT_S
from tailgauge.patterns.table import PATTERNS, Traffic


def state(ended: str | None = None, **more: object) -> Outcome:
    """An answer about the job `j`, 1 ms after it was asked for."""
    return Outcome(MS, MS, text=json.dumps({"name": "j", "ended": ended}), **more)


def run(table, *outcomes, repeats=False):
    traffic = Traffic.model_validate({"pattern": "job", "job": table})
    rest = iter(itertools.chain(outcomes, itertools.repeat(outcomes[-1])) if repeats else outcomes)
    (played,) = World(lambda *_: next(rest)).run(PATTERNS["job"](traffic), [asked()])
    return played


def kinds(played):
    return [send.call.kind for send in played.sends]


def test_it_is_polled_at_growing_intervals_then_fetched():
    table = {"poll_s": 1.0, "backoff": 2.0, "poll_max_s": 3.0}
    played = run(table, state(), state(), state(), state("ok"), state("ok"))

    assert kinds(played) == [JOB_SUBMIT, JOB_POLL, JOB_POLL, JOB_POLL, JOB_FETCH]
    sent = [entry.at_ns / MS for entry in played.steps(Send)]
    assert sent == [
        0,
        1001,
        3002,
        6003,
        6004,
    ]  # 1 s, 2 s and 3 s after the answer before, the result at once
    assert played.done.ended == "ok"


def test_the_targets_wait_goes_first_and_none_is_no_loop():
    waits = run({"poll_s": 1.0}, state(retry_after_s=7.0), state("ok"), state("ok"))
    loop = run({"poll_s": 1.0, "deadline_s": 2.0}, state(retry_after_s=0.0), repeats=True)

    assert [entry.at_ns for entry in waits.steps(Send)][1] == 7 * S + MS
    assert kinds(loop).count(JOB_POLL) <= 2.0 / LEAST_WAIT_S
    assert (kinds(loop)[-1], loop.done.ended) == (JOB_CANCEL, "timeout")


def test_a_lost_job_ends_it_and_a_poll_that_fails_for_the_moment_does_not():
    lost = run({}, state(), fails("client_error", 1))
    recovers = run({}, state(), fails("server_error", 1), state("ok"), state("ok"))

    assert (lost.done.ended, len(lost.sends)) == ("client_error", 2)
    assert (recovers.done.ended, len(recovers.sends)) == ("ok", 4)


def test_an_answer_that_names_no_job_is_the_targets_error():
    played = run({}, Outcome(MS, MS, text="{}"))

    assert (played.done.ended, len(played.sends)) == ("client_error", 1)
