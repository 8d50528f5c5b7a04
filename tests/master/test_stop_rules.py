"""When a run stops to protect its target, on counters of the workers."""

from __future__ import annotations

from typing import Any

import pytest

from tailgauge import quantile_sketch
from tailgauge.channel.traffic_counters import TrafficCounters, combined
from tailgauge.master.progress import Progress
from tailgauge.master.stop_rules import StopRules
from tailgauge.scenario.model import parse

SLO = {"metric": "complete", "min": 0.1}


class Workers:
    """Some workers whose counters grow by what happens in each second of a run."""

    def __init__(self, number: int = 1, **tables: Any) -> None:
        self.rules = StopRules(parse({"name": "x", "traffic": {"chat": {}}, **tables}, "test"))
        self._ended: list[dict[str, int]] = [{} for _ in range(number)]
        self._calls: list[dict[str, int]] = [{} for _ in range(number)]
        self._ttft: dict[int, int] = {}
        self.second = 0
        self.open = 0

    def second_of(
        self, *, ttft_ms: float | None = None, calls: dict[str, int] | None = None, **ended: int
    ) -> str | None:
        """One more second, in which these requests ended on the workers in turn."""
        for into, what in ((self._ended, ended), (self._calls, calls or ended)):
            for number, name in enumerate(name for name, n in what.items() for _ in range(n)):
                mine = into[number % len(into)]
                mine[name] = mine.get(name, 0) + 1
        if ttft_ms is not None:
            quantile_sketch.add(self._ttft, ttft_ms)
        self.second += 1
        progress = Progress(self.second, 1000.0, in_flight=self.open)
        counters = (TrafficCounters(*each) for each in zip(self._ended, self._calls, strict=True))
        progress.all = combined(counters)
        progress.all.ttft = dict(self._ttft)
        return self.rules.broken(progress)

    def until_stopped(self, most: int, **second: Any) -> tuple[int, str]:
        """Seconds until a rule is broken, at most so many, and why."""
        for number in range(1, most + 1):
            if why := self.second_of(**second):
                return number, why
        return 0, ""


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(
    "how",
    [
        "server_error",
        "overloaded",
        "timeout",
        "truncated",
        "empty",
        "refused",
        "filtered",
        "aborted",
    ],
)
def test_a_target_that_fails_is_spared_after_a_few_seconds_whatever_the_number_of_workers(
    workers, how
):
    run = Workers(workers)
    assert run.until_stopped(20, ok=10) == (0, "")

    after, why = run.until_stopped(10, **{how: 10})

    assert 3 <= after <= 6
    assert why.endswith("requests completed (stop.min_completed 50%)")
    completed, ended = (int(text) for text in why.split(" requests")[0].split(" of the last "))
    assert (50 <= ended <= 60, completed * 2 < ended) == (True, True)


def test_a_slow_run_needs_fifty_ended_requests():
    run = Workers()
    run.until_stopped(100, ok=1)

    after, _ = run.until_stopped(60, server_error=1)

    assert after == 26


def test_a_restart_of_the_target_at_a_high_rate_is_no_reason():
    run = Workers()
    run.until_stopped(10, ok=500)

    assert run.until_stopped(2, server_error=500) == (0, "")
    assert run.until_stopped(20, ok=500) == (0, "")


def test_requests_whose_user_left_and_open_ones_do_not_count():
    run = Workers()

    assert run.until_stopped(60, ok=2, cancelled=20) == (0, "")
    run.open = 900
    assert run.until_stopped(60, cancelled=20) == (0, "")


def test_a_cut_answer_is_complete():
    assert Workers().until_stopped(60, cut=5, server_error=5) == (0, "")
    assert Workers().until_stopped(60, cut=5, refused=6)[0] > 0


@pytest.mark.parametrize("second", [{"ok": 5, "rate_limited": 35}, {"ok": 1, "rate_limited": 400}])
def test_a_target_that_spares_itself_by_429s_is_measured_to_the_end(second):
    assert Workers().until_stopped(120, **second) == (0, "")


def test_a_limit_that_counts_by_the_minute_may_refuse_everything_for_most_of_it():
    run = Workers()

    for _ in range(3):
        assert run.until_stopped(5, ok=60) == (0, "")
        assert run.until_stopped(55, rate_limited=60) == (0, "")


def test_other_failures_beside_429s_count_as_without_them():
    run = Workers()
    run.until_stopped(10, ok=10)

    _, why = run.until_stopped(20, server_error=8, ok=5, rate_limited=50)

    assert why.endswith("requests completed (stop.min_completed 50%)")
    assert not why.startswith("0 of")


@pytest.mark.parametrize("before", [0, 10])
def test_nothing_but_429s_for_longer_than_a_minute_stops_a_run(before):
    run = Workers()
    run.until_stopped(before, ok=10)

    after, why = run.until_stopped(90, rate_limited=20)

    assert after == 65
    assert why.endswith("s, and none completed (stop.min_completed 50%)")
    assert run.rules.how_to_go_on == "to continue the run anyway, add --set stop.min_completed=0"
    assert Workers(stop={"min_completed": 0}).until_stopped(90, rate_limited=20) == (0, "")


def test_half_completed_is_enough():
    assert Workers().until_stopped(60, ok=5, server_error=5) == (0, "")
    assert Workers().until_stopped(60, ok=5, server_error=6)[0] > 0


@pytest.mark.parametrize(
    "tables",
    [
        {"slo": {"mine": SLO}},
        {"slo": {"mine": {"metric": "error_rate", "max": 0.9}}},
        {"slo": {"mine": {"metric": "429_rate", "max": 0.9}}},
        {"stop": {"min_completed": 0}},
    ],
)
def test_a_scenario_that_says_how_many_may_fail_runs_to_its_end(tables):
    assert Workers(**tables).until_stopped(60, server_error=50) == (0, "")


def test_an_objective_on_latency_says_nothing_about_failures():
    tables = {"slo": {"mine": {"metric": "ttft", "max_ms": 100}}}

    assert Workers(**tables).until_stopped(60, server_error=50)[0] > 0


def test_connection_errors_in_a_row_stop_a_run_that_is_too_slow_for_fifty_requests():
    run = Workers(2, slo={"mine": SLO})
    run.until_stopped(30, ok=1)

    after, why = run.until_stopped(40, connect_error=1)

    assert (after, why) == (20, "20 connection errors in a row (stop.connect_errors 20)")


def test_one_answer_of_any_kind_ends_a_row_of_connection_errors():
    run = Workers(slo={"mine": SLO})

    assert run.until_stopped(19, connect_error=1) == (0, "")
    run.second_of(server_error=1)
    assert run.until_stopped(19, connect_error=1) == (0, "")
    assert Workers(slo={"mine": SLO}, stop={"connect_errors": 0}).until_stopped(
        60, connect_error=9
    ) == (
        0,
        "",
    )


def test_a_burst_of_connection_errors_is_no_row_before_five_seconds():
    run = Workers(slo={"mine": SLO})
    run.second_of(ok=1)

    assert run.until_stopped(4, connect_error=100) == (0, "")
    assert run.second_of(connect_error=100) is not None


def test_a_ttft_above_its_bound_for_long_enough_stops_the_run():
    run = Workers(stop={"max_ttft_ms": 500, "ttft_s": 8})
    run.until_stopped(20, ok=1, ttft_ms=100)

    after, why = run.until_stopped(30, ok=1, ttft_ms=2000)

    assert 4 <= after <= 8
    assert "the median TTFT was 2,0" in why or "the median TTFT was 1,9" in why
    assert why.endswith("ms in 8 s (stop.max_ttft_ms 500)")


def test_a_target_that_says_nothing_at_all_is_too_slow_while_requests_are_open():
    run = Workers(stop={"max_ttft_ms": 500, "ttft_s": 8})
    run.until_stopped(20, ok=1, ttft_ms=100)
    assert run.until_stopped(20) == (0, "")  # nothing is open: nothing was asked

    run.open = 3
    after, why = run.until_stopped(30)

    assert 8 <= after <= 9
    assert why == "no first token in 8 s (stop.max_ttft_ms 500)"


def test_without_a_bound_no_ttft_stops_a_run():
    run = Workers()
    run.open = 9

    assert run.until_stopped(60, ok=1, ttft_ms=60_000) == (0, "")


@pytest.mark.parametrize(
    ("rule", "second"),
    [
        ("min_completed", {"overloaded": 20}),
        ("min_completed", {"timeout": 9, "ok": 4}),
        ("connect_errors", {"connect_error": 1}),
    ],
)
def test_what_is_offered_to_go_on_switches_the_rule_off(rule, second):
    run = Workers(slo={"mine": SLO} if rule == "connect_errors" else {})
    assert run.until_stopped(60, **second)[0] > 0

    added, _, value = run.rules.how_to_go_on.rpartition(" ")[2].rpartition("=")

    assert (added, value) == (f"stop.{rule}", "0")
    tables = {"stop": {rule: int(value)}, "slo": {"mine": SLO} if rule == "connect_errors" else {}}
    assert Workers(**tables).until_stopped(60, **second) == (0, "")


def test_a_bound_of_the_user_is_to_be_raised_or_left_out():
    run = Workers(stop={"max_ttft_ms": 500, "ttft_s": 8})
    run.until_stopped(30, ok=1, ttft_ms=2000)

    assert (
        run.rules.how_to_go_on
        == "to continue the run anyway, raise stop.max_ttft_ms or leave it out"
    )


# --- equal rejections ---------------------------------------------------------------------------------------------

KEY = {"target": {"url": "http://127.0.0.1:9", "api_key_env": "MY_KEY"}}


def streak(
    n: int, status: int = 401, target: str = "main", message: str | None = None
) -> dict[str, Any]:
    url = "http://127.0.0.1:9/v1/messages"
    return {
        "in_a_row": n, "target": target, "status": status, "url": url, "error_type": None, "message": message,
        "model": "tiny",
    }  # fmt: skip


def looks(streaks: list[dict[str, Any] | None], **tables: Any) -> list[str | None]:
    rules = StopRules(parse({"name": "x", "traffic": {"chat": {}}, **tables}, "test"))
    found = [
        rules.broken(Progress(float(second), 1000.0, rejected=one))
        for second, one in enumerate(streaks, 1)
    ]
    if any(found):
        assert rules.how_to_go_on == "to continue the run anyway, add --set stop.rejections=0"
    return found


@pytest.mark.parametrize(
    ("status", "named"),
    [
        (401, "The key in MY_KEY was refused"),
        (403, "The key in MY_KEY was refused"),
        (404, "target http://127.0.0.1:9/v1/messages answered HTTP 404"),
        (400, "answered HTTP 400: prompt is too long"),
    ],
)
def test_equal_rejections_stop_a_run_and_name_the_cause(status, named):
    message = "prompt is too long" if status == 400 else None
    first, why = looks(
        [streak(25, status, message=message), streak(80, status, message=message)], **KEY
    )

    assert first is None, "it may be over in a moment"
    assert why.startswith("80 equal rejections in a row (stop.rejections 20): ")
    assert named in why


@pytest.mark.parametrize(
    ("streaks", "stop"),
    [
        ([streak(19), streak(19), streak(19)], {}),
        ([streak(30), None, streak(30)], {}),
        ([streak(30, 401), streak(30, 404), streak(30, 401)], {}),
        ([streak(900), streak(1900)], {"rejections": 0}),
        ([streak(30), streak(49)], {"rejections": 50}),
    ],
    ids=["too few", "an answer between", "others", "off", "more allowed"],
)
def test_rejections_that_are_few_or_differ_stop_nothing(streaks, stop):
    assert looks(streaks, stop=stop, **KEY) == [None] * len(streaks)
