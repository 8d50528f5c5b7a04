"""Each check of the client from both sides of its bound, and what it says to do."""

import re

import numpy as np
import pytest
from run_folders.run_data import edited_run

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.run import Run
from tailgauge_analysis.verdict.checks import CHECKS
from tailgauge_analysis.verdict.verdict import reasons, worst

N = 1000  # 20 s on two workers, from 1 s on steady: 38 seconds of workers, 950 requests
MS = 1_000_000
SECONDS = 21


def judged(folder):
    return reasons(CHECKS, Run([folder]).evidence)


def late(seconds, lag_ms=80.0):
    """Health rows whose loop was late in so many of the steady seconds, with interval stamps in all."""
    column = np.where(
        (np.arange(SECONDS) >= 1) & (np.arange(SECONDS) <= seconds), int(lag_ms * MS), 0
    )
    return {"health": {"loop_lag_max_ns": column, "chunk_intervals": np.arange(1, SECONDS + 1)}}


def some(n, value, usual=0.03):
    """A value for the last `n` requests, the usual one for the others."""
    return np.where(np.arange(N) >= N - n, value, usual)


def cpu(seconds, value):
    return np.where((np.arange(SECONDS) >= 1) & (np.arange(SECONDS) <= seconds), value, 0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "word", "changes"),
    [
        ("client_error", VALID, {"delay_ms": some(600, 9.0)}),  # 5% of 200 ms and more
        ("client_error", DEGRADED, {"delay_ms": some(600, 12.0)}),
        ("client_error", INVALID, {"delay_ms": some(600, 23.0)}),
        ("client_error", VALID, {"delay_ms": some(600, 0.4), "ttft_ms": 1.0 + some(600, 0.4)}),  # 0.5 ms are nothing
        ("client_error", VALID, {"delay_ms": some(2, 150.0)}),  # of no figure
        ("client_error", INVALID, {"delay_ms": some(40, 150.0), "ttft_ms": 200.0 + some(40, 150.0)}),
        ("client_error", VALID, late(19)),  # late, and no figure moved
    ],
)  # fmt: skip
def test_a_check_falls_at_its_bound(write, check, word, changes):
    against = judged(write(n=N, chunks=1, **changes))

    assert (worst(against), [reason.check for reason in against]) == (
        word,
        [check] if word != VALID else [],
    )
    for reason in against:
        assert reason.text.endswith(".")
        assert reason.advice.endswith(".")


def test_what_the_client_moved_is_named_by_how_much_and_what_it_left_alone(write):
    """The last 40 requests were sent late by 150 ms."""
    delay_ms = some(40, 150.0)
    (reason,) = judged(write(n=N, chunks=1, delay_ms=delay_ms, ttft_ms=200.0 + delay_ms))

    assert reason.text == (
        "Do not use TTFT since scheduled p99 and end to end since scheduled p99: the client may have moved them by up to 150 ms by sending late."
        " The client did not move counts, rates, TTFT since sent and end to end since sent."
    )


def test_a_figure_is_named_once(write):
    """Of completed and of all offered requests it has one name and two values."""
    failed = dict.fromkeys(range(0, N, 10), "server_error")
    delay_ms = some(600, 150.0)
    (reason,) = judged(
        write(n=N, chunks=1, ended=failed, delay_ms=delay_ms, ttft_ms=200.0 + delay_ms)
    )
    named = re.findall(r"(TTFT since scheduled) ((?:p\d+(?:, )?)+)", reason.text)
    percentiles = [label for _, labels in named for label in labels.split(", ")]

    assert len(percentiles) == len(set(percentiles)) > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("slo", "word"),
    [
        ({}, INVALID),  # what such a run is asked for
        ("error_rate < 0.01", INVALID),
        ("ttft_sched p99 < 300ms", INVALID),  # 200 or 350 ms
        (
            "ttft_sched p99 < 1000ms",
            DEGRADED,
        ),  # met, however much was the client's
        (
            "ttft_sched p99 < 40ms",
            DEGRADED,
        ),  # missed without the client, too
        ("ttft_sched p50 < 300ms", DEGRADED),
        ("chunk_gap p99 < 300ms", DEGRADED),
        ({"metric": "ttft_sched", "quantile": 0.99, "max_ms": 300, "traffic": "chat"}, INVALID),
        ({"metric": "ttft_sched", "quantile": 0.99, "max_ms": 1000, "traffic": "chat"}, DEGRADED),
    ],
)
def test_a_run_is_invalid_where_the_client_may_have_changed_its_answer(write, slo, word):
    """The p99 of all since scheduled is the client's, by 150 ms."""
    delay_ms = some(40, 150.0)
    folder = write(
        n=N,
        chunks=5,
        delay_ms=delay_ms,
        ttft_ms=200.0 + delay_ms,
        slo={"first": slo} if slo else {},
    )
    (reason,) = judged(folder)

    assert (reason.check, reason.verdict) == ("client_error", word)
    assert re.match(
        r"Do not use (TTFT since scheduled \(chat\) p99, )?TTFT since scheduled p99", reason.text
    )


def test_a_busy_core_asks_for_so_many_workers_that_each_has_room(write):
    """Two workers at 96% of a core are 1.92 cores: at 70% each that takes three."""
    against = judged(write(n=N, chunks=1, delay_ms=some(600, 12.0), cpu_share=0.96))

    assert (
        against[0].advice
        == "Use 3 workers in all, some of them on other machines (this one has 2 cores)."
    )


@pytest.mark.parametrize(
    ("lag_ms", "cause"),
    [
        (6970.0, "Look at the cause: worker 0 had an event loop up to 6,970 ms late (at 00:10)"),
        (80.0, "Use 3 workers"),  # a core that is full without a pause
        (2900.0, "Use 3 workers"),  # late for less than half of a silence: the network was away
    ],
)
def test_a_worker_that_was_suspended_needs_no_other_worker_to_catch_up(write, lag_ms, cause):
    """It was silent from 00:02 to 00:09, and its core was full in the second after it."""
    seconds = np.arange(SECONDS)
    folder = write(
        n=N,
        chunks=1,
        delay_ms=some(600, 12.0),
        cpu_share=np.where(seconds == 10, 1.1, 0.2),
        health={"loop_lag_max_ns": np.where(seconds == 9, int(lag_ms * MS), 0)},
    )
    with edited_run(folder) as run:
        run["workers"][0]["silent"] = [{"from_s": 2.0, "to_s": 9.0}]
    against = judged(folder)

    assert against[0].check == "client_error"
    assert against[0].advice.startswith(cause)
    assert ("the process or its machine was suspended" in against[0].advice) == (lag_ms > 3500)


@pytest.mark.slow(
    "https://llm.example-0.03-Stop what else ", "https://llm.example-0.95-Use 6 workers,"
)
@pytest.mark.parametrize(
    ("url", "cpu_share", "advice"),
    [
        ("http://127.0.0.1:8000", 0.03, "Run the target on another machine, or on cores of its own (taskset), if it took"),
        ("https://llm.example", 0.03, "Stop what else runs on this machine: it took the cores for which the workers waited 90% of the time."),
        ("https://llm.example", 0.95, "Use 6 workers in all, some of them on other machines"),
    ],
)  # fmt: skip
def test_a_worker_without_a_core_that_needs_little_of_one_is_no_worker_too_few(
    write, url, cpu_share, advice
):
    waits = np.full(SECONDS, int(0.9e9))
    folder = write(
        n=N,
        chunks=1,
        delay_ms=some(600, 12.0),
        cpu_share=cpu_share,
        scenario={"target": {"url": url}},
        health={"core_wait_ns": waits},
    )
    against = judged(folder)

    assert against[0].advice.startswith(advice)


def test_what_was_dropped_counts_as_asked_for(write):
    """Half of it was dropped: six workers for what two could not do."""
    drops = dict.fromkeys(range(0, N, 2), "client_drop")
    against = judged(write(n=N, chunks=1, ended=drops, cpu_share=0.96))

    assert (against[0].verdict, against[0].check) == (INVALID, "drops")
    assert against[0].advice.startswith("Use 6 workers in all, some of them on other machines")


@pytest.mark.slow
def test_where_no_core_was_full_no_worker_is_asked_for(write):
    late = judged(write(n=N, chunks=1, delay_ms=some(600, 12.0)))
    assert late[0].advice.startswith("Use a lower rate, or a machine with nothing else to do.")
    blocked = judged(write(n=N, chunks=1, delay_ms=some(600, 12.0), loop_lag_ms=80.0))
    assert blocked[0].advice.startswith(
        "Look at the cause: worker 0 had an event loop up to 80.0 ms late"
    )
    dropped = judged(write(n=N, chunks=1, ended=dict.fromkeys(range(0, N, 2), "client_drop")))
    (drops,) = [one for one in dropped if one.check == "drops"]
    assert drops.advice.startswith(
        "Lower the rate if the target cannot keep up, else raise limits."
    )
    assert "more machines" not in blocked[0].advice
    assert "worker" not in late[0].advice + drops.advice.replace("in_flight_per_worker", "")


def test_a_dry_run_has_no_client(write):
    late_ms = some(600, 50.0)
    evidence = Run([write(n=N, chunks=1, delay_ms=late_ms, ttft_ms=200.0 + late_ms)]).evidence
    evidence.frames.run["dry_run"] = True

    assert reasons(CHECKS, evidence) == []
