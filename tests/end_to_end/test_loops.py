"""Sessions and closed loops with real workers: what follows an answer, its time, and where every request is counted."""

from __future__ import annotations

import signal

import pandas as pd
from end_to_end.running import QUICK, RunData, Start, assert_conserved

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


def test_sessions_go_on_a_think_time_after_each_answer_until_ctrl_c(start: Start) -> None:
    talk = ("turns_mean=4", "think_s=0.3", "think_sigma=0.0")
    running = start(
        "run", "streaming", "--workers=2", "--rate=10", "--duration=60", *QUICK,
        *(f"--set=traffic.chat.session.{setting}" for setting in talk),
    )  # fmt: skip
    running.wait_for_start(4)

    running.signal(signal.SIGINT)
    done = running.finish()

    assert done.code == 130
    counts = assert_conserved(done.run)
    assert done.run.facts["arrival"] == "partly open"
    assert counts["not_reached"] > counts["dispatched"], "the turns of nearly a minute"
    assert (counts["censored"], counts["lost"]) == (0, 0)
    rows = with_thinking(done.run)
    later = rows[rows.turn > 0]
    assert len(later) > 20
    assert (rows.session_id == rows.request_id - rows.turn).all()
    assert set(later.thought_ns) == {THINK_NS}
    assert (rows.dispatched_at_ns >= rows.scheduled_at_ns).all()
    asked = done.run.table("attempts").set_index("request_id").input_tokens
    grown = asked.loc[later.request_id].to_numpy() - asked.loc[later.request_id - 1].to_numpy()
    assert (grown >= 100).all(), "each turn carries the question of 100 tokens before it, and its answer"
    assert (done.report / "report.md").is_file()


def test_users_of_a_closed_loop_wait_for_their_answers(start: Start, tmp_path: object) -> None:
    scenario = f"{tmp_path}/users.toml"
    with open(scenario, "w", encoding="utf-8") as file:  # noqa: PTH123 - a path as the command line gets it
        file.write(
            '[target]\nurl = "simulated"\n[arrival]\nprocess = "closed"\n[arrival.closed]\nusers = 5\nthink_s = 0.3\n'
            "[stages]\nduration_s = 4\nwarmup_s = 0.5\n[traffic.chat]\noutput_tokens = 20\n"
        )

    done = start("run", scenario, "--workers=2", *QUICK[:2]).finish()

    assert done.code == 0, done.stdout + done.stderr
    counts = assert_conserved(done.run)
    assert done.run.facts["arrival"] == "closed"
    assert counts["scheduled"] == counts["dispatched"] > 20
    assert (counts["not_reached"], counts["client_drop"], counts["lost"]) == (0, 0, 0)
    assert sum(worker["leased"] for worker in done.run.facts["workers"]) == counts["scheduled"]
    rows = with_thinking(done.run)
    assert set(rows.request_id // TURNS) == set(range(5))
    assert set(rows.thought_ns.dropna()) == {THINK_NS}
    assert (rows.scheduled_at_ns < done.run.facts["start_at_ns"] + 4e9).all()
    first_left_out = rows.groupby("session_id").ended_at_ns.max() + THINK_NS - done.run.facts["start_at_ns"]
    assert (first_left_out >= 4e9).all(), "nobody stopped before the run was over"
