"""Sessions and closed loops with real workers: what follows an answer, its time, and where every request is counted."""

from __future__ import annotations

import json
import signal
from itertools import accumulate

import pandas as pd
import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import NO_SDK, QUICK, Finished, Running
from starting.programs import TAILGAUGE

pytestmark = pytest.mark.slow

TURNS = 65536
THINK_NS = 300_000_000


def with_thinking(run: RunData) -> pd.DataFrame:
    """Request rows, with the time since the end of the turn before in the same session."""
    rows = run.requests().sort_values("request_id")
    before = rows.set_index("request_id").ended_at_ns
    return rows.assign(
        turn=rows.request_id % TURNS,
        thought_ns=rows.scheduled_at_ns - (rows.request_id - 1).map(before),
    )


USERS = """
[target]
url = "simulated"
[arrival]
process = "closed"
[arrival.closed]
users = 5
think_s = 0.3
[stages]
duration_s = 4
warmup_s = 0.5
[traffic.chat]
output_tokens = 20
"""
COUNTED = """
[target]
url = "simulated"
[arrival]
process = "closed"
closed = { users = 5, think_s = 0.0, requests = 40 }
[traffic.chat]
output_tokens = 5
output_sigma = 0.5
"""
TALK = """
[target]
url = "simulated"
[arrival]
rate_per_s = 10
[stages]
duration_s = 60
[traffic.chat]
prompt_tokens = 100
output_tokens = 20
session = { turns_mean = 4, think_s = 0.3, think_sigma = 0.0 }
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Closed loops to their ends, then sessions until Ctrl-C, by the same two workers."""
    folder = tmp_path_factory.mktemp("loops")
    (folder / "users.toml").write_text(USERS)
    (folder / "counted.toml").write_text(COUNTED)
    (folder / "talk.toml").write_text(TALK)
    line = [
        TAILGAUGE,
        "run",
        "users.toml",
        "counted.toml",
        "talk.toml",
        "--workers=2",
        "--json",
        "--out=out",
        *QUICK[:2],
        *NO_SDK,
    ]
    running = Running(line, folder / "out", {}, folder)
    running.wait_for_start(4, timeout_s=90, scenario="talk")
    running.signal(signal.SIGINT)
    return running.finish()


def test_sessions_go_on_a_think_time_after_each_answer_until_ctrl_c(done):
    assert done.code == 130
    run = done.run_of("talk")
    counts = assert_conserved(run)
    assert run.facts["arrival"] == "partly open"
    assert counts["not_reached"] > counts["dispatched"], "the turns of nearly a minute"
    assert (counts["censored"], counts["lost"]) == (0, 0)
    rows = with_thinking(run)
    later = rows[rows.turn > 0]
    assert len(later) > 20
    assert (rows.session_id == rows.request_id - rows.turn).all()
    assert set(later.thought_ns) == {THINK_NS}
    assert (rows.dispatched_at_ns >= rows.scheduled_at_ns).all()
    asked = run.table("attempts").set_index("request_id").input_tokens
    grown = asked.loc[later.request_id].to_numpy() - asked.loc[later.request_id - 1].to_numpy()
    assert (grown >= 100).all(), (
        "each turn carries the question of 100 tokens before it, and its answer"
    )
    assert (done.out / "reports" / run.path.name / "report.md").is_file()


def test_users_of_a_closed_loop_wait_for_their_answers(done):
    run = done.run_of("users")
    summary = json.loads(done.stdout.splitlines()[0])
    assert summary["exit_code"] in {0, 3, 5}, done.stderr  # the verdict depends on the machine
    counts = assert_conserved(run)
    assert run.facts["arrival"] == "closed"
    assert counts["scheduled"] == counts["dispatched"] > 20
    assert (counts["not_reached"], counts["client_drop"], counts["lost"]) == (0, 0, 0)
    assert sum(worker["leased"] for worker in run.facts["workers"]) == counts["scheduled"]
    rows = with_thinking(run)
    assert set(rows.request_id // TURNS) == set(range(5))
    assert set(rows.thought_ns.dropna()) == {THINK_NS}
    assert (rows.scheduled_at_ns < run.facts["start_at_ns"] + 4e9).all()
    first_left_out = (
        rows.groupby("session_id").ended_at_ns.max() + THINK_NS - run.facts["start_at_ns"]
    )
    assert (first_left_out >= 4e9).all(), "nobody stopped before the run was over"


def most_at_once(begun_ns: pd.Series, ended_ns: pd.Series) -> int:
    """The most intervals that overlap; one that begins when another ends does not overlap it."""
    changes = sorted([(at_ns, 1) for at_ns in begun_ns] + [(at_ns, -1) for at_ns in ended_ns])
    return max(accumulate(change for _, change in changes))


def test_a_number_of_requests_is_sent_exactly_by_all_workers_and_the_run_ends(done):
    run = done.run_of("counted")
    counts = assert_conserved(run)
    calls = run.attempts()
    served = run.table("target")
    served = served[served.request_id >= 0]

    assert (run.facts["state"], counts["scheduled"], counts["dispatched"]) == ("complete", 40, 40)
    assert (
        sorted(calls.request_id // TURNS) == sorted(served.request_id // TURNS) == list(range(40))
    )
    assert [worker["leased"] for worker in run.facts["workers"]] == [20, 20]
    assert most_at_once(served.received_at_ns, served.ended_at_ns) <= 5
    assert set(run.requests().stage) == {"steady"}
    assert (run.facts["ended_at_ns"] - run.facts["start_at_ns"]) / 1e9 < 60
