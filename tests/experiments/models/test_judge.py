"""The numbers of the model choice: outcomes, costs, the answer if none meets the objectives or costs are unknown."""

import numpy as np
import pytest

from tailgauge.experiments.course import RunReading
from tailgauge.experiments.models import judge, report
from tailgauge.experiments.models.judge import ModelBlock, choice
from tailgauge_analysis.stats.survival import Waits
from tailgauge_analysis.verdict.checks import COMPARABLE

ASKED = {"answered": {"metric": "e2e_sched", "quantile": 0.95, "max_ms": 1000.0}}
ROUNDS = 8


def block(name, number, median_ms, cost, why=""):
    rng = np.random.default_rng(100 * number + len(name))
    ms = median_ms * rng.lognormal(0, 0.2, 100)
    waits = Waits(ms, np.ones(100, bool), np.zeros(100, bool))
    return ModelBlock(name, {"answered": waits}, waits, 100, 100, cost, "units", why)


def answer_to(**models):
    rounds = [{name: block(name, number, *of) for name, of in models.items()} for number in range(ROUNDS)]
    return report.answer(choice(list(models), rounds, ASKED))


def test_the_cheapest_that_meets_the_objectives_is_named_with_what_it_saves():
    answer = answer_to(large=(300.0, 500.0), small=(400.0, 200.0), late=(2000.0, 100.0))

    assert answer.facts["meet"] == ["large", "small"]
    assert (answer.result.outcome, answer.result.sentence) == ("PASS", "large and small meet every objective")
    cost, late = answer.result.details
    assert cost == "small costs least, 60.0% less than large"
    assert late.startswith("late misses e2e_sched p95 < 1,000 ms: ")
    (table,) = answer.sections[0].tables
    assert {row[0]: row[2].text for row in table.rows} == {
        "large": "5,000",
        "small": "2,000",
        "late": "1,000",
    }
    assert table.note.endswith("Cost: in units.")


@pytest.mark.parametrize(("median_ms", "outcome"), [(2000.0, "FAIL"), (715.0, "INCONCLUSIVE")])
def test_where_none_meets_them_or_it_is_inconclusive_the_outcome_shows_it(median_ms, outcome):
    answer = answer_to(one=(median_ms, 1.0), other=(2000.0, 1.0))

    assert answer.result.outcome == outcome
    assert answer.facts["cheapest"] is None
    assert answer.result.sentence == "no model was shown to meet every objective"


def test_without_a_price_costs_are_unknown():
    answer = answer_to(one=(300.0, None, "no price for one"), other=(300.0, None, "no price for other"))

    assert answer.facts["cheapest"] is None
    assert answer.result.sentence == "one and other meet every objective"
    assert answer.sections[0].notes[0] == "Cost of one unknown: no price for one."


def test_nothing_at_all_is_no_answer():
    assert report.answer([]).result.outcome == "INCONCLUSIVE"


def test_who_left_was_offered_and_not_answered(mixed, tmp_path):
    run = mixed()
    for i in range(6):
        run.request(i * 100, [{"first": 100}])
    for ended in ("cancelled", "censored"):
        run.request(1000, [{"ended": ended}], ended=ended, winner=None)
    found = judge.block("small", 1.0, RunReading(run.write(tmp_path / "run"), COMPARABLE))

    assert (found.answered, found.requests) == (6, 8)
