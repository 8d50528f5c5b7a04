"""A run computes each result once, when it is first asked for."""

import pytest

from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.quantiles import confidence

LOOKS = {"confidence": 0.99, "looks": 5, "requests": None}


def test_a_result_is_computed_once_also_where_another_asks_for_it(write):
    computed = []

    def length(run):
        computed.append("length")
        return run.steady.seconds

    def double(run):
        computed.append("double")
        return 2 * run.result(length)

    run = Run([write(n=100)])

    assert computed == []
    assert run.result(double) == 2 * run.result(length) > 0
    assert run.result(double) == run.result(double)
    assert computed == ["double", "length"]


def test_its_intervals_have_the_confidence_that_looks_leave(write):
    plain = Run([write("plain", n=50)])
    run = Run([write("looked", n=50)])
    run.record["precision"] = run.record["precision"] | LOOKS

    assert plain.result(lambda _: confidence()) == pytest.approx(0.95)
    assert run.result(lambda _: confidence()) == pytest.approx(0.99)
