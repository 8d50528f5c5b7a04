"""A public trace on the wire: its first rows at their times, with their sizes, and the books on it in run.json.

Azure LLM inference 2023, conversation (CC-BY-4.0, Patel et al.).
"""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pandas as pd
import pytest
from run_folders.run_data import assert_conserved
from starting.command import QUICK

pytestmark = pytest.mark.alone

SAMPLE = "azure2023_conv_head2000.csv"
RATE = 50.0


def seconds(stamp: str) -> float:
    hours, minutes, rest = stamp.partition(" ")[2].split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


def lags(health: pd.DataFrame, at_ns: Any) -> Any:
    """How late a bare timer of the workers was about each time, in ms: what the machine took, and not the schedule."""
    near = np.abs(health.at_ns.to_numpy() - 5e8 - at_ns[:, None]) <= 1.5e9
    return np.where(near, health.loop_lag_max_ns.to_numpy(), 0).max(axis=1) / 1e6


def test_the_first_rows_of_a_trace_are_sent_at_their_times(start, checkout, full_size):
    path = checkout.parent / "shared" / "traces" / SAMPLE
    if not full_size:
        pytest.skip("ten seconds in real time: at full size")
    if not path.is_file():
        pytest.skip("the public samples are not beside the checkout")
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    at_s = np.array([seconds(row["TIMESTAMP"]) for row in rows])
    at_s = (at_s - at_s[0]) / (
        (at_s[-1] - at_s[0]) / (len(rows) - 1) * RATE
    )  # to 50 a second in the mean
    duration_s = 13
    count = int((at_s < duration_s).sum())

    file_set = (f"--set=arrival.trace.file={path}", "--set=simulated.ttft_ms=20", QUICK[1])
    options = (f"--rate={RATE}", f"--duration={duration_s}", "--workers=2", *file_set)
    run = start("run", "trace", *options).finish().run
    sent = run.requests().sort_values("request_id")
    late_ms = (sent.dispatched_at_ns - sent.scheduled_at_ns).to_numpy() / 1e6
    lag_ms = lags(run.table("health"), sent.dispatched_at_ns.to_numpy())

    assert count >= 500
    arrival = (
        sent.request_id // 65_536
    ).tolist()  # a hiccup at the very end leaves the last ones not reached
    assert arrival == list(range(count - assert_conserved(run)["not_reached"]))
    assert (
        np.abs((sent.scheduled_at_ns - run.facts["start_at_ns"]) / 1e9 - at_s[arrival]).max() < 1e-6
    )
    assert sent.asked_prompt_tokens.tolist() == [int(rows[i]["ContextTokens"]) for i in arrival]
    assert sent.asked_output_tokens.tolist() == [int(rows[i]["GeneratedTokens"]) for i in arrival]
    assert run.facts["trace"]["rows_read"] == len(rows)
    assert run.facts["trace"]["dropped"] == {"beyond the duration": len(rows) - count}
    assert (late_ms >= 0).all()
    print(
        f"{len(sent)} arrivals, late at p99 by {np.quantile(late_ms, 0.99):.2f} ms, {np.quantile(late_ms - lag_ms, 0.99):.2f} beyond the timer's"
    )
    assert np.quantile(late_ms - lag_ms, 0.99) <= 5
