"""Why requests did not complete, and the one action that follows: a rate is blamed only for what load can cause."""

import json
import re
import shlex

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder
from run_folders.run_data import edited_run

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.result import result as answer
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE, NO_ANSWER

OK = {"first": 100, "stop_reason": "stop", "output_tokens": 20}
EMPTY = {"ended": "empty", "stop_reason": "stop"}
INSIDE = {
    "ended": "client_error",
    "status": 200,
    "error_type": "invalid_request_error",
    "error_class": "client_error",
}
OVERLOAD_INSIDE = {
    "ended": "stream_error", "first": 100, "status": 200, "error_type": "overloaded", "error_class": "overloaded",
}  # fmt: skip
NO_JSON = {"ended": "stream_error", "first": 100, "status": 200, "error_type": "malformed_event"}
CUT_OFF = {"ended": "truncated", "first": 100, "status": 200, "error_type": "connection_closed"}
UNNAMED = {"ended": "aborted", "first": 100, "status": 200, "error_type": "no_finish_reason"}
UNKNOWN = {**UNNAMED, "error_type": "unknown_finish_reason", "stop_reason": "paused"}
TIMEOUT = {"ended": "timeout", "end": 5000.0}
GONE = {
    "ended": "connect_error",
    "error_type": "tcp",
    "error_body": "Connection refused",
    "end": 0.2,
}
RATE = r"\brate\b.*tailgauge run|headroom|curve|run longer"


def with_status(status, ended="client_error", message="", **more):
    body = json.dumps({"error": {"message": message}}) if message else None
    return {
        "ended": ended,
        "status": status,
        "error_type": "some_error",
        "error_body": body,
        **more,
    }


LIMIT = with_status(429, "rate_limited")
BUSY = with_status(529, "overloaded")
BROKEN = with_status(500, "server_error", "CUDA error")


@pytest.fixture
def result(folder_of):
    """Return the result of a run whose requests have these attempts, one every 100 ms."""
    return lambda *attempts, **changes: answer(Run([folder_of(*attempts, **changes)]))


def tries(failure, number):
    """Return so many attempts of a request, a second apart."""
    return [
        {**failure, "attempt": n, "cause": "retry" if n else "primary", "sent": 0.1 + n}
        for n in range(number)
    ]


def spread(failure, share, n=60, seed=1):
    """Return attempts of which this share fails, by chance."""
    is_bad = np.random.default_rng(seed).random(n) < share
    return [failure if bad else OK for bad in is_bad]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "experiment"),
    [
        (LIMIT, "headroom"),
        (BUSY, "curve"),
        (OVERLOAD_INSIDE, "curve"),
        (with_status(503, "overloaded"), "curve"),
    ],
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_rate_is_blamed_for_what_load_can_cause(result, attempt, experiment, seed):
    found = result(*spread(attempt, 0.4, seed=seed))

    assert found.outcome == FAIL
    line = shlex.split(found.advice.rpartition(": ")[2])
    sets = ["--set", f"experiment.kind={experiment}", "--set", "experiment.minutes=15"]
    bound = line[line.index("--max-requests") :] if experiment == "headroom" else []
    assert line == ["tailgauge", "run", "synthetic.toml", *sets, *bound]
    assert len(bound) == (2 if experiment == "headroom" else 0)


STOPPED = "43 s into the run: 24 of the last 53 requests completed (stop.min_completed 50%)"
UNREACHABLE = "9 s into the run: 20 connection errors in a row (stop.connect_errors 20)"


@pytest.mark.slow("attempt1", "attempt2")
@pytest.mark.parametrize("attempt", [LIMIT, BUSY, [LIMIT, {**LIMIT, "cause": "retry"}]])
def test_an_overload_that_a_stop_rule_ended_can_be_run_to_its_end(result, attempt):
    state = {"state": "stopped", "stopped": STOPPED}
    found = result(*[OK, attempt] * 30, record=state | {"overrides": ["stop.min_completed=0.8"]})

    *_, alternative = found.advice.splitlines()
    text, _, line = alternative.rpartition(": ")
    assert text == "or overload it on purpose, to the end of the run"
    assert shlex.split(line)[-1] == "stop.min_completed=0"
    assert "stop.min_completed=0.8" not in line


@pytest.mark.slow("attempt1", "attempt2", "attempt3")
@pytest.mark.parametrize(
    ("attempt", "stopped"),
    [(with_status(401), STOPPED), (BROKEN, STOPPED), (GONE, UNREACHABLE), (LIMIT, "")],
)
def test_a_target_that_fails_for_another_reason_is_not_to_be_loaded_further(
    result, attempt, stopped
):
    state = {"state": "stopped", "stopped": stopped} if stopped else {}
    found = result(*[OK, attempt] * 30, record=state)

    assert "stop." not in found.advice


def test_the_text_of_equal_rejections_stands_in_the_reason_of_the_stop_only(result):
    stopped = "4 s into the run: 20 equal rejections in a row (stop.rejections 20): target answered HTTP 401: bad"
    found = result(
        *[with_status(401, message="bad")] * 30, record={"state": "stopped", "stopped": stopped}
    )

    assert "api_key_env" in found.advice
    assert "bad" not in found.advice
    assert not any("bad" in detail for detail in found.details)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "pattern"),
    [
        (EMPTY, "look at the prompts and the model"),
        (with_status(401), "refuses the key.*api_key_env"),
        (with_status(403, message="no"), 'refuses the key .it says "no"'),
        (with_status(400, message="too long"), 'change what is sent.*"too long"'),
        (with_status(400, message="Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens'."),
         "refuses max_tokens: add --set target.max_tokens_field=max_completion_tokens"),
        (with_status(422, message="max_completion_tokens: extra inputs are not permitted"),
         "refuses max_completion_tokens: add --set target.max_tokens_field=max_tokens"),
        (INSIDE, "change what is sent"),
        (NO_JSON, "look at the endpoint or the gateway before it"),
        (CUT_OFF, "answers break off"),
        (with_status(404), "no such path.*target.url"),
        (with_status(404, message="The model `x` does not exist"), "does not have the model.*--model"),
        ({**with_status(307), "error_type": "redirect", "error_body": "https://b.example/v1"},
         "answers 307 with location https://b.example/v1: set target.url to it"),
        (with_status(307), "set target.url to the address that answers"),
        (BROKEN, 'target fails .500. .it says "CUDA error".: look at its log'),
        (with_status(502, "server_error"), "gateway"),
        (with_status(504, "server_error"), "gateway gives up.*raise its time limit"),
        (with_status(503, "overloaded", "Loading model"), "not ready"),
        (with_status(429, "rate_limited", "insufficient_quota"), "plan and billing"),
        (TIMEOUT, "gives no answer.*look at its log"),
        (GONE, "how many connections the target allows"),
    ],
)  # fmt: skip
def test_a_rate_is_not_blamed_for_anything_else(result, attempt, pattern):
    found = result(*spread(attempt, 0.4))

    assert found.outcome == FAIL
    assert re.search(pattern, found.advice), found.advice
    assert not re.search(RATE, found.advice)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "pattern"),
    [
        ([LIMIT], "every call got 429, even the first: a quota or the account"),
        ([with_status(401)], "key"),
        ([BROKEN], "look at its log"),
        ([NO_JSON], "look at the endpoint"),
        ([BUSY], "rejects every request as overloaded"),
        ([TIMEOUT], "nothing came within limits.attempt_deadline_s"),
    ],
)
def test_without_any_answer_the_advice_follows_the_failures_too(result, attempts, pattern):
    found = result(*attempts * 10)

    assert found.outcome == NO_ANSWER
    assert pattern in found.advice


def test_an_objective_on_errors_has_the_advice_of_the_failures(result):
    found = result(*[OK, with_status(400)] * 20, slo={"few": "error_rate < 10%"})

    assert found.advice.startswith("change what is sent")


def going(n, at, length_ms, answers=None):
    """Return attempts of a target that goes with the request `at`: what is open then is cut, what comes later is refused."""
    attempts = []
    for number in range(n):
        left_ms = 100.0 * (at - number)
        chunks = int(max(0.0, min(left_ms, length_ms) - 100) // 10)
        streamed = {"first": 100.0 if chunks else None, "kinds": "x" * chunks}
        if left_ms <= 0:
            attempts.append(GONE)
        elif left_ms < length_ms:
            attempts.append({**CUT_OFF, **streamed, "headers_at_ns": None, "end": left_ms + 5})
        else:
            attempts.append({**OK, **streamed, "end": length_ms})
    return attempts if answers is None else attempts + [OK] * answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "pattern"),
    [
        # The kind of most failures decides.
        ([OK, LIMIT, with_status(401), with_status(403), EMPTY] * 5, "key"),
        (spread(LIMIT, 0.3)[:40] + [TIMEOUT] * 3 + [OK] * 10, "headroom"),
        ([OK] * 8 + [BROKEN] * 2 + [LIMIT], "look at its log"),
        # The advice says when it began.
        ([OK] * 81 + [GONE] * 40, "the target is gone since 8.1 s .Connection refused."),
        ([OK] * 20 + [GONE] * 10 + [OK] * 30, "gone from 2.0 s to 2.9 s"),
        (
            [OK] * 15 + [with_status(401)] * 20,
            "refuses the key since 1.5 s, which it accepted before",
        ),
        ([OK] * 30 + [BROKEN] * 9, "target fails since 3.0 s"),
        ([OK] * 30 + [TIMEOUT] * 9, "gives no answer since 3.0 s"),
        ([BROKEN] * 20 + [OK] * 30, "target fails until 1.9 s"),
        # Streams that are cut as the target goes have the cause of the refused calls.
        (going(60, 30, 700.0), r"gone since 3\.0 s .Connection refused; 6 open calls broke off"),
        (going(44, 38, 2500.0), r"gone since 3\.8 s .Connection refused; 2\d open calls broke off"),
        ([BROKEN, *going(50, 20, 500.0)], r"gone since 2\.[01] s"),
        (
            going(40, 20, 1000.0, answers=30),
            r"was gone from 2\.0 s to 3\.9 s.*restarted or cut off",
        ),
        ([*spread(with_status(400), 0.3, n=40), *[GONE] * 30], r"gone since 4\.0 s"),
        # What holds at the end goes first.
        (
            [BUSY] * 21 + [OK] * 20 + [with_status(401)] * 20,
            "key since 4.1 s.*accepted before.*before: 21 rejected .overloaded.",
        ),
        (
            [LIMIT] * 12 + [OK] * 9 + [BROKEN] * 8,
            "target fails since 2.1 s.*before: 12 rejected .429.",
        ),
        (
            spread(BROKEN, 0.6, n=50, seed=2) + [GONE] * 15,
            "gone since 5.0 s.*before: 29 with a server error",
        ),
        ([BUSY] * 20 + [with_status(401)] * 15, "the key since 2.0 s: export"),
    ],
)
def test_the_advice_names_the_cause_and_since_when(result, attempts, pattern):
    advice = result(*attempts).advice

    assert re.search(pattern, advice), advice


@pytest.mark.slow("cut and refused by chance", "the last one refused")
@pytest.mark.parametrize(
    "attempts",
    [
        spread(GONE, 0.4, seed=11),
        [cut if cut is not OK else other for cut, other in zip(
            spread(CUT_OFF, 0.4, seed=3), spread(GONE, 0.2, seed=4), strict=True)],
        [*spread(CUT_OFF, 0.6, seed=5), GONE],
    ],
    ids=["refused by chance", "cut and refused by chance", "the last one refused"],
)  # fmt: skip
def test_a_target_that_answers_between_its_failures_is_not_gone(result, attempts):
    assert "gone" not in result(*attempts).advice


@pytest.mark.slow("open at the end", "not all")
@pytest.mark.parametrize(
    "at_the_end",
    [[with_status(401)] * 4, [{"ended": "censored"}] * 20, [with_status(401), OK] * 10],
    ids=["few", "open at the end", "not all"],
)
def test_what_does_not_hold_at_the_end_waits_for_its_turn(result, at_the_end):
    found = result(*spread(BROKEN, 0.5, n=60, seed=8), *at_the_end)

    assert found.advice.startswith("the target fails")


@pytest.mark.parametrize(
    ("protocol", "share", "subject"),
    [
        ("openai", 0.5, "some servers behind the address answer"),
        ("anthropic", 1.0, "the address answers"),
        ("sse", 0.3, "some servers behind the address answer"),
    ],
)
def test_another_protocol_is_no_silence(result, protocol, share, subject):
    unread = {
        "ended": "truncated", "status": 200, "error_type": "no_end_mark", "events": 45, "tolerated": "unknown_event", "end": 460.0,
    }  # fmt: skip
    found = result(*spread(unread, share), target={"protocol": protocol})

    assert found.advice.startswith(f"{subject} in another protocol than {protocol} (no event of")
    assert "check target.protocol" in found.advice


@pytest.mark.parametrize(
    ("protocol", "other", "share", "subject"),
    [
        ("openai", "anthropic", 0.5, "some servers behind the address answer"),
        ("anthropic", "openai", 1.0, "the address answers"),
        ("openai", "anthropic", 0.2, "some servers behind the address answer"),
    ],
)
def test_a_protocol_that_an_event_shows_is_named(result, protocol, other, share, subject):
    stranger = {
        "ended": "stream_error", "status": 200, "error_type": "malformed_event",
        "error_body": f"an event of protocol {other}", "events": 1, "end": 460.0,
    }  # fmt: skip
    found = result(*spread(stranger, share), target={"protocol": protocol})

    assert found.advice.startswith(f"{subject} in another protocol than {protocol} (")
    assert f"had events of protocol {other}): check target.protocol" in found.advice


@pytest.mark.parametrize(
    "text", ["", "data: no event of ours", "of an event of protocol openai", "an event"]
)
def test_a_malformed_event_of_no_known_protocol_is_the_gateways(result, text):
    broken = {
        "ended": "stream_error", "status": 200, "error_type": "malformed_event",
        "error_body": text, "events": 9, "end": 460.0,
    }  # fmt: skip
    found = result(*spread(broken, 0.5), target={"protocol": "openai"})

    assert found.advice.startswith("look at the endpoint or the gateway before it")


@pytest.mark.parametrize("seed", [4, 5, 6])
def test_failures_by_chance_have_no_beginning(result, seed):
    assert "since" not in result(*spread(BROKEN, 0.5, seed=seed)).advice


@pytest.mark.slow("failing1", "failing2", "failing3")
@pytest.mark.parametrize(
    ("failing", "pattern"),
    [
        (
            {**CUT_OFF, "kinds": "x" * 60, "gap": 50.0, "end": 3050.0},
            "break off after 3.05 s: raise the time limit",
        ),
        ({**CUT_OFF, "end": 1100.0}, "after a silence of 0.98 s"),
        (
            {"ended": "connect_error", "error_type": "closed", "end": 2000.0},
            "closed after 2 s without an answer",
        ),
        (with_status(504, "server_error", end=1500.0), "gives up after 1.5 s"),
    ],
)
def test_a_time_that_all_have_in_common_is_a_timer(result, failing, pattern):
    assert pattern in result(*spread(failing, 0.5)).advice


def test_a_target_whose_waits_grow_has_a_queue(result):
    waits = [{**OK, "first": 100.0 + 80 * n} for n in range(60)]
    late = {"ended": "timeout", "end": 5000.0}

    found = result(*waits, *[late] * 20)

    assert "requests queue up at the target" in found.advice
    assert "experiment.kind=curve" in found.advice


@pytest.mark.slow("waits_ms1", "waits_ms2")
@pytest.mark.parametrize(
    ("waits_ms", "deadline_ms"),
    [
        ([200, 470, 1790, 2990, 3760], 4800.0),
        ([60, 270, 600, 500, 990, 850, 890, 1190], 1800.0),
        ([100.0 + 90 * n for n in range(30)], 3000.0),
    ],
)
def test_a_target_that_answers_later_and_later_until_it_answers_nothing_does_not_hang(
    result, waits_ms, deadline_ms
):
    answered = [{**OK, "first": float(wait_ms)} for wait_ms in waits_ms]

    advice = result(*answered, *[{"ended": "timeout", "end": deadline_ms}] * 60).advice

    assert advice.startswith("requests queue up at the target: "), advice


@pytest.mark.slow("waits_ms1", "waits_ms2")
@pytest.mark.parametrize(
    "waits_ms", [[100] * 9, [90, 110, 130, 150, 170, 190], [100, 3000, 100, 2500, 100, 2900]]
)
def test_a_target_that_answers_nothing_from_a_moment_on_hangs(result, waits_ms):
    answered = [{**OK, "first": float(wait_ms)} for wait_ms in waits_ms]

    advice = result(*answered, *[TIMEOUT] * 60).advice

    assert "queue" not in advice


@pytest.mark.slow("timeout")
@pytest.mark.parametrize("ended", ["overloaded", "timeout"])
def test_retries_that_multiply_the_load_are_the_cause_whatever_the_rejection_is_called(
    result, ended
):
    growing = [{**OK, "first": 100.0 + 60 * n} for n in range(20)]
    failure = {"ended": ended, "status": 529 if ended == "overloaded" else None, "end": 4000.0}
    traffic = {"chat": {"retry": {"policy": "naive"}}}

    found = result(*[OK] * 30, *growing, *[tries(failure, 6)] * 40, traffic=traffic)

    assert "retries make 3.2 attempts per call of traffic chat" in found.advice
    assert "traffic.chat.retry.policy=polite" in found.advice


@pytest.mark.slow("overloaded-6-0.5", "overloaded-4-0.3")
@pytest.mark.parametrize(
    ("ended", "number", "share"),
    [("overloaded", 3, 0.7), ("overloaded", 6, 0.5), ("overloaded", 4, 0.3)],
)
def test_retries_of_a_load_that_is_too_much_without_them_are_a_second_cause(
    result, ended, number, share
):
    failure = {"ended": ended, "status": 503, "end": 3000.0}
    attempts = spread(tries(failure, number), share, n=90)

    found = result(*attempts, traffic={"chat": {"retry": {"policy": "naive"}}})

    assert re.match(
        r"the target is overloaded by first attempts alone \(\d+\.\d requests/s offered, \d\.\d+/s completed within the \d+ s of the steady stage\), "
        r"and retries make \d\.\d attempts per call of traffic chat: find",
        found.advice,
    ), found.advice
    assert "experiment.kind=curve" in found.advice


@pytest.mark.slow("4")
@pytest.mark.parametrize("number", [2, 4])
def test_retries_at_a_limit_that_the_first_attempts_exceed_are_to_be_switched_off(result, number):
    attempts = spread(tries(LIMIT, number), 0.6, n=90)

    found = result(*attempts, traffic={"chat": {"retry": {"policy": "sdk"}}})

    assert "retries gain nothing (" in found.advice
    assert (
        " of requests still ended with a 429); switch them off, or pace the client: find"
        in found.advice
    )


def test_hedge_copies_are_the_cause_of_an_overload(result):
    copies = [
        {**OK, "first": None, "ended": "cancelled"},
        {**BUSY, "attempt": 1, "cause": "hedge", "sent": 50.0},
        {**BUSY, "attempt": 2, "cause": "retry", "sent": 90.0},
    ]
    found = result(*[OK, copies] * 30)

    assert "hedge copies add load" in found.advice
    assert "traffic.chat.hedge.policy=off" in found.advice


@pytest.mark.slow("changes1", "changes2")
@pytest.mark.parametrize(
    ("changes", "pattern", "never"),
    [
        ({"arrival": "closed"}, "use fewer users", "headroom"),
        ({"scenario_file": ""}, "send less", "tailgauge run"),
        (
            {"overrides": ["target.url=http://h:1/a b"], "scenario_file": "my runs/c.toml"},
            "'my runs/c.toml'",
            "lower",
        ),
    ],
)
def test_a_command_is_printed_where_there_is_one(result, changes, pattern, never):
    arrival = (
        {"process": "closed", "closed": {"users": 4}}
        if "arrival" in changes
        else {"process": "constant", "rate_per_s": 10}
    )
    found = result(*spread(LIMIT, 0.5), record=changes, arrival=arrival)

    assert pattern in found.advice
    assert never not in found.advice


def slow(number, n):
    """Return answers of which so many are slow, by chance."""
    is_slow = np.random.default_rng(4).permutation(n) < number
    return [{**OK, "first": 1500 if late else 100} for late in is_slow]


def failing(number, n):
    return [BROKEN if place % (n // number) == 7 else OK for place in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "objective"),
    [
        ([OK] * 60, "error_rate < 3%"),
        (failing(6, 200), "complete > 95%"),
        (failing(1, 60), "complete > 96%"),
        (failing(8, 400), "complete > 97%"),
        # A miss that is not shown and has no cause.
        (slow(4, 40), "ttft p95 < 1s"),
        (slow(12, 200), "ttft p95 < 1s"),
        (slow(13, 20), "ttft p50 < 1s"),
    ],
)
def test_a_run_that_is_too_short_says_how_long_it_must_be(result, attempts, objective):
    stages = {"duration_s": 60.0, "warmup_s": 0}
    found = result(*attempts, slo={"mine": objective}, stages=stages)

    assert found.outcome == INCONCLUSIVE
    assert re.fullmatch(r"run longer: tailgauge run synthetic.toml --duration \d+0s", found.advice)


@pytest.mark.slow("4", "5")
@pytest.mark.parametrize("still_open", [3, 4, 5])
def test_requests_that_are_open_at_the_end_do_not_date_the_rejections(result, still_open):
    retried = [{**BUSY, "end": 20.0}, {**OK, "attempt": 1, "cause": "retry", "sent": 30.0}]
    attempts = [retried if number % 5 == 1 else OK for number in range(60)]
    found = result(*attempts, *[{"ended": "censored"}] * still_open, slo={"busy": "529_rate < 1%"})

    assert found.outcome == FAIL
    assert found.advice.startswith("the target is overloaded: ")


def test_users_who_left_before_their_call_was_sent_have_no_patience_that_could_be_measured(result):
    left = {"first": None, "ended": "cancelled", "end": 2000.0}
    found = result(*[OK] * 20, *[left] * 9, {**left, "sent": None})

    assert "they left after 2 s (median)" in found.advice


@pytest.mark.slow("503")
@pytest.mark.parametrize("status", [529, 503])
def test_a_target_that_rejects_the_preflight_as_overloaded_has_no_load_to_find(
    mixed, tmp_path, status
):
    run = mixed()
    run.request(0, [with_status(status, "overloaded")], ended="overloaded")
    run.attempts[0]["stage"] = run.requests[0]["stage"] = "preflight"
    folder = run.write(tmp_path / "run")
    with edited_run(folder) as record:
        record.update({"state": "unusable", "preflight": [{"message": "overloaded"}]})
    found = answer(Run([folder]))

    assert found.outcome == NO_ANSWER
    assert "tailgauge run" not in found.advice
    assert found.advice.startswith("the target rejects every request as overloaded")


def test_length_does_not_help_a_target_that_fails(result):
    found = result(*[OK] * 12, BROKEN, BROKEN)

    assert "look at its log" in found.advice
    assert "run longer" not in " ".join([found.advice, *found.details])


def test_the_ends_are_listed_with_what_was_seen(result):
    others = [UNNAMED, UNNAMED, UNNAMED, UNKNOWN, UNKNOWN, with_status(401), INSIDE, NO_JSON]
    found = result(*[OK] * 2, *others)

    assert found.details[0] == (
        "not completed: 3 without a finish reason, 2 with the unknown finish reason 'paused', "
        "1 rejected (401), 1 rejected (in a 200), 1 with an answer that is not the protocol's"
    )


def test_the_share_of_a_cause_is_one_of_all_requests_as_in_the_list(result):
    found = result(*[CUT_OFF, UNNAMED] * 2)

    assert found.sentence == (
        "50% of 4 requests got an answer without a finish reason: none of 4 requests completed"
    )
    assert found.details[0] == "not completed: 2 truncated, 2 without a finish reason"


@pytest.mark.slow("attempts1", "attempts2")
@pytest.mark.parametrize(
    ("attempts", "likely"),
    [
        (
            [UNNAMED] * 10,
            "no answer names one, so the engine or a gateway before it probably leaves it out",
        ),
        ([CUT_OFF, UNNAMED, UNNAMED], "no answer names one"),
        ([OK, UNNAMED], "other answers name one, so these probably broke off"),
    ],
)
def test_an_answer_without_a_finish_reason_has_the_likely_cause(result, attempts, likely):
    advice = result(*attempts * 4).advice

    assert advice.startswith("the answers end without a finish reason, SDK users get null: ")
    assert likely in advice
    assert "aborted" not in advice


@pytest.mark.slow("attempts1")
@pytest.mark.parametrize("attempts", [[OK] * 400, [{**OK, "first": 900.0}] * 400])
def test_a_healthy_run_has_no_advice(result, attempts):
    assert result(*attempts).advice == ""


ESSAY = {"prompt_tokens": 50, "output_tokens": 3000, "weight": 0.1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "drain_s"),
    [
        ({"chat": {"prompt_tokens": 50, "output_tokens": 20}, "essay": ESSAY}, 5.0),
        (
            {
                "chat": {"prompt_tokens": 50, "output_tokens": 20},
                "essay": {**ESSAY, "stream": False},
            },
            2.0,
        ),
        ({"essay": {**ESSAY, "output_tokens": 1500, "weight": 1.0}}, 10.0),
    ],
    ids=["streamed", "whole", "all are long"],
)
def test_answers_that_the_drain_cuts_are_not_said_to_hang(tmp_path, tables, drain_s):
    tree = {
        "arrival": {"rate_per_s": 5.0}, "stages": {"duration_s": 60.0, "warmup_s": 0.0}, "limits": {"drain_s": drain_s},
        "simulated": {"ttft_ms": 200.0, "chunk_gap_ms": 20.0}, "traffic": tables,
    }  # fmt: skip
    found = answer(Run([dry_run_folder(tree, tmp_path)]))

    assert f"at the end of the drain (limits.drain_s, {drain_s:g} s)" in found.advice
    assert "hang" not in found.advice


def test_a_job_that_the_target_forgot_is_no_wrong_address(tmp_path):
    target = {
        "url": "simulated", "protocol": "sse",
        "sse": {"path": "/v1/chat/completions", "input_tokens": "/usage/prompt_tokens", "output_tokens": "/usage/completion_tokens",
                "body": {"model": "{model}", "max_tokens": "{max_tokens}", "messages": [{"role": "user", "content": "{prompt}"}]},
                "jobs": {"state": "/status", "result_url": "/result_url"}},
    }  # fmt: skip
    tree = {
        "target": target, "arrival": {"rate_per_s": 5.0}, "stages": {"duration_s": 40.0, "warmup_s": 0.0},
        "simulated": {"jobs": {"turnaround_s": 3.0, "lost": 0.3}},
        "traffic": {"jobs": {"pattern": "job", "output_tokens": 20, "job": {"poll_s": 1.0, "deadline_s": 60.0}}},
    }  # fmt: skip
    found = answer(Run([dry_run_folder(tree, tmp_path)]))

    assert "does not know jobs that it accepted" in found.advice
