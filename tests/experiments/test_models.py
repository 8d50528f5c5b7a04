"""The model choice: the models that meet the objectives, the cheapest of them, in dry runs and from blocks; what is refused."""

import numpy as np
import pytest
from experiments import by_dry_run

from tailgauge.errors import UsageError
from tailgauge.experiments.course import Base, RunReading, SpentError, StepResult
from tailgauge.experiments.models import ModelBlock, ModelsPlanner, answer, choice, model_block
from tailgauge.scenario import model as scenarios
from tailgauge_analysis import COMPARABLE, Waits

# `tiny` waits 56 ms in the median and then 30 ms; `haiku` 245 ms and then 120 ms; `opus` 1,320 ms and then 500 ms.
AMONG = {
    "quick": {"model": "quick", "profile": "tiny", "price": 3.0},
    "cheap": {"model": "cheap", "profile": "haiku", "price": 1.0},
    "slow": {"model": "slow", "profile": "opus", "price": 0.5},
}
ROUNDS = 6


def tree(seed, max_ms=1500.0, **change):
    return {
        "name": "planted", "seed": seed,
        "experiment": {"kind": "models", "minutes": 15.0, "models": {"among": AMONG, "rounds": ROUNDS, "block_s": 10.0}},
        "arrival": {"rate_per_s": 10.0},
        "traffic": {"chat": {"prompt_tokens": 200, "output_tokens": 20}},
        "slo": {"answered": {"metric": "e2e_sched", "quantile": 0.95, "max_ms": max_ms}},
        "simulated": {"profile": "tiny"},
    } | change  # fmt: skip


def base(folder, wanted):
    return Base(folder / "planted.toml", scenarios.parse(wanted, "planted"), (), folder)


@pytest.fixture(scope="module")
def answers(full_size, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    seeds = range(1, 21) if full_size else (1,)
    return [by_dry_run.conducted(tree(seed), folder / f"{seed}").answer for seed in seeds]


@pytest.mark.slow
def test_those_that_meet_the_objectives_are_named_and_the_cheapest_of_them(answers):
    for one in answers:
        assert one.facts["meet"] == ["quick", "cheap"]
        assert one.facts["cheapest"] == "cheap"
        assert one.result.outcome == "PASS"
        assert one.result.sentence == "quick and cheap meet every objective"
        cost, missed, *_ = one.result.details
        assert cost == "cheap costs least, 66.7% less than quick"
        assert missed.startswith("slow misses e2e_sched p95 < 1,500 ms: ")
        assert {row[0]: row[1].outcome for row in one.sections[0].tables[0].rows} == {
            "quick": "PASS", "cheap": "PASS", "slow": "FAIL",
        }  # fmt: skip


@pytest.mark.slow
def test_cost_is_that_of_the_tokens_at_the_price_of_each(answers):
    for one in answers:
        costs = {model["name"]: model["per_1000"] for model in one.facts["models"]}

        assert costs["cheap"][0] == pytest.approx(1000 * (200 + 5 * 20), rel=0.05)
        assert costs["quick"][0] == pytest.approx(3 * costs["cheap"][0], rel=0.01)
        assert costs["cheap"][1] <= costs["cheap"][0] <= costs["cheap"][2]


def test_all_models_of_a_round_have_the_same_arrivals_and_come_in_random_order(tmp_path):
    steps = next(ModelsPlanner(base(tmp_path, tree(1))).course())
    first, second = steps[:3], steps[3:]

    assert {step.seed for step in first} != {step.seed for step in second}
    assert [len({step.seed for step in one}) for one in (first, second)] == [1, 1]
    assert {step.name for step in first} == {f"round 1: {name}" for name in AMONG}
    for step in steps:
        overrides = dict(step.overrides)
        name = step.name.partition(": ")[2]
        assert overrides["traffic"]["chat"]["model"] == AMONG[name]["model"]
        assert overrides["simulated.profile"] == AMONG[name]["profile"]


def test_runs_that_do_not_count_and_time_that_ends_leave_no_answer(tmp_path):
    course = ModelsPlanner(base(tmp_path, tree(1))).course()
    steps = next(course)
    course.send([StepResult(step, "run", "INVALID", "", None) for step in steps])
    with pytest.raises(StopIteration) as end:
        course.throw(SpentError("experiment.minutes: over"))

    assert end.value.value.result.outcome == "INCONCLUSIVE"
    assert "over" in end.value.value.result.details[0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experiment": {"kind": "models"}}, r"models.among: expected two models or more"),
        ({"slo": {}}, r"slo: models are chosen by their objectives"),
        ({"arrival": {"process": "closed"}}, r"arrival.process: .* expected an open process"),
        (
            {
                "experiment": {
                    "kind": "models",
                    "models": {"among": {"a": {"model": "a"}, "b": {"model": "b"}}},
                }
            },
            r"the simulated endpoint answers alike for every model: expected a `profile` for each",
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        ModelsPlanner(base(tmp_path, tree(1, **change)))


# --- from blocks ---------------------------------------------------------------------------------------------------

ASKED = {"answered": {"metric": "e2e_sched", "quantile": 0.95, "max_ms": 1000.0}}


def block(number, name, median_ms, cost, no_cost=""):
    rng = np.random.default_rng(100 * number + len(name))
    ms = median_ms * rng.lognormal(0, 0.2, 100)
    waits = {"answered": Waits(ms, np.ones(100, bool), np.zeros(100, bool))}
    return ModelBlock(
        round=number,
        name=name,
        waits=waits,
        requests=100,
        answered=100,
        cost=cost,
        unit="units",
        no_cost=no_cost,
    )


def answer_to(**models):
    blocks = [
        block(number, name, *values) for number in range(8) for name, values in models.items()
    ]
    return answer(choice(list(models), blocks, ASKED))


def test_the_cheapest_that_meets_the_objectives_is_named_with_what_it_saves():
    found = answer_to(large=(300.0, 500.0), small=(400.0, 200.0), late=(2000.0, 100.0))

    assert found.facts["meet"] == ["large", "small"]
    assert (found.result.outcome, found.result.sentence) == (
        "PASS",
        "large and small meet every objective",
    )
    cost, late = found.result.details
    assert cost == "small costs least, 60.0% less than large"
    assert late.startswith("late misses e2e_sched p95 < 1,000 ms: ")
    (table,) = found.sections[0].tables
    assert {row[0]: row[2].text for row in table.rows} == {
        "large": "5,000",
        "small": "2,000",
        "late": "1,000",
    }
    assert table.note.endswith("Costs are in units.")


@pytest.mark.parametrize(("median_ms", "outcome"), [(2000.0, "FAIL"), (715.0, "INCONCLUSIVE")])
def test_where_none_meets_them_or_it_is_inconclusive_the_outcome_shows_it(median_ms, outcome):
    found = answer_to(one=(median_ms, 1.0), other=(2000.0, 1.0))

    assert found.result.outcome == outcome
    assert found.facts["cheapest"] is None
    assert found.result.sentence == "no model was shown to meet every objective"


def test_without_a_price_costs_are_unknown():
    found = answer_to(
        one=(300.0, None, "no price for one"), other=(300.0, None, "no price for other")
    )

    assert found.facts["cheapest"] is None
    assert found.result.sentence == "one and other meet every objective"
    assert found.sections[0].notes[0] == "Cost of one unknown: no price for one."


def test_who_left_was_offered_and_not_answered(mixed, tmp_path):
    run = mixed()
    for i in range(6):
        run.request(i * 100, [{"first": 100}])
    for ended in ("cancelled", "censored"):
        run.request(1000, [{"ended": ended}], ended=ended, winner=None)
    found = model_block(0, "small", RunReading(run.write(tmp_path / "run"), COMPARABLE), price=1.0)

    assert (found.answered, found.requests) == (6, 8)
