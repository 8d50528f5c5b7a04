"""Stability of runs at a simulated replica of four slots, and of runs with planted changes."""

import re
import time

import numpy as np
import pytest
from run_folders.by_request import START_AT_NS
from run_folders.dry_runs import dry_run_folder, dry_run_report
from run_folders.run_data import edited_run

from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.result import remarks

CAPACITY = 11.3  # requests/s
REPLICA = {"profile": "tiny", "engine": {"replicas": 1, "slots": 4, "step_ms": 8.785}}


def at_replica(rate_per_s, seconds, seed=1, **more):
    tree = {
        "seed": seed,
        "arrival": {"rate_per_s": rate_per_s},
        "stages": {"duration_s": seconds / 0.9},
        "limits": {"drain_s": 600.0, "attempt_deadline_s": 600.0, "in_flight_per_worker": 60_000},
        "simulated": REPLICA,
        "traffic": {"chat": {"prompt_tokens": 50, "output_tokens": 40}},
    }
    return {**tree, **more}


def judged(folder):
    return Run([folder]).evidence.stability


@pytest.mark.slow
def test_the_replica_has_the_capacity_that_the_others_count_on(tmp_path):
    """What it completes of far more than it can do, by the time at which each answer ended."""
    ended_s = load([dry_run_folder(at_replica(25, 100), tmp_path)]).requests["ended_at_ns"] / 1e9

    assert ((ended_s > 10) & (ended_s <= 110)).sum() / 100 == pytest.approx(CAPACITY, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate_per_s", "seconds", "low", "high"),
    [(9, 54, 0, 0.05), (13, 54, 0.9, 1), (15, 54, 0.9, 1), (12, 600, 0.9, 1)],
)
def test_a_replica_says_whether_it_sustains_the_rate(
    tmp_path, full_size, rate_per_s, seconds, low, high
):
    first = time.time_ns() % 2**31 if full_size else 1
    print(f"seeds from {first}")
    runs = (
        (30 if seconds == 600 else 400 if high < 1 else 200)
        if full_size
        else (1 if seconds == 600 else 3)
    )
    found = [
        judged(dry_run_folder(at_replica(rate_per_s, seconds, first + i), tmp_path / f"run-{i}"))
        for i in range(runs)
    ]

    assert low <= np.mean([one.stable is False for one in found]) <= high
    if low > 0:
        grows = [one.growth_per_s for one in found if one.of("backlog")]
        assert len(grows) >= 0.9 * runs
        assert np.mean(grows) == pytest.approx(
            rate_per_s - CAPACITY, rel=0.25 if full_size else 0.6
        )
    else:
        seen = [one.detectable_growth_per_s for one in found if one.stable]
        assert np.median(seen) == pytest.approx(1.5, rel=0.3)


SLOW = {
    "profile": "tiny",
    "engine": {"replicas": 1, "slots": 1, "step_ms": 50.0},
}  # an answer takes two seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate_per_s", "seconds", "low", "high"), [(2, 15, 0.85, 1), (4, 15, 0.85, 1), (0.25, 100, 0, 0.05), (0.4, 100, 0, 0.05)]
)  # fmt: skip
def test_so_do_some_twenty_requests_where_nobody_would_doubt_it(
    tmp_path, full_size, rate_per_s, seconds, low, high
):
    """Four and eight times what the target can do, or half of it and 80%."""
    first = time.time_ns() % 2**31 if full_size else 1
    print(f"seeds from {first}")
    runs = [
        at_replica(rate_per_s, seconds, first + i, simulated=SLOW)
        for i in range(100 if full_size else 3)
    ]
    found = [judged(dry_run_folder(tree, tmp_path / f"run-{i}")) for i, tree in enumerate(runs)]

    assert low <= np.mean([one.of("backlog") is not None for one in found]) <= high
    if low > 0:
        grows = [one.growth_per_s for one in found if one.of("backlog")]
        assert np.mean(grows) == pytest.approx(rate_per_s - 0.5, rel=0.25)


@pytest.mark.slow
def test_a_backlog_that_is_not_served_in_the_end_is_named_with_what_was(tmp_path):
    limits = {"drain_s": 20.0, "attempt_deadline_s": 600.0}
    report = dry_run_report(at_replica(2, 15, simulated=SLOW, limits=limits), tmp_path).report

    result = report["result"]

    assert re.match(r"only [\d.]+% of \d+ requests completed \(objective 99%", result["sentence"])
    assert re.fullmatch(
        r"the target does not sustain this rate: backlog grows by 1\.\d+ requests/s",
        result["details"][-1],
    )
    assert report["exit_code"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("ended", "kinds"), [("rate_limited", []), ("censored", ["unanswered"])])
def test_requests_that_fail_at_once_are_no_backlog_and_those_that_stay_open_got_no_answer(
    write, ended, kinds
):
    late = dict.fromkeys(range(20, 60), ended)
    found = judged(write(n=60, rate_per_s=4, ended=late, ttft_ms=200.0 + np.arange(60)))

    assert [finding.kind for finding in found.findings] == kinds


@pytest.mark.slow
def test_a_run_above_capacity_says_so_and_by_how_much(tmp_path):
    report = dry_run_report(at_replica(15, 54), tmp_path).report
    suite = next(tmp_path.rglob("junit.xml")).read_text()
    growth = report["stability"]["growth_per_s"]
    text = f"The target does not sustain this rate: backlog grows by {growth:.3g} requests/s."

    assert growth == pytest.approx(15 - CAPACITY, rel=0.2)
    assert (
        report["result"]["sentence"]
        == f"the target does not sustain this rate: backlog grows by {growth:.3g} requests/s"
    )
    assert report["remarks"][0] == f"{text} Percentiles depend on the length of the run."
    assert (report["verdict"]["status"], report["exit_code"]) == ("VALID", 1)
    assert report["stability"]["stable"] is False
    assert f'<failure type="FAIL" message="{report["result"]["sentence"]}' in suite


@pytest.mark.slow
def test_a_stable_run_prints_the_growth_that_it_would_have_seen(tmp_path):
    report = dry_run_report(at_replica(9, 54), tmp_path).report

    assert report["stability"]["turns"] is None  # there are no users in an open loop
    assert report["stability"]["sentence"].startswith(
        "The steady stage shows no change. The run can miss a backlog that grows by less than 1."
    )
    assert report["exit_code"] == 0
    assert report["remarks"] == []


@pytest.mark.slow
@pytest.mark.parametrize("chunk_gap_ms", [450.0, 1000.0])
def test_answers_as_long_as_the_run_or_a_third_of_it_are_no_backlog(tmp_path, chunk_gap_ms):
    """In flight grows for long, or all the time, because nothing has ended yet."""
    slow = {"ttft_ms": 50.0, "chunk_gap_ms": chunk_gap_ms}
    found = judged(dry_run_folder(at_replica(10, 54, simulated=slow), tmp_path))

    assert found.stable is True
    assert found.growth_per_s == pytest.approx(0, abs=1 if chunk_gap_ms < 1000 else 0)


@pytest.mark.slow
def test_a_target_ten_times_too_slow_is_still_judged(tmp_path):
    found = judged(dry_run_folder(at_replica(110, 54), tmp_path))

    assert found.of("backlog")
    assert found.growth_per_s == pytest.approx(110 - CAPACITY, rel=0.1)


N = 1000  # at 50/s, a second of warm-up
AT = np.arange(N) / N


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ttft_ms", "kind", "text"),
    [
        (200.0 + 300 * AT, "trend", "TTFT rises over the steady stage: its last third has a median TTFT of 4"),
        (1200.0 - N * AT, "trend", "TTFT falls over the steady stage"),
        (np.where(AT < 0.7, 200.0, 400.0), "change", "From 00:14 to 00:20 the target was slower: a median TTFT of 399 ms"),
        (np.where((AT > 0.4) & (AT < 0.6), 600.0, 200.0), "change", "From 00:08 to 00:12 the target was slower"),
        (np.where(AT < 0.9, 200.0, 600.0), "change", "From 00:18 to 00:20 the target was slower"),
        (np.where((AT > 0.4) & (AT < 0.6), 60.0, 200.0), "change", "From 00:08 to 00:12 the target was faster"),
        (np.where(AT < 0.2, 900.0, 200.0), "warm-up", "The first 3.04 s of the steady stage look like warm-up"),
        (np.where(AT < 0.2, 60.0, 200.0), "change", "From 00:01 to 00:04 the target was faster"),
        (np.where(AT < 0.2, 900.0, np.where(AT < 0.6, 200.0, 500.0)), "change", "the target was"),
    ],
)  # fmt: skip
def test_what_changed_is_named_with_its_seconds(write, ttft_ms, kind, text):
    rng = np.random.default_rng(1)
    found = judged(write(n=N, ttft_ms=ttft_ms * rng.lognormal(0, 0.05, N)))

    assert [one.kind for one in found.findings] == [kind]
    assert text in found.findings[0].text


@pytest.mark.slow
def test_a_stall_in_the_middle_is_never_called_warm_up(write):
    """Everything that arrives in it waits for its end."""
    at_s = np.arange(N) / 50
    for begin in (5.0, 9.0, 12.0, 16.0):
        waits = 200 + 1000 * np.clip(begin + 2 - at_s, 0, 2) * (at_s >= begin)
        found = Run([write(n=N, ttft_ms=waits)])

        assert (found.verdict, found.reasons) == ("VALID", [])
        assert found.evidence.stability.of("change").from_s == pytest.approx(begin, abs=0.5)
        assert remarks(found)[0].endswith("Percentiles depend on the length of the run.")


OPENING_MS = {  # how long opening a connection takes each request; kind, text and seconds of the finding
    "a stretch": (
        np.where((AT >= 0.6) & (AT < 0.9), 800.0, 1.0), "change",
        "the target was slower: a median TTFT of 1,000 ms, the rest of the stage 20", (12, 18),
    ),
    "ever longer": (
        1.0 + 300 * AT, "trend", "TTFT rises over the steady stage: its last third has a median TTFT of 4", (1, 20),
    ),
    "at the start": (
        np.where(AT < 0.2, 700.0, 1.0), "warm-up",
        "s of the steady stage look like warm-up: they have a median TTFT of 90", (1, 4),
    ),
    "one in three": (
        np.where((AT >= 0.4) & (AT < 0.6) & (np.arange(N) % 3 == 0), 900.0, 0.03), "change",
        "the target was slower: a p95 TTFT of 1,1", (8, 12),
    ),
}  # fmt: skip


def with_connections(write, waits_ms, **more):
    """A run that waits so long for connections, and 200 ms more for each first content."""
    ttft_ms = waits_ms + 200 * np.random.default_rng(3).lognormal(0, 0.03, N)
    return write(
        n=N, chunks=2, delay_ms=0.05 + waits_ms, pool_wait_ms=waits_ms, ttft_ms=ttft_ms, **more
    )


@pytest.mark.slow
@pytest.mark.parametrize("shape", OPENING_MS)
def test_the_time_to_open_a_connection_is_the_targets(write, shape):
    waits_ms, kind, text, span = OPENING_MS[shape]
    (finding,) = judged(with_connections(write, waits_ms)).findings

    assert finding.kind == kind
    assert text in finding.text
    assert (finding.from_s, finding.to_s) == pytest.approx(span, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", OPENING_MS)
def test_a_closed_loop_waits_since_sent(write, shape):
    run = Run([with_connections(write, OPENING_MS[shape][0])])
    run.frames.run["arrival"] = "closed"

    assert run.evidence.stability.findings == ()


@pytest.mark.slow
@pytest.mark.parametrize("arrival", ["open", "closed"])
def test_what_an_idle_connection_took_is_the_clients(write, arrival):
    run = Run([with_connections(write, OPENING_MS["a stretch"][0], is_new=False)])
    run.frames.run["arrival"] = arrival
    found = run.evidence.stability

    assert [finding.kind for finding in found.findings] == ["client"]
    assert found.findings[0].text == "The client was late by up to 0.8 s from 00:12 to 00:18."


@pytest.mark.slow("300.0")
@pytest.mark.parametrize("opening_ms", [0.03, 300.0])
def test_a_slot_of_the_worker_and_a_connection_are_both_waited_for(mixed, tmp_path, opening_ms):
    """From the 6th to the 9th second a call waits 400 ms for its slot, as its scenario asks."""
    run = mixed(duration_s=15.0)
    run.run["arrival"] = "open"
    for number in range(450):
        slot_ms = 400.0 if 180 <= number < 270 else 0.01
        sent_ms = slot_ms + opening_ms
        call = {
            "dispatched_at_ns": START_AT_NS + round(number * 1e9 / 30 + slot_ms * 1e6),
            "sent": sent_ms,
            "first": sent_ms + 200 + number % 7,
            "pool_wait_ns": opening_ms * 1e6,
            "connection_is_new": opening_ms > 1,
        }
        run.request(number * 1000 / 30, [call])
    folder = run.write(tmp_path / "run")
    chat = {"pattern": "streaming", "streaming": {"at_once_per_worker": 4}}
    with edited_run(folder) as record:
        record["scenario"]["traffic"] = {"chat": chat}

    found = judged(folder)

    assert [finding.kind for finding in found.findings] == ["change"]
    slow_ms = round(600 + opening_ms + 3)
    assert (
        f"From 00:06 to 00:09 the target was slower: a median TTFT of {slow_ms} ms"
        in found.findings[0].text
    )


def test_a_target_that_times_out_everything_at_the_end_is_not_stable(write):
    found = judged(write(n=N, ended=dict.fromkeys(range(850, N), "timeout")))

    assert found.findings[0].text.startswith(
        "From 00:17 to 00:20 the target was slower: 100% failed requests"
    )


def test_joins_of_fan_outs_are_judged(mixed, tmp_path):
    run = mixed(duration_s=25.0)
    for i in range(250):
        wait = 300.0 if i < 125 else 900.0
        legs = [{"first": 100, "leg": leg} for leg in (0, 1)]
        run.request(i * 100, legs, pattern="fan_out", joined_ms=wait + i % 7)
    run.run["arrival"] = "open"
    found = judged(run.write(tmp_path / "run"))

    assert "a median wait of 90" in found.findings[0].text


@pytest.mark.slow
def test_a_load_that_changes_on_purpose_is_not_judged(write):
    arrival = {"process": "poisson", "rate_per_s": 50, "shape": {"kind": "ramp"}}
    found = judged(write(n=N, ttft_ms=200 + N * AT, scenario={"arrival": arrival}))

    assert (found.stable, found.findings) == (None, ())
    assert found.sentence.startswith(
        "Stability is not judged: the offered load or the traffic changes"
    )
    assert found.detectable_growth_per_s is not None


@pytest.mark.slow
def test_a_short_run_is_not_judged(write):
    found = judged(
        write(n=190, rate_per_s=10.0, ttft_ms=np.where(np.arange(190) < 90, 100.0, 900.0))
    )

    assert (found.stable, found.findings) == (None, ())


@pytest.mark.slow
def test_a_closed_loop_of_few_turns_says_so(tmp_path):
    users = {"process": "closed", "closed": {"users": 256, "think_s": 0.1}}
    found = Run([dry_run_folder(at_replica(None, 54, arrival=users), tmp_path)])
    turns = found.evidence.stability.turns

    assert turns == pytest.approx(CAPACITY * 54 / 256, rel=0.1)
    assert found.evidence.stability.growth_per_s is None
    assert any(
        f"holds {turns:.3g} turns per user, 5 are needed. Run at least" in one
        for one in remarks(found)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait_ms", "drain_s", "traffic"),
    [
        (9000.0, 2.0, {"chat": {"prompt_tokens": 50, "output_tokens": 20}}),
        (14_000.0, 1.0, {"chat": {"prompt_tokens": 50, "output_tokens": 20, "stream": False}}),
        (6000.0, 0.0, {"a": {"output_tokens": 20}, "b": {"output_tokens": 200}}),
    ],
    ids=["streamed", "whole", "two tables, no drain"],
)
def test_waits_that_the_end_of_the_run_cuts_are_no_change(tmp_path, wait_ms, drain_s, traffic):
    tree = {
        "arrival": {"rate_per_s": 8.0}, "stages": {"duration_s": 50.0, "warmup_s": 0.0}, "limits": {"drain_s": drain_s},
        "simulated": {"ttft_ms": wait_ms, "chunk_gap_ms": 2.0}, "traffic": traffic,
    }  # fmt: skip
    run = Run([dry_run_folder(tree, tmp_path)])

    assert "censored" in set(run.frames.requests["ended"])
    assert [finding.kind for finding in run.evidence.stability.findings] == []
