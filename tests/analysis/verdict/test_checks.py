"""Each check on a run that just fails it, and the verdict."""

import numpy as np
import pytest
from run_folders.run_data import edited_run

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import measurement
from tailgauge_analysis.sections.measurement import explanations
from tailgauge_analysis.verdict.checks import CHECKS


def judged(folder):
    found = Run([folder])
    return found.verdict, [reason.check for reason in found.reasons], found


def test_a_sound_run_is_valid(write):
    assert judged(write(n=1000))[:2] == (VALID, [])


N = 1000
LATE = np.where(np.arange(N) % 50 == 0, 15.0, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "verdict", "changes"),
    [
        ("finished", DEGRADED, {"state": "interrupted", "not_reached": 50}),
        ("finished", DEGRADED, {"state": "guarded", "not_reached": 50}),
        ("finished", DEGRADED, {"state": "running"}),
        ("finished", INVALID, {"state": "failed"}),
        ("lost", INVALID, {"lost": 1}),
        ("measured", INVALID, {"warmup_s": 30.0}),
        ("settled", DEGRADED, {"ttft_ms": np.where(np.arange(N) < 200, 900.0, 200.0)}),
        ("drops", DEGRADED, {"ended": dict.fromkeys(range(500, 510), "client_drop")}),
        ("drops", INVALID, {"ended": dict.fromkeys(range(500, 511), "client_drop")}),
        ("client_error", DEGRADED, {"delay_ms": LATE, "ttft_ms": 200.0 + LATE}),
        ("clock_offset", DEGRADED, {"error_ns": 1_000_001}),
        ("clock_step", DEGRADED, {"clock_step_ns": -1_000_001}),
    ],
)
def test_a_check_fails_alone_and_says_why(write, check, verdict, changes):
    word, checks, found = judged(write(n=N, **changes))

    assert (word, checks) == (verdict, [check])
    assert found.reasons[0].text.endswith(".")
    assert found.reasons[0].advice.endswith(".")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"delay_ms": np.where(np.arange(N) % 50 == 0, 4.9, 0.1)},
        {"delay_ms": LATE, "ttft_ms": 1000.0},  # 1% of a second
        {"interval_every": 110},
        {"loop_lag_ms": 80.0},  # kernel stamps do not care
        {"stamps": "user", "loop_lag_ms": 4.9},
        {"cpu_share": 1.0},
        {"error_ns": 999_999},
    ],
)
def test_what_does_not_move_a_number_is_no_reason(write, changes):
    assert judged(write(n=N, **changes))[:2] == (VALID, [])


@pytest.mark.slow
def test_a_load_that_was_meant_to_change_need_not_settle(write):
    growing = {"process": "poisson", "rate_per_s": 50, "shape": {"kind": "ramp"}}
    slower = 200.0 + np.arange(N)

    assert judged(write(n=N, ttft_ms=slower, scenario={"arrival": growing}))[:2] == (VALID, [])


@pytest.mark.slow
def test_the_warm_up_that_would_do_is_named(write):
    found = judged(write(n=N, ttft_ms=np.where(np.arange(N) < 200, 900.0, 200.0)))[2]

    assert found.reasons[0].text == (
        "The first 3 s of the steady stage look like warm-up: they have a median TTFT of 900 ms, the rest 200 ms."
    )
    assert found.reasons[0].advice == "Set stages.warmup_s to 4 or more."


def test_a_lost_worker_makes_a_run_invalid(write):
    folder = write(n=N)
    with edited_run(folder) as run:
        run["workers"][1]["state"] = "lost"
    (folder / "workers" / "1.json").unlink()
    word, checks, found = judged(folder)

    assert (word, checks) == (INVALID, ["lost"])
    assert "worker 1 did not finish" in found.reasons[0].text


def test_a_run_without_any_record_is_invalid(write):
    folder = write(n=N)
    (folder / "run.json").unlink()
    for record in (folder / "workers").iterdir():
        record.unlink()

    assert judged(folder)[:2] == (INVALID, ["conservation", "finished"])


def test_an_unusable_target_says_so(write):
    folder = write(n=1, ended={0: "connect_error"}, state="unusable")

    assert judged(folder)[1][0] == "finished"


@pytest.mark.slow
def test_a_run_that_goes_on_is_not_measured_against_old_counts(write):
    """The number of planned arrivals does not grow old; without it nobody knows, for these workers left no record."""
    folder = write(n=N, state="running")
    for record in (folder / "workers").iterdir():
        record.unlink()

    assert judged(folder)[:2] == (DEGRADED, ["finished"])

    with edited_run(folder) as run:
        run["arrival"] = "closed"
    for part in (folder / "health").iterdir():
        part.unlink()
    word, checks, found = judged(folder)

    assert (word, checks) == (INVALID, ["conservation", "finished"])
    assert "The number of scheduled requests is unknown" in found.reasons[0].text


def test_the_endpoints_log_may_be_damaged(write):
    folder = write(n=N)
    (folder / "target" / "part-0-0.parquet").write_bytes(b"PAR1")

    assert judged(folder)[0] == VALID


@pytest.mark.slow("changes1", "changes2")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loop_lag_ms": 80.0}, "The client moved no figure by 0.10 ms or more."),
        ({"delay_ms": LATE, "ttft_ms": 1000.0 + LATE, "loop_lag_ms": 80.0}, "The client moved TTFT since scheduled p99 by at most 15.0 ms"),
        ({}, ""),
    ],
)  # fmt: skip
def test_a_late_loop_of_a_valid_run_says_what_it_means_for_the_figures(write, changes, sentence):
    word, _, found = judged(write(n=N, **changes))
    texts = explanations(found)

    assert word == VALID
    assert len(texts) == (3 if sentence else 0)  # two workers
    assert not sentence or texts[0].startswith(sentence)


@pytest.mark.slow("changes1", "changes2")
@pytest.mark.parametrize(
    ("changes", "check"),
    [
        ({"server_log": False}, "endpoint"),
        ({"stamps": "user"}, "clock_step"),
        ({"scenario": {"arrival": {"process": "poisson", "rate_per_s": 50, "shape": {"kind": "ramp"}}}}, "settled"),
    ],
)  # fmt: skip
def test_a_check_without_meaning_for_the_run_is_neither_passed_nor_named(write, changes, check):
    found = Run([write(n=N, **changes)]).result(measurement.compute)
    shown = measurement.section(found)

    assert check in [one.check for one in found.verdict.checks if one.verdict == "not applicable"]
    assert not any(line.startswith(f"{check} ") for line in shown.listing[1].splitlines())
    assert not any(check in text for text in shown.computed)


@pytest.mark.slow
def test_checks_that_passed_are_a_folded_list_and_others_a_table(write):
    sound = measurement.section(Run([write(n=N)]).result(measurement.compute))
    stepped = measurement.section(
        Run([write(n=N, clock_step_ns=-1_000_001)]).result(measurement.compute)
    )

    title, lines = sound.listing
    names = [line.split()[0] for line in lines.splitlines() if not line.startswith(" ")]
    assert title == f"{len(names)} checks passed"
    assert {"endpoint", "clock_step", "settled", "finished"} <= set(names)
    assert (sound.is_folded, stepped.is_folded) == (True, False)
    assert "Checks that are not met" not in {table.title for table in sound.tables}
    (row,) = stepped.tables[0].rows
    assert (stepped.tables[0].title, row[0], row[-1].text) == (
        "Checks that are not met",
        "clock_step",
        "DEGRADED",
    )
    assert row[2].startswith("The wall clock stepped within a second")
    assert "clock_step" not in stepped.listing[1]


def test_checks_have_one_name_each():
    assert len({check.name for check in CHECKS}) == len(CHECKS)
