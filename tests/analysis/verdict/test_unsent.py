"""Load that was never sent although the run lasted to its end: a reason with its share, its cause and what to do."""

import pytest
from run_folders.run_data import edited_run

from tailgauge.errors import Exit
from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.result import exit_code, result

N = 400  # requests that were sent, 20 a second, by two workers


def judged(folder):
    found = Run([folder])
    return found.verdict, {reason.check: reason for reason in found.reasons}, found


@pytest.fixture
def planted(write):
    """A run with so many requests more in its plan, and changes of run.json and of an entry of its workers."""

    def plant(not_reached, worker=None, warmup_s=0.0, **facts):
        folder = write(n=N, rate_per_s=20, chunks=1, warmup_s=warmup_s)
        with edited_run(folder) as run:
            run["conservation"]["scheduled"] += not_reached
            run["conservation"]["not_reached"] += not_reached
            run.update(facts)
            if worker is not None:
                entry = run["workers"][0]
                counts = entry["counts"] | worker.pop("counts", {})
                entry |= {
                    "leased": counts["dispatched"] + worker.pop("held"),
                    "counts": counts,
                    **worker,
                }
        return folder

    return plant


FROZEN = {
    "not_leased": [{"from_s": 10.0, "to_s": 24.9, "requests": 140}],
    "master_stalled": [{"from_s": 0.4, "to_s": 24.4}],
}


def test_a_master_that_was_stalled_is_named_with_the_seconds_and_the_share(planted):
    word, reasons, found = judged(planted(140, **FROZEN))

    assert (word, list(reasons), exit_code(found, result(found))) == (
        INVALID,
        ["unsent"],
        Exit.INVALID,
    )
    assert reasons["unsent"].text == (
        "140 requests (25.9% of scheduled) were never sent: the load was lower than planned. "
        "No worker got 140 requests due between 10.0 and 24.9 s: the master was stalled from 00:00 to 00:24."
    )
    assert reasons["unsent"].advice.startswith("Run the master where nothing suspends it")
    assert found.evidence.conservation.unsent == 140


def test_where_nothing_of_the_steady_stage_was_sent_the_cause_comes_first(planted):
    word, reasons, _ = judged(planted(140, warmup_s=30.0, **FROZEN))

    assert (word, list(reasons)) == (INVALID, ["unsent", "measured"])
    assert (
        reasons["measured"].text == "Nothing to measure: no request of the steady stage was sent."
    )
    assert reasons["measured"].advice == "First let the planned load be sent."


def test_a_closed_loop_that_a_limit_ends_in_its_warm_up_gets_the_advice_to_send_a_number(planted):
    _, reasons, _ = judged(planted(0, warmup_s=30.0, state="guarded", arrival="closed"))

    assert (
        reasons["measured"].advice
        == "Without a warm-up, --requests N sends exactly N and measures them all."
    )


@pytest.mark.parametrize(("unsent", "verdict"), [(1, DEGRADED), (4, DEGRADED), (5, INVALID)])
def test_up_to_one_percent_degrades_and_more_is_invalid(planted, unsent, verdict):
    assert judged(planted(unsent))[:1] == (verdict,)


def test_a_worker_that_could_not_send_in_time_is_no_lost_row(planted):
    due = [{"from_s": 9.1, "to_s": 15.0, "requests": 293}]
    worker = {"held": 293, "missing": due, "counts": {"not_reached": 293}}
    word, reasons, found = judged(planted(293, worker))

    assert (word, list(reasons)) == (INVALID, ["unsent"])
    assert (
        "Worker 0 held 293 requests due between 9.1 and 15.0 s, and could not send them in time."
        in (reasons["unsent"].text)
    )
    assert reasons["unsent"].advice == "Lower the rate.", "no core was full"
    assert (found.evidence.conservation.lost, found.evidence.conservation.workers[0].lost) == (0, 0)


@pytest.mark.slow("changes1")
@pytest.mark.parametrize(
    ("changes", "text", "advice"),
    [
        ({"why": "this worker was stopped"}, "this worker was stopped", "See the worker's log"),
        (
            {"silent": [{"from_s": 5.0, "to_s": 16.0}]},
            "it was silent from 00:05 to 00:16",
            "See the network",
        ),
    ],
)
def test_a_worker_that_left_or_was_away_is_named_with_its_cause(planted, changes, text, advice):
    worker = {"held": 60, "missing": [{"from_s": 5.0, "to_s": 9.9, "requests": 60}], **changes}
    word, reasons, _ = judged(planted(60, worker))

    assert (word, list(reasons)) == (INVALID, ["unsent"])
    assert f"Worker 0 held 60 requests due between 5.0 and 9.9 s: {text}." in reasons["unsent"].text
    assert reasons["unsent"].advice.startswith(advice)


@pytest.mark.slow("silent1", "silent2", "silent3")
@pytest.mark.parametrize(
    ("silent", "stalled", "who"),
    [
        (
            [(5.0, 16.0)],
            [],
            "the link between the master and worker 0 was away from 00:05 to 00:16",
        ),
        (
            [(5.0, 16.0)],
            [(1.0, 2.0)],
            "the link between the master and worker 0 was away from 00:05 to 00:16",
        ),
        ([], [(5.0, 16.0)], "the master was stalled from 00:05 to 00:16"),
        ([], [], "the link between the master and worker 0 was away"),
    ],
)
def test_who_was_away_while_a_slice_became_overdue_is_named(planted, silent, stalled, who):
    spans = [
        [{"from_s": since, "to_s": until} for since, until in some] for some in (silent, stalled)
    ]
    counts = {"not_reached": 60, "came_late": 41}
    worker = {
        "held": 60,
        "missing": [{"from_s": 5.0, "to_s": 9.9, "requests": 60}],
        "counts": counts,
        "silent": spans[0],
    }
    word, reasons, _ = judged(planted(60, worker, master_stalled=spans[1]))

    assert (word, list(reasons)) == (INVALID, ["unsent"])
    text = (
        f"Worker 0 held 60 requests due between 5.0 and 9.9 s, of which 41 arrived too late: {who}."
    )
    assert text in reasons["unsent"].text


def test_the_largest_cause_comes_first_and_has_its_advice(planted):
    folder = planted(70, {"held": 10, "missing": [{"from_s": 9.0, "to_s": 9.9, "requests": 10}]})
    with edited_run(folder) as run:
        run["workers"][1]["silent"] = [{"from_s": 4.0, "to_s": 12.0}]
        run["not_leased"] = [{"from_s": 10.0, "to_s": 11.9, "requests": 60}]
    reason = judged(folder)[1]["unsent"]

    assert (
        "No worker got 60 requests due between 10.0 and 11.9 s: worker 1 was silent from 00:04 to 00:12. Worker 0 held 10"
        in (reason.text)
    )
    assert reason.advice.startswith("See the network")


@pytest.mark.slow
def test_turns_that_no_session_came_to_were_never_due(planted):
    """Sessions end with a failure, or are still thinking at the end of the run."""
    sessions = {"arrival": "partly open"}
    all_of_them = {"held": 90, "counts": {"not_reached": 90, "not_due": 90}}
    others = {"held": 90, "counts": {"not_reached": 90, "not_due": 40}}

    for counts, verdict, unsent in ((all_of_them, VALID, 0), (others, INVALID, 50)):
        folder = planted(90, dict(counts), **sessions)
        with edited_run(folder) as run:
            run["workers"][1]["counts"]["not_due"] = 0
        word, _, found = judged(folder)
        assert (word, found.evidence.conservation.unsent) == (verdict, unsent)


@pytest.mark.slow("guarded", "cut_short", "stopped")
@pytest.mark.parametrize("state", ["interrupted", "guarded", "cut_short", "stopped"])
def test_a_run_that_was_cut_short_says_so_and_nothing_else(planted, state):
    word, reasons, _ = judged(planted(90, state=state))

    assert (word, list(reasons)) == (DEGRADED, ["finished"])


def test_slices_that_never_arrived_are_not_rows_that_were_not_transferred(
    planted, losing, tmp_path
):
    """A partition: the worker sent what it held and could not transfer the rows; slices of the master did not reach it."""
    folder = planted(0)
    away = tmp_path / "away"
    n, since, until = losing.lose(folder, 0, (1,), away, ended=True)
    with edited_run(folder) as run:
        missing = [{"from_s": since, "to_s": until + 5, "requests": n + 100}]
        run["workers"][0] |= {"state": "drained", "rows": {"requests": 200}, "leased": 300}
        run["workers"][0] |= {"why": "lost connection", "missing": missing}
        run["conservation"] |= {"scheduled": N + 100, "not_reached": 100}

    alone, both = Run([folder]), Run([folder, away])

    for found, left, there in ((alone, n, 0), (both, 0, n)):
        worker = found.evidence.conservation.workers[0]
        assert (worker.lost, worker.found, worker.unsent) == (left, there, 100)
        assert exit_code(found, result(found)) == Exit.INVALID
    assert {"lost", "unsent"} <= {reason.check for reason in alone.reasons}
    assert "lost" not in [reason.check for reason in both.reasons]
