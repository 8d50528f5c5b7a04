"""A request with several attempts or legs has one clock and one answer."""

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder

from tailgauge.errors import Exit
from tailgauge.thresholds import INVALID, VALID
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, row, sample, waits
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import latency, objectives
from tailgauge_analysis.sections.result import exit_code, result


@pytest.fixture
def stage(tmp_path):
    return lambda run: steady(load([run.write(tmp_path / "run")]))


def values(stage, name, view=SUCCESSES):
    return sample(BY_NAME[name], stage, view)[0].tolist()


def test_the_winner_answers_even_where_its_loser_had_content_first(mixed, stage):
    """A loser that brought content and was cancelled, and one that ended ok, are seen by nobody."""
    run = mixed()
    hedge = {"attempt": 1, "cause": "hedge", "of_attempt": 0}
    run.request(
        0,
        [
            {"first": 90, "gap": 400, "ended": "cancelled", "end": 100},
            {"sent": 50, "first": 100, **hedge},
        ],
        winner=1,
    )
    run.request(1000, [{"first": 100, "gap": 500}, {"sent": 50, "first": 200, **hedge}], winner=1)
    s = stage(run)

    assert values(s, "ttft_sched") == [100, 200]
    assert values(s, "ttft_sent") == [50, 150]
    assert values(s, "e2e_sched") == [120, 220]
    assert values(s, "tpot") == [10, 10]
    assert values(s, "chunk_gap") == [10] * 4
    assert values(s, "client_delay") == [0.05, 0.05]
    assert len(s.attempts) == 4


@pytest.mark.parametrize("cause", ["retry", "fallback", "resubmit"])
def test_the_clock_of_a_request_starts_once(mixed, stage, cause):
    run = mixed()
    run.request(
        0,
        [
            {"ended": "cancelled", "end": 500},
            {"sent": 700, "first": 900, "attempt": 1, "cause": cause},
        ],
        winner=1,
    )
    s = stage(run)

    assert values(s, "ttft_sched") == [900]
    assert values(s, "ttft_sent") == [200]
    assert values(s, "client_delay") == [0.05]


def test_a_fan_out_has_a_join_and_no_ttft(mixed, stage):
    run = mixed()
    legs = [{"leg": i, "first": 100 + 50 * i} for i in range(4)]
    run.request(0, legs, pattern="fan_out", joined_ms=280)
    run.request(
        1000,
        [*legs[:3], {"leg": 3, "ended": "timeout", "end": 900}],
        pattern="fan_out",
        ended="timeout",
    )
    run.request(2000, [{"first": 100}])
    s = stage(run)

    assert values(s, "join_sched") == [280]
    assert values(s, "join_sched", OFFERED) == [280, np.inf]
    assert values(s, "ttft_sched", OFFERED) == [100]
    assert len(values(s, "chunk_gap")) == 2


def test_two_legs_of_one_answer_begin_with_the_first_and_end_with_the_last(mixed, stage):
    """Progressive: the fast model's words are what the user sees first, the large one's end is the end."""
    run = mixed()
    fast, large = {"leg": 1, "sent": 10, "first": 50}, {"first": 400, "kinds": "x" * 21}
    run.request(0, [large, fast], pattern="progressive")
    run.request(1000, [large, {"leg": 1, "ended": "server_error"}], pattern="progressive")
    run.request(
        2000,
        [{"first": 90}, {**fast, "first": 40, "ended": "cancelled", "end": 120}],
        pattern="progressive",
    )
    run.request(
        3000, [{"first": 90}, {**fast, "first": 400, "kinds": "xxxxx"}], pattern="structured"
    )
    s = stage(run)

    assert values(s, "ttft_sched") == [50, 400, 40, 90]
    assert values(s, "ttft_sent") == [40, 399.95, 30, 89.95]
    assert values(s, "e2e_sched") == [600, 600, 110, 440]
    assert values(s, "tpot") == [10] * 4


def test_a_batch_has_a_turnaround(mixed, stage):
    run = mixed()
    polls = [
        {"attempt": i, "cause": "poll", "sent": 1000 * i, "end": 1000 * i + 10} for i in (1, 2)
    ]
    run.request(0, [{"end": 10}, *polls], pattern="batch")
    run.request(5000, [{"end": 10, "ended": "timeout"}], pattern="batch", ended="timeout")
    s = stage(run)

    assert values(s, "turnaround") == [2010]
    assert values(s, "turnaround", OFFERED) == [2010, np.inf]
    assert values(s, "ttft_sched", OFFERED) == []


def test_thinking_text_and_tools_have_their_own_first_moments(mixed, stage):
    run = mixed()
    run.request(
        0, [{"first": 100, "kinds": "ttxxjj", "tool_ready_at_ns": 81_234_567_890_123 + 180_000_000}]
    )
    run.request(1000, [{"first": 100}])
    s = stage(run)

    assert values(s, "ttft_sched") == [100, 100]
    assert values(s, "ttft_thinking") == [100]
    assert values(s, "ttft_text") == [120, 100]
    assert values(s, "ttft_tool") == [140]
    assert values(s, "tool_ready") == [180]


def test_what_a_user_saw_before_leaving_counts_and_the_rest_is_a_wait_cut_short(mixed, stage):
    """The same of a request that is still open when the run ends, here at 11 s."""
    run = mixed()
    run.request(0, [{"first": 100}])
    run.request(1000, [{"first": 90, "ended": "cancelled", "end": 115}], ended="cancelled")
    run.request(
        2000, [{"ended": "cancelled", "end": 700, "sent": 50}], ended="cancelled", winner=None
    )
    run.request(3000, [{"ended": "server_error", "end": 20}], ended="server_error", winner=None)
    run.request(4000, [{"ended": "censored", "end": None}], ended="censored", winner=None)
    s = stage(run)

    def of(name):
        found = waits(BY_NAME[name], s, OFFERED)
        return found.ms.tolist(), found.seen.tolist(), found.cut.tolist()

    begun, whole = [True, True, False, False, False], [True, False, False, False, False]
    end = s.requests["over_at_ns"].iloc[4] / 1e6 - 4000
    assert end > 1000
    assert of("ttft_sched") == ([100, 90, 700, 20, end], begun, [False, False, True, False, True])
    assert of("ttft_sent")[0][2] == 650
    assert of("e2e_sched") == ([120, 115, 700, 20, end], whole, [False, True, True, False, True])
    assert of("tpot")[1] == [True, False, False]
    assert values(s, "ttft_sched") == [100]


@pytest.mark.slow
def test_who_leaves_after_so_many_chunks_leaves_sooner_where_the_answer_is_fast(tmp_path):
    """Three in ten leave after ten chunks. Their whole times are like those of the others, and the moment at which they
    leave says how fast theirs was: with it the estimate is a quarter too short.
    """
    rows = []
    for share in (0.0, 0.3):
        chat = {
            "prompt_tokens": 100,
            "output_tokens": 40,
            "cancel": {"share": share, "after_chunks": 10},
        }
        tree = {
            "seed": 3, "arrival": {"rate_per_s": 30.0}, "stages": {"duration_s": 60.0, "warmup_s": 0.0},
            "simulated": {"ttft_ms": 700.0, "ttft_sigma": 0.7, "chunk_gap_ms": 5.0}, "traffic": {"chat": chat},
        }  # fmt: skip
        s = steady(load([dry_run_folder(tree, tmp_path / str(share))]))
        rows.append(
            {
                name: row(BY_NAME[name], s, OFFERED, (0.95,)).quantiles[0].value
                for name in ("ttft_sched", "e2e_sched")
            }
        )

    assert rows[1]["ttft_sched"] == rows[0]["ttft_sched"]
    assert rows[1]["e2e_sched"] == pytest.approx(rows[0]["e2e_sched"], rel=0.05)


@pytest.mark.slow
def test_slow_readers_are_left_out_of_the_targets_figures(mixed, tmp_path):
    """Half of the requests are read slowly, sent late and stamped as intervals: none of that is the target's or the client's."""
    run = mixed()
    for i in range(100):
        run.request(i * 100, [{"first": 100}])
        slow = {"sent": 60, "first": 3000, "reader_paused_ns": 2_000_000_000}
        run.request(
            i * 100, [{**slow, "first_content_low_at_ns": 81_234_567_890_123}], traffic="slow"
        )
    found = Run([run.write(tmp_path / "run")])

    assert (found.verdict, found.reasons) == (VALID, [])
    assert values(found.without_slow_readers, "ttft_sched") == [100] * 100
    assert len(found.without_slow_readers.gaps_ns) == 200
    assert found.evidence.stamps.first_intervals == 0
    assert len(found.steady.requests) == 200
    groups = found.result(latency.compute).groups
    apart = next(group for group in groups if group.by == "slow reader")
    assert apart.latency[0].percentiles["p50"].value == 3000


@pytest.mark.slow("1")
@pytest.mark.parametrize("failed", [0, 1])
def test_a_run_of_slow_readers_alone_is_a_run(mixed, tmp_path, failed):
    """Their times are their own; that they got complete answers is the target's.

    A request that failed before anything was read has no pause: without the other 99 it would be all there is.
    """
    run = mixed()
    for i in range(99):
        run.request(i * 90, [{"first": 100, "reader_paused_ns": 1}])
    for _ in range(failed):
        run.request(9000, [{"ended": "server_error"}], ended="server_error", winner=None)
    found = Run([run.write(tmp_path / "run")])
    complete = found.result(objectives.compute).health.complete

    assert (found.verdict, exit_code(found, result(found))) == (VALID, Exit.OK)
    assert (complete.k, complete.n) == (99, 99 + failed)


@pytest.mark.slow
def test_a_dry_run_has_no_client_that_could_be_late(mixed, tmp_path):
    run = mixed(run={"dry_run": True})
    for i in range(100):
        run.request(i * 100, [{"sent": 90, "first": 100, "stamps": "user"}])
    real = mixed(
        run={"dry_run": False}, requests=run.requests, attempts=run.attempts, chunks=run.chunks
    )
    found = Run([run.write(tmp_path / "dry_run")])

    assert (found.verdict, found.reasons) == (VALID, [])
    assert "client_error" in [
        reason.check for reason in Run([real.write(tmp_path / "real")]).reasons
    ]


def test_a_dry_run_excuses_no_lost_row(mixed, tmp_path):
    run = mixed(run={"dry_run": True})
    for i in range(100):
        run.request(i * 100, [{"first": 100}])
    folder = run.write(tmp_path / "run")
    (folder / "requests" / "part-0-0.parquet").unlink()

    assert Run([folder]).verdict == INVALID
