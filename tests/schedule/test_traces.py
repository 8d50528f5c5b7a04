"""Recorded traces: read by column names, every row accounted for, times and sizes as the file has them."""

import json

import numpy as np
import pytest

from tailgauge.errors import ScenarioError
from tailgauge.patterns.table import Traffic
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival, Trace
from tailgauge.schedule.traces import read_trace

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224671,879,0
2023-11-16 18:16:51.2224671,0,7
2023-11-16 18:17:00.0000000,91,16"""
AZURE_2024 = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
BURST_1 = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
5,ChatGPT,1087,230,1317,Conversation log
5,GPT-4,417,0,417,Conversation log
45,GPT-4,417,276,693,API log
"""
BURST_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
100.0,aa,43,GPT-4,906,446,1352,Conversation log
151.0,,2,ChatGPT,36,29,65,API log
"""
MOONCAKE = "".join(
    json.dumps({"timestamp": 3000 * (i // 4), "input_length": 1000 + i, "output_length": 5 + i, "hash_ids": [0, i]})
    + "\n" for i in range(20)
)  # fmt: skip


@pytest.fixture
def replay(tmp_path):
    """Plan the replay of a trace of the given text."""

    def run(
        text, duration_s=3600.0, seed=1, rate_per_s=None, name="trace.csv", traffic=None, **options
    ):
        (tmp_path / name).write_text(text, encoding="utf-8")
        arrival = Arrival(process="trace", rate_per_s=rate_per_s, trace=Trace(file=name, **options))
        return plan(arrival, traffic or {"chat": Traffic()}, duration_s, seed, folder=tmp_path)

    return run


def bursty(n=4000, cv=5.0, seed=3):
    """A trace in Azure's format with gamma gaps of a mean of a second."""
    rng = np.random.default_rng(seed)
    at_us = np.cumsum(rng.gamma(1 / cv**2, cv**2, n) * 1e6).astype("int64")
    stamps = np.datetime64("2024-01-01T00:00:00.000000") + at_us.astype("timedelta64[us]")
    rows = [
        f"{str(stamp).replace('T', ' ')},{100 + i % 900},{1 + i % 200}"
        for i, stamp in enumerate(stamps)
    ]
    return "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])


def cv_of(schedule):
    gaps = np.diff(schedule.at_ns)
    return gaps.std() / gaps.mean()


def assert_every_row_is_accounted_for(schedule):
    facts = schedule.trace
    assert facts["rows_read"] == facts["emitted"] + sum(facts["dropped"].values())
    assert facts["emitted"] == len(schedule)


def test_azure_times_are_kept_to_a_hundred_nanoseconds_relative_to_the_first_row(replay):
    schedule = replay(AZURE)

    assert schedule.at_ns.tolist() == [0, 4_314_579_000, 73_319_410_000]
    assert schedule.prompt_tokens.tolist() == [374, 396, 91]
    assert schedule.output_tokens.tolist() == [44, 109, 16]
    assert schedule.trace["dropped"] == {"without a response": 1, "without a prompt": 1}
    assert schedule.trace["resolution_s"] == 0
    assert_every_row_is_accounted_for(schedule)


def test_azure_of_2024_has_an_offset_in_its_times(replay):
    assert replay(AZURE_2024).at_ns.tolist() == [0, 7_405_000, 990_070_000]


def test_times_across_a_change_of_offset_are_compared_in_utc(replay):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 02:00:00.5+02:00,1,1\n2024-05-10 00:00:01.25Z,1,1"

    assert replay(text).at_ns.tolist() == [0, 750_000_000]


def test_burstgpt_rows_without_a_response_are_counted_as_failures_of_the_trace(replay):
    schedule = replay(BURST_1)

    assert schedule.prompt_tokens.tolist() == [472, 1087, 417]
    assert schedule.output_tokens.tolist() == [18, 230, 276]
    assert schedule.trace["dropped"] == {"without a response": 1}
    assert_every_row_is_accounted_for(schedule)


def test_burstgpt_columns_are_found_by_name_wherever_they_stand(tmp_path):
    (tmp_path / "v3.csv").write_text(BURST_3)
    recorded = read_trace(tmp_path / "v3.csv")

    assert recorded.format == "burstgpt"
    assert recorded.at_ns.tolist() == [0, 51_000_000_000]
    assert recorded.prompt_tokens.tolist() == [906, 36]
    assert recorded.resolution_ns == 1_000_000_000


def test_a_coarse_clock_gives_each_row_a_random_place_within_its_tick(replay):
    for text, tick_ns in ((BURST_1, 10**9), (MOONCAKE, 3 * 10**9)):
        one, same, other = (replay(text, seed=seed) for seed in (1, 1, 2))
        tick = one.at_ns // tick_ns

        assert one.trace["resolution_s"] == tick_ns / 1e9
        assert one.at_ns.tolist() == same.at_ns.tolist() != other.at_ns.tolist()
        assert tick.tolist() == (other.at_ns // tick_ns).tolist()
        assert (np.diff(one.at_ns) > 0).all()
        assert f"clock ticks every {tick_ns / 1e9:g} s" in one.notes[0]


def test_ticks_that_are_cut_to_the_millisecond_are_still_ticks(replay):
    text = "\n".join(
        json.dumps({"timestamp": at, "input_length": 1, "output_length": 1})
        for at in (2999, 3000, 3000, 5999, 9000, 9000)
    )
    late = replay(text).at_ns / 1e9 - np.array([0, 0.001, 0.001, 3, 6.001, 6.001])

    assert replay(text).trace["resolution_s"] == 3
    assert ((late >= 0) & (late <= 3)).all()
    assert late.max() > 0.01


def test_times_finer_than_any_tick_are_taken_as_they_stand(replay):
    text = "\n".join(
        json.dumps({"timestamp": at, "input_length": 1, "output_length": 1})
        for at in (0, 3000, 4500)
    )

    assert replay(text).at_ns.tolist() == [0, 3 * 10**9, 4_500_000_000]
    assert replay(text).trace["resolution_s"] == 0


def test_places_within_a_tick_are_uniform(replay):
    text = "\n".join(
        json.dumps({"timestamp": 3000 * (i // 10), "input_length": 1, "output_length": 1})
        for i in range(10_000)
    )
    places = replay(text, name="m.jsonl").at_ns % (3 * 10**9) / 3e9

    assert places.mean() == pytest.approx(0.5, abs=4 / np.sqrt(12 * 10_000))
    assert np.histogram(places, 10, (0, 1))[0].std() < 4 * np.sqrt(1000)


def test_mooncake_blocks_go_to_the_source_of_each_arrival(replay):
    rows = list(replay(MOONCAKE).slice(0, 10**12))

    assert [row.source["blocks"] for row in rows] == [[0, i] for i in range(20)]
    assert [row.prompt_tokens for row in rows] == [1000 + i for i in range(20)]
    assert json.loads(json.dumps(rows[3])) == list(rows[3])


@pytest.mark.parametrize("options", [{"blocks": False}, {"sizes": False}])
def test_without_blocks_or_sizes_there_is_no_source(replay, options):
    assert {row.source for row in replay(MOONCAKE, **options).slice(0, 10**12)} == {None}


def test_without_sizes_the_traffic_decides_them(replay):
    schedule = replay(
        AZURE, sizes=False, traffic={"chat": Traffic(prompt_tokens=7, output_tokens=3)}
    )

    assert set(schedule.prompt_tokens.tolist()) == {7}
    assert set(schedule.output_tokens.tolist()) == {3}


def test_rows_beyond_the_duration_are_counted(replay):
    schedule = replay(AZURE, duration_s=60)

    assert len(schedule) == 2
    assert schedule.trace["dropped"]["beyond the duration"] == 1
    assert_every_row_is_accounted_for(schedule)


def test_a_trace_that_ends_early_is_not_looped_and_the_notes_say_when_it_ends(replay):
    schedule = replay(AZURE, duration_s=600)

    assert "the trace ends 73.3 s into the run, which lasts 600 s" in schedule.notes[1]
    assert len(replay(AZURE, duration_s=74).notes) == 1


def test_speed_up_divides_the_times_and_drops_nothing(replay):
    plain, fast = (replay(bursty(), duration_s=1e6, speed_up=factor) for factor in (1.0, 8.0))

    assert np.abs(plain.at_ns / 8 - fast.at_ns).max() <= 0.5
    assert cv_of(fast) == pytest.approx(cv_of(plain), rel=1e-6)
    assert fast.prompt_tokens.tolist() == plain.prompt_tokens.tolist()
    assert "its times were divided by 8" in fast.notes[0]
    assert_every_row_is_accounted_for(fast)


def test_thinning_keeps_the_burst_shape(replay):
    """Of every gap's cv, c, a share p kept makes sqrt(p c^2 + 1 - p); times stay what they are."""
    text = bursty()
    plain, thin = (replay(text, duration_s=1e6, keep_share=share) for share in (1.0, 0.5))
    kept = len(thin)

    assert abs(kept - 2000) < 4 * np.sqrt(4000 * 0.25)
    assert set(thin.at_ns.tolist()) < set(plain.at_ns.tolist())
    assert cv_of(thin) == pytest.approx(np.sqrt(0.5 * cv_of(plain) ** 2 + 0.5), rel=0.15)
    assert thin.trace["dropped"] == {"thinned out": 4000 - kept}
    assert_every_row_is_accounted_for(thin)


def test_which_rows_are_kept_depends_on_the_seed_and_not_on_the_duration(replay):
    long, short, other = (
        replay(bursty(), duration_s=duration_s, seed=seed, keep_share=0.3)
        for duration_s, seed in ((1e6, 1), (900, 1), (1e6, 2))
    )

    assert long.at_ns[: len(short)].tolist() == short.at_ns.tolist()
    assert set(long.at_ns.tolist()) != set(other.at_ns.tolist())


@pytest.mark.parametrize("keep_share", [1.0, 0.5])
def test_a_rate_scales_the_time_to_that_mean_rate(replay, keep_share):
    schedule = replay(bursty(), duration_s=1e6, rate_per_s=20.0, keep_share=keep_share)
    found = (len(schedule) - 1) / (schedule.at_ns[-1] / 1e9)

    assert found == pytest.approx(20, rel=1e-6 if keep_share == 1 else 0.1)
    assert cv_of(schedule) > 3


def test_a_file_is_found_beside_the_scenario_first_and_else_from_here(tmp_path, monkeypatch):
    beside, here = tmp_path / "scenarios", tmp_path / "here"
    for folder, text in ((beside, AZURE), (here, AZURE_2024)):
        folder.mkdir()
        (folder / "one.csv").write_text(text)
    (here / "other.csv").write_text(BURST_3)
    monkeypatch.chdir(here)

    def read(name):
        arrival = Arrival(process="trace", trace=Trace(file=name))
        return plan(arrival, {"chat": Traffic()}, 600, 1, folder=beside).trace

    assert read("one.csv")["rows_read"] == 5
    assert read("other.csv")["format"] == "burstgpt"
    assert read(str(here / "one.csv"))["rows_read"] == 3


def test_a_trace_of_which_nothing_is_left_is_refused(replay):
    text = BURST_1.splitlines()[0] + "\n5,ChatGPT,472,0,472,x\n6,ChatGPT,1,0,1,x"

    with pytest.raises(
        ScenarioError, match="none of its 2 rows is left to send: 2 without a response"
    ):
        replay(text)


def test_a_trace_of_one_row_has_no_rate_to_scale(replay):
    with pytest.raises(ScenarioError, match=r"arrival\.rate_per_s: the trace is too short"):
        replay("\n".join(AZURE.splitlines()[:2]), rate_per_s=5.0)
