"""What was made after clients had left, by the engine's own count: held to what was planted."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tailgauge.experiments.checkup.cancel import ALLOWED_SHARE_OF_REST, ignored_by_engine
from tailgauge_analysis.reading.frames import load

STOPS, GOES_ON = 2, 10_000  # tokens after the client has left


def frames(seed, *, after, goes_on=1.0, spread=0.0, others=0, calls=80, per_chunk=1):
    """A run in which every second client leaves after ten chunks; `goes_on` of those calls make `after` tokens more."""
    rng = np.random.default_rng(seed)
    whole = np.maximum(15, np.round(60 * rng.lognormal(0, spread, calls))).astype(int)
    left = rng.random(calls) < 0.5
    shown = np.minimum(10 * per_chunk, whole)
    made = np.where(left, shown, whole)
    made += np.where(left & (rng.random(calls) < goes_on), np.minimum(after, whole - shown), 0)
    attempts = pd.DataFrame({
        "stage": "steady", "sent_at_ns": 1.0, "ended": np.where(left, "cancelled", "ok"),
        "output_tokens": np.where(left, np.nan, whole), "chunks": np.where(left, shown, whole) // per_chunk,
    })  # fmt: skip
    counts = {"engine": "vLLM", "before": 1000, "after": 1000 + int(made.sum()) + others}
    expected = float((made - shown)[left].sum() / whole[left].sum())  # of the whole answers
    return SimpleNamespace(run={"engine_tokens": counts}, attempts=attempts), expected


@pytest.mark.slow("0.4")
@pytest.mark.parametrize("spread", [0.0, 0.4])
def test_an_engine_that_stops_is_never_called_one_that_goes_on(spread):
    found = [
        ignored_by_engine(frames(seed, after=STOPS, spread=spread)[0], 0.1) for seed in range(100)
    ]

    assert max(one.low for one in found) <= ALLOWED_SHARE_OF_REST


@pytest.mark.parametrize(("spread", "per_chunk"), [(0.0, 1), (0.0, 3), (0.4, 1)])
def test_one_that_goes_on_is_found_each_time_and_by_how_much(spread, per_chunk):
    covered = 0
    for seed in range(40):
        run, _ = frames(seed, after=GOES_ON, spread=spread, per_chunk=per_chunk)
        found = ignored_by_engine(run, 0.1)
        covered += found.high == 1.0  # all of the rest

        assert found.low > ALLOWED_SHARE_OF_REST
        assert "vLLM counts" in found.evidence
    assert covered >= 35  # of 38 expected


def test_the_share_of_what_was_left_is_recovered():
    run, expected = frames(3, after=GOES_ON, goes_on=0.5, calls=400)
    found = ignored_by_engine(run, 1.0)

    assert expected == pytest.approx(0.5 * 50 / 60, abs=0.1)
    assert found.gain == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("others", [-400, 0, 300, 500])
def test_the_interval_holds_the_value_also_where_others_use_the_engine(others):
    numbers = [
        ignored_by_engine(frames(seed, after=GOES_ON, others=others, calls=400)[0], 0.1)
        for seed in range(20)
    ]
    found = [number for number in numbers if number.value is not None]

    assert len(found) >= 10
    assert all(number.low <= number.value <= number.high for number in found)


def test_what_others_generated_is_noted_and_gives_no_finding():
    found = ignored_by_engine(frames(1, after=STOPS, others=9000)[0], 0.1)

    assert found.value is None
    assert "others use it too" in found.evidence


def test_a_count_below_what_usage_tells_is_no_evidence():
    run, _ = frames(1, after=STOPS, others=-2000)
    assert ignored_by_engine(run, 0.1).value is None


@pytest.mark.parametrize("change", [{"ended": "timeout"}, {"output_tokens": np.nan}])
def test_calls_of_which_nobody_knows_what_they_made_leave_it_untold(change):
    run, _ = frames(1, after=STOPS)
    row = run.attempts.index[run.attempts["ended"] == "ok"][0]
    for column, value in change.items():
        run.attempts.loc[row, column] = value

    assert ignored_by_engine(run, 0.1).value is None


def test_a_refused_call_made_nothing():
    run, _ = frames(1, after=GOES_ON)
    refused = run.attempts.iloc[:5].assign(ended="rate_limited", output_tokens=np.nan, chunks=0)
    run.attempts = pd.concat([run.attempts, refused], ignore_index=True)

    assert ignored_by_engine(run, 0.1).low > ALLOWED_SHARE_OF_REST


def test_few_answers_are_too_few_and_no_page_is_no_check():
    run, _ = frames(1, after=GOES_ON, calls=14)
    assert ignored_by_engine(run, 0.1).value is None
    run.run["engine_tokens"] = {}
    assert ignored_by_engine(run, 0.1).value is None


@pytest.mark.parametrize("held", [
    None, 3, [], {"engine": "vLLM"}, {"engine": 3, "before": 1, "after": 2}, {"engine": "vLLM", "before": "1", "after": 2},
    {"engine": "vLLM", "before": 1, "after": None}, {"engine": "", "before": 1, "after": 2},
])  # fmt: skip
def test_what_is_damaged_in_the_record_is_as_if_it_were_not_there(write, held):
    folder = write(n=10)
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine_tokens": held}))

    assert ignored_by_engine(load([folder]), 0.1).value is None


def test_a_record_that_is_whole_is_read(write):
    folder, held = write(n=10), {"engine": "vLLM", "before": 1, "after": 2}
    path = folder / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine_tokens": held}))

    assert load([folder]).run["engine_tokens"] == held
