"""The client's error of a figure: it holds what is true, and falls on the right side of each limit."""

from dataclasses import replace

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder
from run_folders.run_data import edited_run

from tailgauge.thresholds import DEGRADED, INVALID, VALID
from tailgauge_analysis.metrics import latency
from tailgauge_analysis.metrics.metrics import METRICS, RATE
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.chunks import Chunks, Ranges
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.run import Run
from tailgauge_analysis.stats.quantiles import CLIENT, rank
from tailgauge_analysis.verdict.client_error import (
    NO_FIGURES_USED,
    ClientError,
    Uses,
    client_errors,
    effect,
    marked,
    of_first_table,
)

N, MS = 600, 1_000_000
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def base(synthetic, tmp_path_factory):
    """A stage of answers with 20 chunks, of which a test replaces the times."""
    spec = {"n": N, "rate_per_s": 50.0, "warmup_s": 0.0, "offsets_ns": (0,)}
    return steady(load([synthetic.write(tmp_path_factory.mktemp("run"), **spec)]))


def read(base, seed, *, freeze=(), poll_ms=0.5, gap_ms=20.0, chunks=20, collect_ms=0.0):
    """Arrivals of every chunk, and the stage as a reader saw it that polls so often and froze from .. to .. (seconds).

    Of what arrives between two polls only the last has a time; the others lie in the range since the poll before.
    `collect_ms`: a proxy passes on at the ticks of its clock.
    """
    rng = np.random.default_rng(seed)
    first = base.requests["scheduled_at_ns"].to_numpy() / MS + rng.lognormal(np.log(200), 0.3, N)
    gaps = rng.lognormal(np.log(gap_ms), 0.5, (N, chunks - 1)) * (rng.random((N, chunks - 1)) > 0.1)
    arrivals = np.column_stack([first, first[:, None] + np.cumsum(gaps, axis=1)])
    if collect_ms:
        arrivals = (np.floor(arrivals / collect_ms) + rng.uniform(1, 2)) * collect_ms
    polls = np.arange(0, arrivals.max() + poll_ms, poll_ms)
    for begin, end in freeze:
        polls = polls[(polls < begin * 1e3) | (polls >= end * 1e3)]
    batch = np.searchsorted(polls, arrivals, "left")
    seen, low = arrivals.copy(), np.full(arrivals.shape, np.nan)
    for at in range(chunks - 2, -1, -1):
        same = batch[:, at] == batch[:, at + 1]
        seen[same, at] = seen[same, at + 1]
        low[same, at] = polls[batch[same, at] - 1]
    ids = np.arange(N)
    zero = np.zeros(N, np.int64)
    at = np.flatnonzero(~np.isnan(low.ravel()))
    width = np.round((seen - low).ravel()[at] * MS).astype(np.int64)
    folded = Chunks(ids, zero, zero, np.full(N, chunks), zero, zero, zero, np.round(seen.ravel() * MS).astype(np.int64), Ranges(at, width))  # fmt: skip
    ns = {"first_content_at_ns": seen[:, 0], "first_at_ns": seen[:, 0], "first_low_at_ns": low[:, 0], "first_content_low_at_ns": low[:, 0], "last_content_at_ns": seen[:, -1], "pace_from_ns": seen[:, 0], "whole_at_ns": seen[:, -1]}  # fmt: skip
    requests = base.requests.assign(
        **{name: value * MS for name, value in ns.items()}, last_content_low_at_ns=np.nan
    )
    requests["worst_gap_ns"] = np.diff(seen, axis=1).max(axis=1) * MS
    stage = replace(
        base, requests=requests, gaps_ns=folded.gaps_ns(ids), gap_counts=np.full(N, chunks - 1), gap_ranges=folded.gap_ranges(ids)
    )  # fmt: skip
    return arrivals, stage


def rows_of(stage):
    return [
        latency.row(m, stage, view) for m in METRICS if m.unit != RATE for view in latency.views(m)
    ]


def errors_of(stage):
    rows = rows_of(stage)
    return {(e.metric, e.quantile): e for e in client_errors(stage, rows, NO_FIGURES_USED)}, rows


def ground_truths(arrivals, stage):
    scheduled = stage.requests["scheduled_at_ns"].to_numpy() / MS
    tokens = stage.requests["output_tokens"].to_numpy()
    return {
        "ttft_sched": arrivals[:, 0] - scheduled,
        "e2e_sched": arrivals[:, -1] - scheduled,
        "tpot": (arrivals[:, -1] - arrivals[:, 0]) / (tokens - 1),
        "chunk_gap": np.diff(arrivals, axis=1).ravel(),
        "chunk_gap_worst": np.diff(arrivals, axis=1).max(axis=1),
    }


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "freeze", [(), ((4.0, 6.0),), tuple((t, t + 0.2) for t in range(1, 12, 2))]
)
def test_the_percentile_of_the_arrivals_lies_between_the_two_values(base, seed, freeze):
    """A prompt reader; one frozen for 2 s; one that stops for 200 ms every 2 s."""
    arrivals, stage = read(base, seed, freeze=freeze)
    errors, _ = errors_of(stage)

    for name, values in ground_truths(arrivals, stage).items():
        ordered = np.sort(values)
        for p in latency.QUANTILES:
            if (error := errors.get((name, p))) is not None:
                at = ordered[rank(len(ordered), p) - 1]
                assert error.lows_value - 1e-3 <= at <= error.highs_value + 1e-3, (name, p)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_prompt_reader_distorts_nothing_and_a_frozen_one_what_it_reached(base, seed):
    """Frozen for 0.3 of 13 s: the upper percentiles of the gaps are no longer known, the median of TTFT is."""
    prompt, _ = errors_of(read(base, seed)[1])
    frozen, rows = errors_of(read(base, seed, freeze=((4.0, 4.3),))[1])

    assert {error.verdict for error in prompt.values()} == {VALID}
    assert frozen["chunk_gap", 0.99].verdict == INVALID
    assert frozen["ttft_sched", 0.5].verdict == VALID
    found = {row.metric.name: row for row in marked(rows, list(frozen.values()))}
    assert [q.mark for q in found["chunk_gap"].quantiles][-2:] == [CLIENT, CLIENT]
    assert CLIENT not in [q.mark for q in found["ttft_sched"].quantiles][:1]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gap_ms", [4.0, 20.0, 60.0])
def test_a_run_takes_the_worst_figure_of_its_first_table(base, seed, gap_ms):
    """A client that stops for 60 ms or more every 300 ms: the p99 of the gaps is the client's, TTFT hardly is."""
    stop_s = max(0.06, 0.003 * gap_ms)
    stops = tuple((t, t + stop_s) for t in np.arange(0.5, 12.5, 0.3))
    for freeze, is_valid in (((), True), (stops, False)):
        stage = read(base, seed, freeze=freeze, gap_ms=gap_ms, poll_ms=0.2)[1]
        rows = rows_of(stage)
        used = of_first_table(rows, closed=False, is_coalesced=False)
        errors = client_errors(stage, rows, Uses(shown=used, deciding={}))
        beyond = {
            (error.metric, error.quantile)
            for error in errors
            if error.is_used and error.verdict != VALID
        }

        assert {("ttft_sched", 0.5), ("tpot", 0.99), ("chunk_gap", 0.99), ("e2e_sent", 0.9)} <= used
        assert (beyond == set()) == is_valid
        assert is_valid or ("chunk_gap", 0.99) in beyond


def test_the_first_table_has_no_row_twice(base):
    stage = read(base, 1)[1]
    rows = latency.table(stage)
    alone = of_first_table(rows, closed=False, is_coalesced=False)
    several = of_first_table(rows, closed=False, is_coalesced=True)
    of_users = of_first_table(rows, closed=True, is_coalesced=False)

    assert {name for name, _ in several - alone} == {"tpot_c"}
    assert {name for name, _ in alone - of_users} >= {"ttft_sched", "e2e_sched"}
    assert "chunk_pace" not in {name for name, _ in alone}
    assert (("chunk_gap", 0.999) in alone) == (("ttft_sched", 0.999) in alone) == False  # noqa: E712 - one column


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("poll_ms", "period_ms"), [(1.0, 50.0), (2.0, 20.0), (5.0, 100.0)])
def test_what_arrived_together_is_no_error_of_the_client(base, seed, poll_ms, period_ms):
    """Pieces of chunks have a range since the last poll; as none was split between two polls, they arrived together."""
    arrivals, stage = read(base, seed, poll_ms=poll_ms, collect_ms=period_ms)
    errors, _ = errors_of(stage)
    gaps = np.sort(np.diff(arrivals, axis=1).ravel())

    assert (gaps == 0).mean() > 0.1
    for p in (0.25, 0.5, 0.9, 0.99):
        if (error := errors.get(("chunk_gap", p))) is not None:
            assert error.error_ms < max(0.5, 0.05 * gaps[rank(len(gaps), p) - 1]), p


def of_one_chunk(base, width_ms, ttft_ms=200.0, late_ms=0.0, late=0):
    """Answers of one chunk, each read with its end; the last `late` of them were sent late."""
    at = base.requests["scheduled_at_ns"] + ttft_ms * MS
    sent = base.requests["scheduled_at_ns"] + np.where(np.arange(N) >= N - late, late_ms, 0.0) * MS
    names = (
        "first_at_ns",
        "first_content_at_ns",
        "first_text_at_ns",
        "last_content_at_ns",
        "whole_at_ns",
    )
    lows = (
        "first_low_at_ns",
        "first_content_low_at_ns",
        "first_text_low_at_ns",
        "last_content_low_at_ns",
    )
    requests = base.requests.assign(
        **dict.fromkeys(names, at),
        **dict.fromkeys(lows, at - width_ms * MS),
        first_sent_at_ns=sent,
        worst_gap_ns=np.nan,
    )
    return replace(base, requests=requests, gaps_ns=np.empty(0), gap_counts=np.zeros(N, np.int64))


@pytest.mark.parametrize(
    ("width_ms", "ttft_ms", "word"),
    [
        (0.3, 5.0, VALID),  # read promptly: the range is as wide as the time between two polls
        (0.51, 5.0, DEGRADED),
        (1.1, 5.0, INVALID),
        (9.9, 200.0, VALID),
        (10.1, 200.0, DEGRADED),
        (20.1, 200.0, INVALID),
    ],
)
def test_an_answer_of_one_chunk_is_as_exact_as_its_reader_was_prompt(base, width_ms, ttft_ms, word):
    errors, _ = errors_of(of_one_chunk(base, width_ms, ttft_ms))

    assert {errors["ttft_sched", p].verdict for p in (0.5, 0.99)} == {word}
    assert errors["ttft_sched", 0.5].error_ms == pytest.approx(width_ms)


@pytest.mark.parametrize(("late", "shift_ms"), [(0, 0.0), (2, 0.0), (4, 150.0)])
def test_fewer_than_three_late_requests_shift_nothing(base, late, shift_ms):
    """The p99.4 of 600 is the fourth largest."""
    stage = of_one_chunk(base, 0.0, late_ms=150.0, late=late)
    early = stage.requests["first_at_ns"].where(
        np.arange(N) < N - late, stage.requests["first_at_ns"] + 150 * MS
    )
    stage = replace(stage, requests=stage.requests.assign(first_at_ns=early, first_low_at_ns=early))
    (row,) = [latency.row(metric, stage, latency.SUCCESSES, (0.994,)) for metric in (METRICS[0],)]
    (error,) = client_errors(stage, [row], NO_FIGURES_USED)

    assert error.late_shift == pytest.approx(shift_ms)
    assert error.verdict == (INVALID if shift_ms else VALID)


def test_what_was_read_late_and_what_was_sent_late_add_up_in_a_percentile(base):
    """Each alone leaves the p95 where the other has moved it: of 200 ms, 40 answers were read 80 ms late, 40 sent 90 ms late."""
    stage, number = of_one_chunk(base, 0.0, late_ms=90.0, late=40), np.arange(N)
    read_late = np.where(number < 40, 80 * MS, 0)
    times = {
        name: stage.requests[name] + read_late + np.where(number >= N - 40, 90 * MS, 0)
        for name in ("first_at_ns", "first_content_at_ns")
    }
    lows = {f"{name[:-6]}_low_at_ns": at - read_late for name, at in times.items()}
    errors, _ = errors_of(replace(stage, requests=stage.requests.assign(**times, **lows)))
    error = errors["ttft_sched", 0.95]

    assert (error.lows_value, error.highs_value) == pytest.approx((290.0, 290.0))
    assert (error.late_shift, error.error_ms, error.verdict) == (
        pytest.approx(90.0),
        pytest.approx(90.0),
        INVALID,
    )
    assert errors["ttft_sched", 0.5].error_ms == 0.0


@pytest.mark.slow("closed-False")
@pytest.mark.parametrize(("arrival", "decides"), [("open", True), ("closed", False)])
def test_late_sending_decides_where_the_headline_counts_since_scheduled(write, arrival, decides):
    """A user of a closed loop comes back when the answer is there: its TTFT is since sent."""
    folder = write(n=1000, chunks=1, warmup_s=0.0, delay_ms=30.0, ttft_ms=230.0)
    with edited_run(folder) as run:
        run["arrival"] = arrival
    found = Run([folder])
    used = {one.metric for one in found.evidence.errors if one.is_used}

    assert {"ttft_sent", "e2e_sent", "chunk_gap"} - used == {"chunk_gap"}
    assert ({"ttft_sched", "e2e_sched"} <= used) == decides
    assert ("client_error" in {reason.check for reason in found.reasons}) == decides


def test_waiting_for_a_slot_that_the_scenario_limits_is_no_delay_by_the_client(tmp_path):
    """Two slots for eight legs a second of one second each: every join waits for those before it, as the scenario asks."""
    fan_out = {"legs": 4, "at_once_per_worker": 2}
    tree = {
        "arrival": {"process": "constant", "rate_per_s": 2.0}, "stages": {"duration_s": 30.0, "warmup_s": 0.0},
        "simulated": {"ttft_ms": 900.0, "chunk_gap_ms": 10.0},
        "traffic": {"search": {"pattern": "fan_out", "prompt_tokens": 10, "output_tokens": 4, "fan_out": fan_out}},
    }  # fmt: skip
    found = Run([dry_run_folder(tree, tmp_path)])
    rows = {row.metric.name: row for row in found.evidence.latency if row.view == latency.SUCCESSES}

    assert (
        found.steady.requests["first_sent_at_ns"] - found.steady.requests["scheduled_at_ns"]
    ).max() > 1e9
    assert {(one.late_shift, one.verdict) for one in found.evidence.errors} == {(0.0, VALID)}
    assert CLIENT not in [q.mark for q in rows["join_sched"].quantiles]
    assert rows["client_delay"].quantiles[-1].value == 0.0


def test_ten_ms_of_a_long_gap_are_too_much(base):
    stage = replace(base, gaps_ns=np.full_like(base.gaps_ns, 400.0 * MS))
    at = np.arange(len(stage.gaps_ns))
    for width_ms, word in ((9.0, VALID), (11.0, INVALID)):
        ranges = replace(
            stage.gap_ranges,
            gap=at,
            ns=np.full(len(at), width_ms * MS),
            begins=np.ones(len(at), bool),
        )
        errors, _ = errors_of(replace(stage, gap_ranges=ranges))
        assert errors["chunk_gap", 0.5].verdict == word


def test_an_interval_that_is_wide_anyway_allows_a_quarter_of_its_half_width(write):
    """TTFT between 50 and 1,000 ms: its p99 is known within some 40 ms, and 12 ms of the client are no matter."""
    waits = np.random.default_rng(4).lognormal(np.log(150), 0.8, 1000)
    result = Run([write(n=1000, chunks=1, ttft_ms=waits, delay_ms=12.0)])
    by = {(e.metric, e.quantile): e for e in result.evidence.errors}

    assert by["ttft_sched", 0.99].verdict == VALID
    assert by["ttft_sched", 0.99].limit_ms > 12 > by["ttft_sched", 0.5].limit_ms
    assert by["ttft_sched", 0.5].verdict == DEGRADED


@pytest.mark.slow
def test_only_what_the_headline_or_an_objective_uses_decides_on_the_run(write):
    """Ten of 1,000 requests 150 ms late move p99.9 alone, which has its own verdict; an objective on it takes it over."""
    late = np.where(np.arange(1000) % 100 == 50, 150.0, 0.05)
    spec = {"n": 1000, "chunks": 1, "warmup_s": 0.0, "delay_ms": late, "ttft_ms": 200 + late}
    slo = {"slo": "ttft_sched p99.5 < 500ms"}
    for name, more in (("without", {}), ("with", {"slo": slo})):
        result = Run([write(name, **spec, **more)])
        made = build(result)
        data = made.data
        used = [e for e in data["client_error"] if e["is_used"] and e["verdict"] != VALID]
        assert [e["quantile"] for e in used] == ([0.995] if more else [])
        assert ("client_error" in {r["check"] for r in data["verdict"]["reasons"]}) == bool(more)
    assert "TTFT since scheduled" in markdown(made)


def test_two_objectives_on_one_figure_have_one_error(write):
    slo = {
        "a": "ttft_sched p60 < 500ms",
        "b": "ttft_sched p60 < 800ms",
        "c": "chat: ttft_sched p60 < 500ms",
        "d": "chat: ttft_sched p60 < 800ms",
    }
    run = Run([write(n=400, scenario={"slo": slo})])
    titles = [error.title for error in run.evidence.errors if error.quantile == 0.6]

    assert titles == ["TTFT since scheduled", "TTFT since scheduled (chat)"]


def error(
    title, quantile, error_ms, verdict=VALID, *, is_used=True, view="successes", polls_ms=0.0
):
    return ClientError(
        metric=title, title=title, view=view, quantile=quantile, lows_value=100.0, highs_value=100.0 + error_ms, late_shift=0.0,
        error_ms=error_ms, limit_ms=1.0, verdict=verdict, is_used=is_used, decides=False, moved_ms=error_ms - polls_ms, polls_ms=polls_ms,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ([], ""),
        ([error("Chunk gap", 0.99, 5.0, is_used=False)], ""),
        ([error("Chunk gap", 0.99, 0.04), error("TPOT", 0.5, 0.0)], "The client moved no figure by 0.10 ms or more."),
        ([error("Turnaround", 0.5, 500.05, polls_ms=500.0)], "The client moved no figure by 0.10 ms or more."),
        (
            [error("TTFT since sent", 0.5, 0.3), error("Chunk gap", 0.99, 0.78), error("Chunk gap", 0.5, 0.01)],
            "The client moved chunk gap p99 by at most 0.78 ms and TTFT since sent p50 by at most 0.30 ms, each within its limit.",
        ),
        (
            [error("Chunk gap", 0.99, 19.1, INVALID), error("TPOT", 0.5, 0.2), error("TPOT", 0.5, 0.4, view="offered")],
            "The client moved chunk gap p99 by at most 19.1 ms (above its limit) and TPOT p50 by at most 0.40 ms.",
        ),
        (
            [error("TPOT", p, 0.2) for p in latency.QUANTILES],
            f"The client moved {', '.join(f'TPOT {p} by at most 0.20 ms' for p in ('p50', 'p90', 'p95'))} and 2 other figures by less, each within its limit.",
        ),
    ],
)  # fmt: skip
def test_one_sentence_names_the_figures_that_the_client_moved(errors, text):
    assert effect(errors) == text
