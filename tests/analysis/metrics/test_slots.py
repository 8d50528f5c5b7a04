"""Slots of a run: requests in flight at once, waits for a slot, and what a short run got done in which time."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders.dry_runs import dry_run_folder

from tailgauge_analysis.metrics.slots import slots
from tailgauge_analysis.metrics.throughput import whole_run
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.report import make

CHAT = {"chat": {"output_tokens": 30, "output_sigma": 0.8}}


def closed(users: int, requests: int | None, **stages):
    tree = {"process": "closed", "closed": {"users": users, "think_s": 0.0, "requests": requests}}
    return {"arrival": tree, "stages": stages, "traffic": CHAT}


def queue(limit: int | None, rate_per_s: float, **limits):
    arrival = {"rate_per_s": rate_per_s, "max_concurrency": limit}
    return {"arrival": arrival, "stages": {"duration_s": 10.0}, "limits": limits, "traffic": CHAT}


def slots_of(tree, tmp_path: Path):
    return slots(load([dry_run_folder(tree, tmp_path)]))


@pytest.mark.parametrize(("users", "requests"), [(8, 100), (1, 5), (8, 3)])
def test_a_number_of_requests_says_how_many_were_sent_and_in_flight(tmp_path, users, requests):
    known = slots_of(closed(users, requests), tmp_path)

    assert (known.limit, known.most) == (users, min(users, requests))
    assert (known.sent, known.planned, known.waited) == (requests, requests, None)
    assert 0.5 * known.most < known.mean <= known.most
    assert f"{requests} of {requests} requests sent" in known.sentence


def test_a_number_that_is_cut_short_says_how_many_were_sent(tmp_path):
    known = slots_of(closed(2, 1000, duration_s=5.0), tmp_path)

    assert known.planned == 1000
    assert 4 < known.sent < 100
    assert f"{known.sent} of 1,000 requests sent" in known.sentence


def test_a_queue_says_how_many_waited_and_where_latency_counts_from(tmp_path):
    known = slots_of(queue(2, 6.0), tmp_path)

    assert (known.most, known.planned) == (2, None)
    assert 0.2 < known.waited <= 1
    assert known.wait_p95_ms > 50
    assert "latency counts from the scheduled time" in known.sentence


def test_one_that_never_got_a_slot_waited_and_was_not_in_flight(tmp_path):
    known = slots_of(queue(1, 30.0, drain_s=1.0), tmp_path)

    assert known.most == 1
    assert known.sent < 60
    assert known.waited > 0.9


@pytest.mark.parametrize(
    "tree", [queue(None, 4.0), {"stages": {"duration_s": 5.0}, "traffic": CHAT}]
)
def test_an_open_loop_without_a_queue_has_no_slots(tmp_path, tree):
    assert slots_of(tree, tmp_path) is None


@pytest.mark.slow("tree1")
@pytest.mark.parametrize(("tree", "n"), [(closed(8, 20), 20), (queue(None, 40.0), 0)])
def test_rates_of_a_short_run_are_of_the_time_that_it_took(tmp_path, tree, n):
    tree["stages"] = {"duration_s": 0.2, "warmup_s": 0.0} if not n else tree["stages"]
    folder = dry_run_folder(tree, tmp_path)
    whole = whole_run(load([folder]))
    made = make([folder], tmp_path, 200, colours=False)

    assert whole.answered == n or not n
    assert whole.completed_per_s == pytest.approx(whole.answered / whole.seconds)
    assert f"{whole.completed_per_s:.3g} requests/s over {whole.seconds:.3g} s" in made.summary


def test_the_verdict_does_not_blame_the_client_for_waits_of_a_queue(tmp_path):
    made = make([dry_run_folder(queue(2, 8.0), tmp_path)], tmp_path, 200, colours=False)

    assert made.report.data["verdict"]["status"] == "VALID"
    assert "the client was late" not in made.summary.lower()
    assert "does not sustain this rate at 2 in flight" in made.summary
    assert (
        "requests wait for a slot at 2 in flight: find the rate that the target sustains"
        in made.summary
    )
    assert made.report.data["slots"]["limit"] == 2
