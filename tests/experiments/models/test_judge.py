"""The numbers of the model choice: outcomes, costs, what is said where none meets the objectives or costs are unknown."""

import numpy as np
import pytest

from tailgauge.errors import Exit
from tailgauge.experiments.models import report
from tailgauge.experiments.models.block import Block
from tailgauge.experiments.models.judge import choice

ASKED = {"answered": {"metric": "e2e_sched", "quantile": 0.95, "max_ms": 1000.0}}
ROUNDS = 8


def block(name, number, median_ms, cost, why=""):
    rng = np.random.default_rng(100 * number + len(name))
    ms = median_ms * rng.lognormal(0, 0.2, 100)
    return Block(name, {"answered": ms}, ms, 100, 100, cost, "units", why)


def told(**models):
    rounds = [{name: block(name, number, *of) for name, of in models.items()} for number in range(ROUNDS)]
    return report.answer(choice(list(models), rounds, ASKED), ())


def test_the_cheapest_that_meets_the_objectives_is_named_with_what_it_saves():
    answer = told(large=(300.0, 500.0), small=(400.0, 200.0), late=(2000.0, 100.0))

    assert answer.facts["meet"] == ["large", "small"]
    assert answer.sentence.startswith(
        "large and small meet every objective; small costs least, 2,000 units for 1,000 requests"
    )
    assert "60.0% less than large;" in answer.sentence
    assert "late does not (late: p95 of end to end since scheduled" in answer.sentence
    assert answer.exit_code == Exit.OK


@pytest.mark.parametrize(("median_ms", "code"), [(2000.0, Exit.SLO_FAILED), (715.0, Exit.INVALID)])
def test_where_none_meets_them_the_exit_code_says_so_and_where_it_is_open_too(median_ms, code):
    answer = told(one=(median_ms, 1.0), other=(2000.0, 1.0))

    assert answer.exit_code == code
    assert answer.facts["cheapest"] is None
    assert answer.sentence.startswith("No model was shown to meet every objective")


def test_without_a_price_nothing_is_said_of_costs():
    answer = told(one=(300.0, None, "no price for one"), other=(300.0, None, "no price for other"))

    assert answer.facts["cheapest"] is None
    assert answer.sentence == "one and other meet every objective."
    assert answer.remarks[0] == "What one costs is not told: no price for one."


def test_nothing_at_all_is_no_answer():
    assert report.answer([], ()).exit_code == Exit.INVALID
