"""What sets times of several workers side by side is known no closer than their clocks."""

import numpy as np
import pytest
from analysis.sections.cache.planted_calls import REAL, S, rows
from run_folders.planted_frames import calls as calls_of
from run_folders.planted_frames import frames_of, run_of
from run_folders.run_data import edited_run

from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.sections.cache.calls import settings
from tailgauge_analysis.sections.cache.misses import causes
from tailgauge_analysis.sections.rate_limits import section
from tailgauge_analysis.sections.slopes import IN_FLIGHT, UNCACHED, Load, regress
from tailgauge_analysis.verdict.clocks import (
    Clocks,
    calls_between,
    clocks,
    clocks_json,
    clocks_sentence,
)

MS = 1_000_000


def entry(folder, number, **clock):
    with edited_run(folder) as run:
        run["workers"][number]["clock"] |= clock


def test_two_workers_compare_within_both_errors(write):
    folder = write(n=60, offsets_ns=(0, 5, -7), error_ns=1_000)
    entry(folder, 1, error_ns=200_000)
    entry(folder, 2, error_ns=40_000_000)
    frames = load([folder])
    found = clocks(frames)

    assert (found.between_ns, found.unknown) == (40_200_000, ())
    assert calls_between(frames, found) == pytest.approx(50 * 0.0402, rel=0.05)
    facts = clocks_json(found, 2.01)
    assert facts["between_ms"] == 40.2
    assert (
        "compared within ± 40.2 ms, and numbers of attempts in flight over all workers within ± 2"
        in facts["sentence"]
    )


def test_one_worker_and_workers_on_the_master_s_clock_have_nothing_between(write):
    alone = clocks(load([write("one", n=10, offsets_ns=(0,), error_ns=500)]))
    together = clocks(load([write("two", n=10, offsets_ns=(0, 0), error_ns=0)]))

    assert alone.between_ns == together.between_ns == 0
    assert clocks_sentence(alone, 0.0) == clocks_sentence(together, 0.0) == ""


def test_a_clock_that_was_never_compared_is_named(write):
    folder = write(n=10)
    entry(folder, 1, offset_ns=None, error_ns=None)
    found = clocks(load([folder]))

    assert found.unknown == (1,)
    assert "The clock offset of worker 1 is unknown" in clocks_sentence(found, 0.0)


# --- which of two workers' calls came first -----------------------------------------------------------------------


def asked(*facts, between_ns):
    """Causes of calls over one text: (worker, sent in s, first content in s)."""
    planted = [
        (sent, 0, 90, {"worker": worker, "first_content_at_ns": began * S})
        for worker, sent, began in facts
    ]
    found = rows(*planted, between_ns=between_ns)
    return causes(found, settings(REAL), set()).tolist(), found["unordered"].tolist()


@pytest.mark.parametrize(
    ("other", "between_ms", "cause", "unordered"),
    [
        (1, 0, "unexplained", False),  # one clock: the entry was there, and was not read
        (1, 20, "race", True),  # it may not have been: 15 ms are less than the clocks are known
        (1, 10, "unexplained", False),
        (0, 20, "unexplained", False),  # one worker's own order is exact
    ],
)
def test_no_order_of_two_workers_is_claimed_that_is_closer_than_their_clocks(
    other, between_ms, cause, unordered
):
    """Written from 0.0 s, in use from 0.2 s; asked for again 15 ms later."""
    found = asked((0, 0.0, 0.2), (other, 0.215, 0.4), between_ns=between_ms * MS)

    assert found == (["first", cause], [False, unordered])


def test_a_race_by_any_clock_stays_one_whatever_the_error():
    for between in (0, 50 * MS):
        assert asked((0, 0.0, 0.2), (1, 0.05, 0.3), between_ns=between) == (
            ["first", "race"],
            [False, False],
        )


def test_the_latest_writer_is_the_one_that_counts():
    """Worker 1 itself had an answer over the text 5 ms before it asked again: no other clock is needed to know that."""
    found = asked((0, 0.0, 0.2), (1, 0.01, 0.21), (1, 0.215, 0.4), between_ns=20 * MS)

    assert found == (["first", "race", "unexplained"], [False, False, False])


# --- what a limit saw first, and what was in flight -----------------------------------------------------------------


def test_calls_in_flight_that_vary_less_than_the_clocks_blur_them_are_no_column():
    drawn = np.random.default_rng(3)
    flight, tokens = drawn.integers(2, 8, 300).astype(float), drawn.uniform(50, 900, 300)
    y = 20 + tokens / 10 + 3 * flight + drawn.normal(0, 1, 300)

    def left_out(unsure):
        load = Load(name=IN_FLIGHT, actual=flight, expected=flight, unsure=unsure)
        return regress("ttft_sent", {UNCACHED: tokens}, y, against=UNCACHED, load=load).left_out

    assert IN_FLIGHT not in left_out(1.0)
    assert IN_FLIGHT in left_out(9.0)


def test_errors_are_sums_of_the_two_largest():
    assert Clocks({0: 5, 1: 9, 2: 7}, ()).between_ns == 16


def test_a_bucket_found_from_several_clocks_is_known_less_closely():
    """Fifteen calls a second at a limit of ten: the interval of the burst is wider by what comes back meanwhile."""
    at = np.arange(300) / 15
    level, refused = 5.0, []
    for number in range(300):
        level = min(5.0, level + 10 / 15)
        if level >= 1:
            level -= 1
        else:
            refused.append(number)
    frames = frames_of(calls_of(300, at_s=at, refused=refused, limit_kind="requests"))

    def burst(error_ns):
        clocks = Clocks({0: error_ns, 1: error_ns}, ())
        (bucket,) = section.compute(run_of(frames, clocks)).buckets
        return bucket.burst

    one, several = burst(0), burst(50 * MS)
    assert several.low == pytest.approx(max(0.0, one.low - 1), abs=0.1)
    assert several.high == pytest.approx(one.high + 1, abs=0.1)
