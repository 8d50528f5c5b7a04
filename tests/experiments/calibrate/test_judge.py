"""From levels to a certificate: which rate holds, and who is held to account for what failed."""

from __future__ import annotations

import tomllib

import pytest

from tailgauge.experiments.calibrate import command, plan
from tailgauge.experiments.calibrate.measure import StepError, TimeError
from tailgauge.scenario.model import parse


def level(
    rate: float,
    *,
    failed: bool = False,
    late_ms: float = 0.1,
    spread_ms: float = 0.01,
    cpu: float | None = 50.0,
    wait: float | None = 0.01,
) -> StepError:
    error = TimeError(
        n=100,
        bias_ms=-spread_ms / 2,
        spread_ms=spread_ms,
        p99_off_ms=0.0,
        p99_reference_ms=100.0,
        distance=0.0,
    )
    return StepError(
        rate, rate, rate / 40, error, error, 1.0, cpu, wait, late_ms, ("TTFT: off",) if failed else ()
    )


GOOD = [level(500), level(1000, spread_ms=0.03), level(2000, cpu=40.0)]


def test_the_highest_rate_that_passed_holds() -> None:
    found = command.transport({"constant": [*GOOD, level(4000, failed=True, spread_ms=90.0)]})

    assert (found["holds_to_per_s"], found["failed_at_per_s"], found["limited_by"]) == (2000, 4000, "client")
    assert (found["ttft_spread_ms"], found["gap_bias_ms"], found["cpu_us_per_chunk"]) == (0.03, -0.015, 40.0)


def test_what_failed_while_the_endpoint_was_at_its_limit_is_not_held_against_the_client() -> None:
    found = command.transport({"constant": [*GOOD, level(4000, failed=True, late_ms=300.0)]})

    assert (found["holds_to_per_s"], found["failed_at_per_s"], found["limited_by"]) == (
        2000,
        None,
        "endpoint",
    )


def test_what_failed_while_others_had_the_core_is_not_held_against_the_client() -> None:
    found = command.transport({"constant": [*GOOD, level(4000, failed=True, wait=0.3)]})

    assert (found["holds_to_per_s"], found["failed_at_per_s"], found["limited_by"]) == (2000, None, "others")
    assert (
        command.transport({"constant": [*GOOD, level(4000, failed=True, wait=None)]})["limited_by"]
        == "client"
    )


def test_where_all_passed_nothing_limits_it() -> None:
    assert command.transport({"constant": GOOD})["limited_by"] is None


def test_the_latency_model_under_which_the_rate_is_lowest_decides() -> None:
    found = command.transport({"constant": GOOD, "lognormal": [*GOOD[:2], level(2000, failed=True)]})

    assert (found["holds_to_per_s"], found["failed_at_per_s"], found["latency_models"]) == (
        1000,
        2000,
        ["constant", "lognormal"],
    )


def test_where_a_latency_model_never_passed_nothing_holds() -> None:
    found = command.transport(
        {"constant": GOOD, "lognormal": [level(500, failed=True), level(1000, failed=True)]}
    )

    assert (found["holds_to_per_s"], found["failed_at_per_s"]) == (None, 500)


def test_one_step_in_four_may_be_disturbed_and_is_listed() -> None:
    bumpy = [level(500, failed=True, spread_ms=40.0), *GOOD[1:], level(4000)]

    found = command.transport({"constant": bumpy})

    assert (found["holds_to_per_s"], found["disturbed"], found["failed_at_per_s"]) == (4000, 1, None)
    assert found["ttft_spread_ms"] == 0.03  # of the steps that passed
    assert command.transport({"constant": bumpy[:3]})["holds_to_per_s"] is None
    assert command.transport({"constant": bumpy[:3]})["disturbed"] == 0


def test_a_cost_that_is_not_known_is_none() -> None:
    assert command.transport({"constant": [level(500, cpu=None)]})["cpu_us_per_chunk"] is None


def test_a_step_has_its_bounds() -> None:
    facts = command.step_facts("tls", "constant", level(500, failed=True))

    assert (facts["transport"], facts["latency_model"], facts["failed"], facts["strained"]) == (
        "tls",
        "constant",
        ["TTFT: off"],
        False,
    )
    assert facts["ttft"]["distance_bound"] == pytest.approx(0.173)


@pytest.mark.parametrize(
    ("levels", "left"),
    [
        ([*GOOD, level(4000)], 4),
        ([*GOOD, level(4000, failed=True)], 4),
        ([*GOOD[:2], level(2000, failed=True), level(4000, failed=True)], 3),
        (
            [
                level(500, failed=True),
                level(1000, failed=True),
                level(2000, failed=True),
                level(4000, failed=True),
            ],
            2,
        ),
        ([*GOOD[:2], level(2000, failed=True, wait=0.5), level(4000, failed=True)], 4),
    ],
)
def test_the_next_latency_model_is_not_tried_above_what_failed(levels: list[StepError], left: int) -> None:
    steps = plan.Steps((500.0, 1000.0, 2000.0, 4000.0), 3.0)

    assert command.less(steps, levels).rates == steps.rates[:left]


# --- the load ---------------------------------------------------------------------------------------------------


STEPS = plan.Steps((500.0, 1000.0, 4500.0), 4.0)


def test_each_step_counts_once_it_has_settled() -> None:
    assert [(one.asked_per_s, one.from_s, one.to_s) for one in STEPS.windows()] == [
        (500.0, 1.0, 4.0),
        (1000.0, 5.0, 8.0),
        (4500.0, 9.0, 12.0),
    ]
    answer_s = (plan.TTFT_MS + plan.CHUNKS * plan.GAP_MS) / 1e3
    assert answer_s <= plan.SETTLE_S


def test_the_load_is_a_scenario_that_can_be_and_asks_for_these_rates() -> None:
    text = plan.scenario(STEPS, "https://127.0.0.1:1", '/a b/"c".pem', "user")

    made = parse(tomllib.loads(text), "calibrate.toml")

    assert (made.target.ca_file, made.clock, made.stages.duration_s) == ('/a b/"c".pem', "user", 12.0)
    points = made.arrival.shape.points
    relative = {rate for _, rate in points}
    assert sorted(rate * made.arrival.rate_per_s * plan.CHUNKS for rate in relative) == pytest.approx(
        [500, 1000, 4500]
    )
    assert [at for at, _ in points] == pytest.approx([0, 1 / 3, 1 / 3, 2 / 3, 2 / 3, 1])


@pytest.mark.parametrize("model", plan.LATENCY_MODELS)
def test_every_latency_model_is_one_that_the_endpoint_knows(model: str) -> None:
    tree = {"name": "x", "simulated": {"ttft_ms": 100, **plan.LATENCY_MODELS[model]}}

    assert parse(tree, "x").simulated.ttft_exponential == (model == "exponential")
    assert model in plan.SLACK_MS
