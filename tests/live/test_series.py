"""The live series, against figures worked out by hand, and what is reported of a run with many workers."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from live.counters import objective
from live.counters import progress as state

from tailgauge.live.series import MAX_POINTS, Live, RunView, chosen, document

TTFT = ("ttft_p50_ms", "ttft_p95_ms", "ttft_p99_ms", "ttft_max_ms")
E2E = ("e2e_p50_ms", "e2e_p95_ms")


def progress(at_s, *ttft_ms, **counts):
    """The run at a moment; TTFTs are those of all its attempts until then."""
    return state(at_s, ttft_ms=ttft_ms, **counts)


def folded(*moments):
    live = Live()
    for moment in moments:
        live.fold(moment)
    return live


def worker(number, state="running", cpu=0.2):
    return {"worker": number, "state": state, "cpu": cpu, "clock_error_ms": 0.0}


def seen(*workers, notes=()):
    now = progress(3.0, sent=7, objectives=(objective("met"),))
    return RunView({"run_id": "run-1", "notes": list(notes)}, now, list(workers), len(workers))


def test_rates_are_differences_of_counters_over_the_time_between_points():
    """From nothing to 10 requests in the first second, to 16 in the 1.5 s after it."""
    live = folded(
        progress(1.0, sent=10, output_tokens=300, in_flight=4, attempts={"ok": 6}),
        progress(2.5, sent=16, output_tokens=330, in_flight=5, attempts={"ok": 12, "rate_limited": 3}, requests={"timeout": 6}),
    )  # fmt: skip

    points = live.since(-1.0)

    assert points["at_s"] == [1.0, 2.5]
    assert points["sent_per_s"] == [10.0, 4.0]
    assert points["output_tokens_per_s"] == [300.0, 20.0]
    assert points["limited_per_s"] == [0.0, 2.0]
    assert points["failed_per_s"] == [0.0, 4.0]
    assert points["in_flight"] == [4, 5]
    assert live.rates == {
        "sent": 4.0,
        "ended": 4.0,
        "failed": 4.0,
        "limited": 2.0,
        "output_tokens": 20.0,
    }


def test_a_page_is_reported_what_is_new_since_its_last_point():
    live = folded(progress(1.0, sent=30), progress(2.0, sent=90), progress(3.0, sent=100))

    points = live.since(1.0)

    assert (points["at_s"], points["sent_per_s"]) == ([2.0, 3.0], [60.0, 10.0])
    assert live.since(3.0)["at_s"] == live.since(3.0)["sent_per_s"] == []


def test_ttft_is_of_the_last_ten_seconds():
    """100 ms until 5 s, 900 ms from then on, 60 a second: from 15 s on nothing of the first is left."""
    live = Live()
    for second in range(1, 21):
        early, late = [100.0] * min(second, 5), [900.0] * max(0, second - 5)
        live.fold(progress(float(second), *(early + late) * 60))

    p50, p99 = live.since(-1.0)["ttft_p50_ms"], live.since(-1.0)["ttft_p99_ms"]
    assert p50[:10] == pytest.approx(
        [100.0] * 10, rel=0.01
    )  # at 10 s five of each: the lower middle
    assert p50[10:] == pytest.approx([900.0] * 10, rel=0.01)
    assert p99[:4] == [None] * 4  # fewer than 300
    assert p99[4] == pytest.approx(100.0, rel=0.01)
    assert p99[5:] == pytest.approx([900.0] * 15, rel=0.01)
    assert live.windows_s == dict.fromkeys(TTFT, 10.0) | dict.fromkeys(E2E)


@pytest.mark.parametrize(
    ("per_s", "p50_s", "p95_s", "p99_s"),
    [(40, 10, 10, 10), (12, 10, 10, 30), (6, 10, 10, 60), (1, 10, 60, None)],
)
def test_a_percentile_comes_from_the_shortest_window_with_enough_first_contents(
    per_s, p50_s, p95_s, p99_s
):
    """At 6 a second the p99 of ten seconds would be their maximum."""
    values = np.random.default_rng(per_s).lognormal(6, 0.8, 100 * per_s)
    live = folded(*(progress(float(s), *values[: s * per_s]) for s in range(1, 101)))

    assert [live.windows_s[name] for name in TTFT] == [p50_s, p95_s, p99_s, 10.0]
    for p, name, window_s in (
        (0.5, "ttft_p50_ms", p50_s),
        (0.95, "ttft_p95_ms", p95_s),
        (0.99, "ttft_p99_ms", p99_s),
        (1, "ttft_max_ms", 10),
    ):
        shown = getattr(live.last, name)
        if window_s is None:
            assert shown is None
        else:
            within = np.quantile(values[-window_s * per_s :], p, method="inverted_cdf")
            assert shown == pytest.approx(within, rel=0.011)


def test_a_run_that_slows_down_has_no_percentile_of_few():
    """100 a second, then one every two seconds: the p99 ends when 60 s hold fewer than 300."""
    live = folded(
        *(
            progress(float(s), *[50.0] * (min(s, 20) * 100 + max(0, s - 20) // 2))
            for s in range(1, 121)
        )
    )

    p99, most = live.since(-1.0)["ttft_p99_ms"], live.since(-1.0)["ttft_max_ms"]
    assert None not in p99[3:76]
    assert set(p99[78:]) == {None}
    assert None not in most


def test_a_fold_that_comes_early_or_late_takes_the_same_ten_seconds():
    first, second_ones = [5.0] * 9, [7.0] * 9
    live = folded(progress(1.2, *first), progress(2.0, *first, *second_ones))
    for second in range(3, 13):
        live.fold(
            progress(second + (0.1 if second % 2 else -0.1), *first, *second_ones, *[9.0] * 6)
        )

    assert live.last.at_s == 11.9  # so since 2 s
    assert live.last.ttft_p50_ms == pytest.approx(9.0, rel=0.01)


def test_seconds_without_a_first_content_have_no_ttft():
    live = folded(progress(1.0, 50.0), *(progress(float(s), 50.0) for s in range(2, 14)))

    assert live.since(9.0)["ttft_max_ms"] == [pytest.approx(50.0, rel=0.01), None, None, None]


def test_a_long_run_keeps_its_counts_in_fewer_points():
    """Three requests per second for 4,000 s, bursts of ten 429s at 1,000 s and at 3,000 s."""
    live = Live()
    for second in range(1, 4001):
        limited = 10 * ((second >= 1000) + (second >= 3000))
        live.fold(state(float(second), 4000.0, sent=3 * second, attempts={"rate_limited": limited}))

    points = live.since(-1.0)
    widths = [b - a for a, b in zip([0.0, *points["at_s"]], points["at_s"], strict=False)]
    assert MAX_POINTS / 2 <= len(points["at_s"]) <= MAX_POINTS
    assert live.every_s == 4.0
    assert max(widths) <= 4.0
    assert points["at_s"][-1] > 4000 - live.every_s
    assert set(points["sent_per_s"]) == {3.0}
    assert sum(
        w * r for w, r in zip(widths, points["limited_per_s"], strict=True)
    ) == pytest.approx(20)
    assert live.last.at_s == 4000.0  # the figures are of this second, whatever the points are


def test_a_stall_stays_in_the_series_when_points_are_dropped():
    """One second in 2,000 has a stall, which no thinning may lose."""
    live = Live()
    for second in range(1, 2001):
        live.fold(state(float(second), 2000.0, stalled_s=2.5 if second == 701 else 0.0))

    points = live.since(-1.0)
    (at_s,) = [
        at_s
        for at_s, stalled_s in zip(points["at_s"], points["stalled_s"], strict=True)
        if stalled_s
    ]
    assert live.every_s == 2.0
    assert at_s == pytest.approx(701, abs=2)


def test_where_points_are_further_apart_than_the_window_ttft_is_since_the_point_before():
    """At 16 s from point to point an attempt of 12 s ago is still in the figure."""
    live = Live(every_s=16.0)
    for second in range(1, 30):
        live.fold(
            progress(float(second), *[40.0] * 6 * (second >= 17), *[60.0] * 9 * (second >= 40))
        )

    assert live.last.ttft_p50_ms == pytest.approx(40.0, rel=0.01)


def test_a_fold_at_the_very_start_has_no_rate_yet():
    live = folded(progress(0.001, sent=1), progress(1.0, sent=5))

    assert live.since(-1.0)["sent_per_s"] == [0.0, 4.0]


def test_a_run_that_has_not_begun_has_no_verdict():
    assert document(seen(worker(0)), Live(), -1.0)["run"]["verdict"] is None


def test_no_run_yet_is_reported_as_such():
    assert document(None, Live(), -1.0) == {"run": None}


def test_what_is_reported_is_plain_json():
    live = folded(progress(3.0, sent=7))

    plain = json.loads(
        json.dumps(document(seen(worker(0), notes=("<b>",)), live, -1.0), allow_nan=False)
    )

    assert plain["run"]["notes"] == ["<b>"]
    assert plain["run"]["objectives"] == [asdict(objective("met"))]
    assert (plain["run"]["verdict"], plain["now"]["sent"], plain["now"]["ttft_p50_ms"]) == (
        "VALID",
        7,
        None,
    )
    assert (plain["points"]["at_s"], plain["every_s"]) == ([3.0], 1.0)
    assert plain["windows_s"] == dict.fromkeys((*TTFT, *E2E)) | {"ttft_max_ms": 10.0}
    assert plain["workers"][0]["clock_error_ms"] == 0.0


@pytest.mark.parametrize(
    ("slots", "moments"),
    [(None, [(0, 0.0), (0, 0.0)]), (8, [(0, 0.0), (3, 0.42)]), (2, [(40, 12.0), (0, 0.0)])],
)
def test_waits_for_a_slot_are_levels_of_each_point(slots, moments):
    live = Live()
    for number, (waiting, slot_wait_s) in enumerate(moments, 1):
        now = progress(float(number), slots=slots, waiting=waiting, slot_wait_s=slot_wait_s)
        live.fold(now)
    found = document(RunView({"run_id": "run-1", "notes": []}, now, [], 0), live, -1.0)

    assert found["run"]["slots"] == slots
    assert (found["now"]["waiting"], found["now"]["slot_wait_s"]) == moments[-1]
    assert found["points"]["waiting"] == [waiting for waiting, _ in moments]
    assert found["points"]["slot_wait_s"] == [slot_wait_s for _, slot_wait_s in moments]


def test_of_many_workers_those_in_trouble_are_reported_first_then_the_busiest_and_all_by_number():
    workers = [
        ("running", 0.0),
        ("running", 0.3),
        ("drained", 0.9),
        ("lost", 0.0),
        ("starting", 0.0),
        ("running", 0.2),
    ]

    assert chosen(workers, 4) == [1, 2, 3, 4]
    assert chosen(workers, 2) == [3, 4]
    assert chosen(workers, 6) == [0, 1, 2, 3, 4, 5]
    assert len(chosen([("running", 0.5)] * 1000)) == 100
