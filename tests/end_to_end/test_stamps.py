"""The kernel keeps the time: stamps hold while the worker's hub is blocked, and intervals contain the truth.

The truth is the simulated endpoint's own CLOCK_MONOTONIC, taken right before each write; on one machine it is the
worker's clock too.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from end_to_end.running import LOCUST, RunData, Start

HERE = Path(__file__).parent


def with_truth(run: RunData) -> pd.DataFrame:
    """Chunk rows beside the time at which the endpoint sent each of them."""
    truth = run.table("target").explode("chunk_sent_at_ns")
    truth["chunk_index"] = truth.groupby("request_id").cumcount()
    truth["sent_ns"] = truth.chunk_sent_at_ns.astype("int64")
    keys = ["request_id", "leg", "attempt", "chunk_index"]
    return run.table("chunks").merge(truth[[*keys, "sent_ns"]], on=keys, validate="one_to_one")


def test_stamps_hold_while_the_hub_is_blocked(start: Start) -> None:
    steady = ("--set=arrival.rate_per_s=10", "--set=simulated.ttft_ms=150", "--set=simulated.chunk_gap_ms=40")
    sets = [item for s in steady for item in ("--set", s.removeprefix("--set="))]
    line = ("-f", str(HERE / "stalling.py"), "--headless", "-t", "12s", "--scenario", "streaming", *sets)

    done = start(*line, program=LOCUST).finish()

    chunks = with_truth(done.run)
    exact, interval = chunks[chunks.low_at_ns.isna()], chunks[chunks.low_at_ns.notna()]
    error_ms = (exact.arrived_at_ns - exact.sent_ns) / 1e6
    lag_ms = chunks.lag_ns / 1e6
    print(f"{len(exact)} exact, p99 {np.quantile(error_ms.abs(), 0.99):.3f} ms; {len(interval)} intervals")
    assert len(exact) > 500
    assert np.quantile(error_ms.abs(), 0.99) < 2.0
    assert np.quantile(lag_ms, 0.95) > 30, "our own clock is off by the stall"
    assert len(interval) > 50, "reads after a stall hold several chunks"
    contained = (interval.sent_ns > interval.low_at_ns) & (interval.sent_ns <= interval.arrived_at_ns)
    assert contained.mean() >= 0.99
    verdict = done.run.facts["verdict"]
    assert verdict["verdict"] in {"DEGRADED", "INVALID"}


def test_without_a_stall_most_reads_hold_one_chunk_and_every_time_is_in_order(start: Start) -> None:
    done = start("run", "streaming", "--rate=20", "--duration=4", "--set=simulated.chunk_gap_ms=20").finish()

    chunks, attempts = with_truth(done.run), done.run.table("attempts")
    assert (chunks.arrived_at_ns >= chunks.sent_ns).mean() > 0.999, "nothing arrives before it was sent"
    assert (chunks.lag_ns >= 0).all()
    assert chunks.low_at_ns.isna().mean() > 0.5
    order = ["scheduled_at_ns", "dispatched_at_ns", "sent_at_ns", "first_byte_at_ns", "headers_at_ns"]
    order += [
        "first_event_at_ns",
        "first_content_at_ns",
        "last_content_at_ns",
        "stopped_at_ns",
        "ended_at_ns",
    ]
    for earlier, later in pairwise(order):
        assert (attempts[later] >= attempts[earlier]).all(), (earlier, later)
    assert (attempts.chunks == attempts.output_tokens).all()
    assert (attempts.stamps == "kernel").all()
