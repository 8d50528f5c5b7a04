"""The simulated endpoint's own lateness, from both sides of its bound; a target without a log, and an old log, say nothing."""

import numpy as np
import pytest

from tailgauge_analysis.run import Run
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.verdict import reasons

N = 1000


def judged(folder):
    return [
        reason for reason in reasons(CHECKS, Run([folder]).evidence) if reason.check == "endpoint"
    ]


def of_the_last(n, value):
    return np.where(np.arange(N) >= N - n, value, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "figure"),
    [
        ({"ttft_ms": 322.0, "endpoint_late_ms": 122.0}, "TTFT since sent p50"),
        ({"ttft_ms": 200.0, "endpoint_late_ms": 9.0}, None),  # 5% of 200 ms
        ({"ttft_ms": 200.0, "endpoint_late_ms": 11.0}, "TTFT since sent p50"),
        ({"ttft_ms": 10.0, "endpoint_late_ms": 1.5, "chunks": 1}, None),
        ({"ttft_ms": 10.0, "endpoint_late_ms": 2.5, "chunks": 1}, "TTFT since sent p50"),
        ({"ttft_ms": 200.0 + of_the_last(200, 80.0), "endpoint_late_ms": of_the_last(200, 80.0)}, "TTFT since sent p99"),
        ({"ttft_ms": 322.0, "endpoint_late_ms": -5.0}, None),  # clocks that are read a little apart
        ({"ttft_ms": 322.0, "endpoint_late_ms": 122.0, "server_log": False}, None),
    ],
)  # fmt: skip
def test_what_the_endpoint_moved_is_reported_and_is_neither_the_clients_nor_the_targets(
    write, changes, figure
):
    found = judged(write(n=N, **changes))

    assert [reason.verdict for reason in found] == (["DEGRADED"] if figure else [])
    for reason in found:
        assert reason.text.startswith("Endpoint saturated: ")
        assert f"which moved {figure} (" in reason.text


def test_a_figure_and_its_shift_are_in_the_sentence(write):
    (reason,) = judged(write(n=N, ttft_ms=322.0, endpoint_late_ms=122.0, chunks=1))

    assert "up to 122 ms after they were due" in reason.text
    assert "moved TTFT since sent p50 (322 ms) by 122 ms (16.1 ms is allowed)" in reason.text
