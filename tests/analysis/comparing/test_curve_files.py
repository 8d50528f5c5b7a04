"""What other programs get of a load curve: numbers under names with units."""

import io

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


def test_the_table_has_a_row_for_each_load_and_the_units_in_its_names():
    of = curve()
    rows, point = table(of), of.points[3]

    assert list(rows.offered_requests_per_s) == [one.load for one in of.points]
    row = rows.loc[3]
    assert row.ttft_p95_ms == point.latency["ttft"]["p95"].value
    assert row.output_low_tokens_per_s == point.output_tokens_per_s.low
    assert (row.requests, row.duration_s, row.runs) == (
        point.requests,
        point.seconds,
        " ".join(point.runs),
    )
    units = ("_per_s", "_s", "_share", "_ms", "_per_call")
    assert [name for name in rows if not name.endswith(units)] == [
        "requests",
        "stable",
        "meets",
        "runs",
    ]
    assert not [
        name
        for name in rows.columns
        if rows[name].dtype == object and name not in {"meets", "runs"}
    ]


def test_by_concurrency_the_load_is_requests_in_flight(by_concurrency):
    assert list(table(by_concurrency).concurrency) == [1, 2, 4, 8, 16, 32, 64]


def test_an_unknown_value_is_an_empty_cell():
    rows = table(with_latency(curve(), -1, "p99", Ends(float("inf"), 9000.0, float("inf"))))

    assert rows.ttft_p99_ms.isna().tolist() == [False] * 8 + [True]
    assert rows.ttft_p99_low_ms.iloc[-1] == 9000
    assert rows.backlog_growth_requests_per_s.dropna().tolist() == [5.0]
