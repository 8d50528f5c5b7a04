"""What other programs get of a load curve: numbers under names with units, and MLPerf's step function with its departures."""

import io
import json

import pandas as pd
import pytest
from analysis.comparing.planted_curves import curve, with_latency

from tailgauge_analysis.comparing.curve import Ends
from tailgauge_analysis.comparing.curve_files import files


@pytest.fixture(scope="module")
def by_concurrency():
    return curve(by="concurrency", loads=(1, 2, 4, 8, 16, 32, 64), today=None, gpus=4.0)


def table(of):
    return pd.read_csv(io.StringIO(dict(files(of))["curve.csv"]))


def mlperf(of):
    return json.loads(dict(files(of))["curve_mlperf.json"])


def test_the_table_has_a_row_for_each_load_and_the_units_in_its_names():
    of = curve()
    rows, point = table(of), of.points[3]

    assert list(rows.offered_requests_per_s) == [one.load for one in of.points]
    row = rows.loc[3]
    assert row.ttft_p95_ms == point.latency["ttft"]["p95"].value
    assert row.output_low_tokens_per_s == point.output_tokens_per_s.low
    assert (row.requests, row.duration_s, row.runs) == (point.requests, point.seconds, " ".join(point.runs))
    units = ("_per_s", "_s", "_share", "_ms", "_per_call")
    assert [name for name in rows if not name.endswith(units)] == ["requests", "stable", "meets", "runs"]
    assert not [name for name in rows.columns if rows[name].dtype == object and name not in {"meets", "runs"}]


def test_by_concurrency_the_load_is_requests_in_flight(by_concurrency):
    assert list(table(by_concurrency).concurrency) == [1, 2, 4, 8, 16, 32, 64]


def test_an_unknown_value_is_an_empty_cell():
    rows = table(with_latency(curve(), -1, "p99", Ends(float("inf"), 9000.0, float("inf"))))

    assert rows.ttft_p99_ms.isna().tolist() == [False] * 8 + [True]
    assert rows.ttft_p99_low_ms.iloc[-1] == 9000
    assert rows.backlog_growth_requests_per_s.dropna().tolist() == [5.0]


def test_the_step_function_is_system_against_user_tokens(by_concurrency):
    tree, point = mlperf(by_concurrency), by_concurrency.points[2]
    step, tpot = tree["points"][2], point.latency["tpot"]["p90"]

    assert (step["concurrency"], step["system_tps"]) == (4, point.output_tokens_per_s.value)
    assert step["tps_per_user"] == pytest.approx(1000 / tpot.value)
    assert step["tps_per_user_low"] < step["tps_per_user"] < step["tps_per_user_high"]
    assert (step["tpot_p90_ms"], step["ttft_p90_ms"]) == (tpot.value, point.latency["ttft"]["p90"].value)
    assert not tree["is_mlperf_result"]
    assert not any("rate" in text for text in tree["departs_from_rules"])
    assert "7 points shorter than 600 s, or 1,200 s above a concurrency of 32" in tree["departs_from_rules"]


def test_a_curve_by_rate_says_that_it_is_none_of_mlperf():
    tree = mlperf(curve())

    assert tree["departs_from_rules"][0].startswith("measured at fixed rates, not at fixed concurrency")
    assert all("concurrency" not in one for one in tree["points"])


def test_without_tpot_the_step_function_has_no_user_tokens():
    of = curve(by="concurrency", loads=(1, 2))
    for point in of.points:
        del point.latency["tpot"]

    assert [one["tps_per_user"] for one in mlperf(of)["points"]] == [None, None]
    assert "2 points of at least 7" in mlperf(of)["departs_from_rules"]
