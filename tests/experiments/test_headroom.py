"""Headroom in dry runs: planted sustainable rates are found, with what binds; its course, driven by hand; and the answer if nothing is."""

import json

import pytest
from experiments.by_dry_run import conducted
from experiments.loads.planted import (
    LIMIT,
    OUTPUT,
    PROMPT,
    TODAY,
    sustained_by_bucket,
    sustained_by_capacity,
    tree,
)

from tailgauge.errors import UsageError
from tailgauge.experiments.course import Base
from tailgauge.experiments.headroom import HeadroomPlanner
from tailgauge.scenario import model as scenarios

BINDING = ("requests", "input_tokens", "output_tokens", "capacity")
BURST, REFUSED = 60, 0.01  # calls that the bucket of `tiny` holds, and the allowed share
SHORT = {"step_s": 15.0, "confirm": 2, "growth": 1.6}  # the sizes of `make test`
WIDEST = 0.15


@pytest.mark.slow
@pytest.mark.parametrize("binding", BINDING)
def test_the_interval_holds_the_planted_rate_and_names_what_binds(tmp_path, binding):
    """Of one seed; bench/experiment_coverage.py counts over many."""
    answer = conducted(tree(binding, 1, **SHORT), tmp_path / "experiment").answer
    facts = answer.facts
    expected = sustained_by_bucket(LIMIT, BURST, REFUSED)
    if binding == "capacity":
        expected = sustained_by_capacity(tmp_path)

    assert facts["low_per_s"] <= expected <= facts["high_per_s"]
    assert facts["low_per_s"] <= facts["sustained_per_s"] <= facts["high_per_s"]
    assert (facts["high_per_s"] - facts["low_per_s"]) / expected <= WIDEST
    assert facts["binding"] == binding
    assert facts["growth"] == pytest.approx(expected / TODAY, rel=0.06)
    assert answer.result.outcome == "PASS"
    source = (
        "the rate that the target answers at capacity"
        if binding == "capacity"
        else "the limit's refill and burst"
    )
    assert any(
        text.startswith(f"computed from {source}; confirmed at ") for text in answer.result.details
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "binding"),
    [({"in_band": True}, "requests"), ({"in_band": True, "overload": True}, "capacity")],
    ids=["rate limit", "overload"],
)
def test_the_limit_is_found_where_its_errors_are_inside_a_200(tmp_path, limits, binding):
    planted = tree("requests", 1, **SHORT)
    planted["simulated"] = {"profile": "tiny", "limits": {"rpm": 600, "burst": 10, **limits}}
    found = conducted(planted, tmp_path).answer.facts

    assert found["low_per_s"] <= sustained_by_bucket(LIMIT, 10, REFUSED) <= found["high_per_s"]
    assert found["binding"] == binding


# By bench/bucket_oracle.py: turns come in bursts, and a refused one ends its conversation.
CONVERSATIONS_PER_S = 1.945


@pytest.mark.slow
def test_a_rate_of_conversations_is_compared_with_a_limit_on_requests_in_one_unit(tmp_path):
    planted = tree("requests", 1, step_s=40.0, confirm=1)
    planted["arrival"]["rate_per_s"] = 0.8
    planted["traffic"]["chat"] |= {"session": {"turns_mean": 5.0, "think_s": 0.2}}
    answer = conducted(planted, tmp_path).answer
    facts = answer.facts

    assert (facts["unit"], facts["requests_per_arrival"]) == (
        "conversations/s",
        pytest.approx(5.0, rel=0.05),
    )
    assert facts["low_per_s"] <= CONVERSATIONS_PER_S <= facts["high_per_s"]
    assert facts["growth"] == pytest.approx(CONVERSATIONS_PER_S / 0.8, rel=0.1)
    assert answer.result.details[0].startswith("without refusals: ")
    assert "today's 0.8 conversations/s = " in answer.result.details[1]


CACHED = {
    "traffic": {
        "chat": {
            "pattern": "cached", "prompt_tokens": PROMPT, "output_tokens": OUTPUT,
            "cache": {"prefixes": 2, "system_tokens": 1600, "breakpoints": ["system"]},
        }
    },
    "simulated": {"profile": "tiny", "cache": {"mode": "marked"}, "limits": {"rpm": 600, "itpm": 180_000}},
}  # fmt: skip
WITHOUT_CACHE = (
    180_000 / 60 / (PROMPT + 1600)
)  # requests/s that use all of the limit on input tokens


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    return conducted(
        tree("requests", 3, **SHORT) | CACHED, tmp_path_factory.mktemp("cached")
    ).answer


@pytest.mark.slow
def test_without_the_cache_another_limit_binds_at_a_lower_rate(cached):
    without = cached.facts["without_cache"]

    assert cached.facts["binding"] == "requests"
    assert without["binding"] == "input_tokens"
    assert without["low_per_s"] <= WITHOUT_CACHE <= without["high_per_s"] * 1.02
    assert without["high_per_s"] < cached.facts["low_per_s"] / 4
    assert cached.result.problems[0].startswith("without the prompt cache only 0.")
    assert cached.result.problems[0].endswith("x of today's traffic fits")
    lines = [cached.result.sentence, *cached.result.details, *cached.result.problems]
    assert len(lines) == 6
    without, _, limit = lines[1:4]
    assert without.startswith("without refusals: ")
    assert limit.startswith("limit: 600 requests per minute (10/s), burst 60")


@pytest.mark.slow
def test_a_cold_cache_that_todays_traffic_survives_is_no_problem(tmp_path):
    wanted = tree("requests", 3, **SHORT) | CACHED
    wanted["simulated"] = wanted["simulated"] | {"limits": {"rpm": 600, "itpm": 900_000}}
    result = conducted(wanted, tmp_path).answer.result

    assert result.problems == ()
    assert any(text.startswith("without the prompt cache ") for text in result.details)


@pytest.mark.slow
def test_one_quiet_run_tells_a_wider_interval_and_meets_no_429(tmp_path):
    done = conducted(tree("requests", 4, no_429=True, step_s=100.0), tmp_path)
    facts, expected = done.answer.facts, sustained_by_bucket(LIMIT, BURST, REFUSED)

    assert done.ledger.runs == 1
    assert facts["binding"] == "requests"
    assert facts["low_per_s"] <= expected <= facts["high_per_s"]
    assert (facts["high_per_s"] - facts["low_per_s"]) / expected > WIDEST
    assert "without a single 429" in done.answer.result.sentence
    assert sum(one["limit"]["refused"] for one in facts["limits"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("step_s", [10.0, 60.0])
def test_one_quiet_run_is_bounded_below_by_the_rate_that_it_sustained(tmp_path, step_s):
    """However short: 40 calls do not show that fewer than 1% are refused, but none was."""
    facts = conducted(tree("requests", 4, no_429=True, step_s=step_s), tmp_path).answer.facts

    assert facts["low_per_s"] >= TODAY
    assert facts["low_per_s"] < sustained_by_bucket(LIMIT, BURST, REFUSED) <= facts["high_per_s"]


@pytest.mark.slow
def test_one_quiet_run_promises_no_more_than_the_headers_allow(tmp_path):
    wanted = tree("requests", 4, no_429=True, step_s=10.0)
    wanted["simulated"]["limits"] = {
        "rpm": 210,
        "burst": 210,
    }  # full at first: nothing is refused for minutes
    facts = conducted(wanted, tmp_path).answer.facts

    assert facts["low_per_s"] <= facts["high_per_s"] < TODAY


@pytest.mark.slow
def test_where_no_header_names_a_limit_a_quiet_run_says_that_todays_rate_holds_if_it_shows_that(
    tmp_path,
):
    answer, short = (
        conducted(tree("capacity", 4, no_429=True, step_s=step_s), tmp_path / f"{step_s}").answer
        for step_s in (60.0, 5.0)
    )

    assert (answer.result.outcome, answer.result.sentence) == (
        "PASS",
        "at least 4 requests/s can be sustained",
    )
    assert (answer.facts["low_per_s"], answer.facts["high_per_s"]) == (TODAY, None)
    assert (short.result.outcome, short.facts["low_per_s"]) == ("INCONCLUSIVE", None)
    assert "no header" in short.result.sentence


@pytest.mark.slow
def test_where_nothing_refuses_the_answer_is_at_least_and_the_need_is_met(tmp_path):
    wanted = tree("requests", 5, most=1.6, need=1.5, **SHORT)
    wanted["simulated"] = {"profile": "tiny"}
    wanted["arrival"]["rate_per_s"] = 20.0
    answer = conducted(wanted, tmp_path).answer

    assert answer.result.outcome == "PASS"
    assert answer.facts["low_per_s"] == pytest.approx(32.0)
    assert answer.facts["high_per_s"] is None
    assert "at least" in answer.result.sentence


@pytest.mark.slow
def test_where_todays_rate_is_too_high_the_need_is_not_met(tmp_path):
    wanted = tree("requests", 6, need=2.0, **SHORT)
    wanted["arrival"]["rate_per_s"] = 14.0
    answer = conducted(wanted, tmp_path).answer

    assert answer.result.outcome == "FAIL"
    assert answer.facts["high_per_s"] < 14
    assert [(one.name, one.outcome) for one in answer.result.objectives] == [
        ("today's 14 requests/s", "FAIL"), ("growth to 2x", "FAIL"),
    ]  # fmt: skip


@pytest.mark.slow
def test_facts_are_plain_and_every_tried_rate_has_its_row(cached):
    json.dumps(cached.facts, allow_nan=False)

    rates, limits = cached.sections[0].tables
    outcomes = {row[rates.header.index("sustained")].outcome for row in rates.rows}
    assert outcomes <= {"PASS", "FAIL", "INCONCLUSIVE"}
    assert {"requests", "input tokens"} <= {row[0] for row in limits.rows}
    assert cached.sections[0].figures[0].marks[0].low == cached.facts["low_per_s"]


def test_a_closed_loop_has_no_rate_that_could_grow(tmp_path):
    wanted = tree("requests", 1)
    wanted["arrival"] = {"process": "closed"}
    base = Base(tmp_path / "closed.toml", scenarios.parse(wanted, "closed"), (), tmp_path)

    with pytest.raises(
        UsageError, match=r"closed.toml: arrival.process: .* expected an open process"
    ):
        HeadroomPlanner(base)


@pytest.mark.slow
def test_an_objective_may_be_what_is_met_first(tmp_path):
    wanted = tree("capacity", 7, growth=1.6, confirm=2, step_s=51.0)
    wanted["slo"] = {
        "first_token": {
            "metric": "ttft_sched",
            "max_ms": 400.0,
            "quantile": 0.95,
            "traffic": "chat",
        }
    }
    answer = conducted(wanted, tmp_path).answer

    assert answer.facts["binding"] == "objectives"
    assert (
        TODAY < answer.facts["low_per_s"] < answer.facts["high_per_s"] < 12.24
    )  # what it answers a second
    assert answer.result.details[0].endswith("an objective of [slo] binds first")
    assert "beyond [slo]" in answer.sections[0].tables[0].header


@pytest.mark.parametrize(
    ("slo", "is_timed"),
    [
        ({}, False),
        ({"metric": "error_rate", "max": 0.01}, False),
        ({"metric": "ttft", "max_ms": 800}, True),
    ],
)
def test_a_client_that_read_late_spoils_a_run_only_where_its_latency_is_judged(
    tmp_path, slo, is_timed
):
    tree_of_slo = tree("requests", 1) | {"slo": {"first": slo} if slo else {}}
    base = Base(tmp_path / "planted.toml", scenarios.parse(tree_of_slo, "planted"), (), tmp_path)

    assert ("client_error" in {check.name for check in HeadroomPlanner(base).checks}) == is_timed
