"""Traces whose columns look alike: seconds and milliseconds, blocks of 16 and of 512 tokens, distinguished or refused."""

import json
import math

import pytest

from tailgauge.errors import Exit, ScenarioError
from tailgauge.patterns.table import Traffic
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival, Trace

STEP_S = 1.537  # between two rows: not a whole number of milliseconds times a thousand


def bailian(i, *, time=None, tokens=None, block_tokens=16, **more):
    """A row as Bailian publishes it; its conversation has three turns, each longer than the one before."""
    conversation, turn = divmod(i, 3)
    tokens = tokens or 100 + 70 * turn + i
    first = 1000 * conversation
    blocks = list(range(first, first + math.ceil(tokens / block_tokens)))
    row = {
        "chat_id": i + 1,
        "parent_chat_id": i if turn else -1,
        "timestamp": round(STEP_S * i, 3) if time is None else time,
        "input_length": tokens,
        "output_length": 5 + i,
        "type": "text",
        "turn": turn + 1,
        "hash_ids": blocks,
    }
    return row | more


def without(row, *names):
    return {name: value for name, value in row.items() if name not in names}


def bare(row):
    """The row with Mooncake's columns alone."""
    return without(row, "chat_id", "parent_chat_id", "type", "turn")


@pytest.fixture
def replay(tmp_path):
    """Plan the replay of a trace of the given rows."""

    def run(rows, duration_s=3600.0, **options):
        path = tmp_path / "t.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        arrival = Arrival(process="trace", trace=Trace(file=str(path), **options))
        return plan(arrival, {"chat": Traffic()}, duration_s, 1)

    return run


def refusal(replay, rows, **options):
    with pytest.raises(ScenarioError) as caught:
        replay(rows, **options)
    assert caught.value.exit_code == Exit.USAGE
    return str(caught.value)


class TestBailian:
    def test_times_are_seconds_with_their_fractions(self, replay):
        schedule = replay([bailian(i) for i in range(30)])

        assert schedule.trace["format"] == "bailian"
        assert schedule.at_ns.tolist() == [round(STEP_S * 1000 * i) * 1_000_000 for i in range(30)]
        assert schedule.prompt_tokens.tolist() == [100 + 70 * (i % 3) + i for i in range(30)]
        assert schedule.output_tokens.tolist() == [5 + i for i in range(30)]
        assert schedule.trace["block_tokens"] == 16
        assert schedule.trace["odd_blocks"] == 0

    def test_times_in_whole_seconds_get_a_place_within_their_second(self, replay):
        schedule = replay([bailian(i, time=i // 4) for i in range(40)])

        assert schedule.trace["resolution_s"] == 1
        assert [at // 10**9 for at in schedule.at_ns.tolist()] == [i // 4 for i in range(40)]

    def test_a_worker_gets_the_blocks_and_their_size(self, replay):
        first, second, *_ = replay([bailian(i) for i in range(6)]).slice(0, 10**18)

        assert first.source == {"blocks": list(range(7)), "block_tokens": 16}
        assert second.source == {"blocks": list(range(11)), "block_tokens": 16}

    def test_a_row_without_blocks_is_asked_in_words_of_its_own(self, replay):
        rows = [bailian(i, hash_ids=[]) if i == 4 else bailian(i) for i in range(9)]

        assert replay(rows).trace["emitted"] == 9

    def test_a_file_without_blocks_is_known_by_its_chats(self, replay):
        schedule = replay([without(bailian(i), "hash_ids", "turn", "type") for i in range(9)])

        assert schedule.trace["format"] == "bailian"
        assert schedule.trace["block_tokens"] is None
        assert schedule.at_ns[-1] == round(STEP_S * 1000 * 8) * 1_000_000

    def test_failed_rows_are_counted_as_in_other_traces(self, replay):
        rows = [bailian(i, output_length=0) if i % 10 == 3 else bailian(i) for i in range(20)]

        assert replay(rows).trace["dropped"] == {"without a response": 2}

    def test_rows_out_of_order_are_refused_with_their_line(self, replay):
        rows = [bailian(i) for i in range(9)]
        rows[4], rows[5] = rows[5], rows[4]

        assert (
            "t.jsonl:6: column timestamp: '6.148' is before the time of the row above: sort the trace"
            in (refusal(replay, rows))
        )


class TestContradictions:
    def test_columns_of_mooncake_with_blocks_of_bailian_are_refused(self, replay):
        rows = [bare(bailian(i)) for i in range(9)]
        text = refusal(replay, rows)

        assert (
            "t.jsonl:1: column hash_ids: has 7 blocks for 100 tokens, expected 1 of 512 tokens (format mooncake); "
            "9 of 9 rows do not agree. Set arrival.trace.format, or arrival.trace.block_tokens to the size of its blocks; "
            "arrival.trace.blocks=false replays it without shared prefixes"
        ) in text
        assert replay(rows, format="bailian").at_ns[-1] == round(STEP_S * 1000 * 8) * 1_000_000

    def test_what_the_refusal_says_reads_the_other_unit(self, replay):
        rows = [bare(bailian(i, time=1537 * i)) for i in range(9)]
        schedule = replay(rows, format="mooncake", block_tokens=16)

        assert schedule.at_ns.tolist() == [1537 * i * 1_000_000 for i in range(9)]
        assert schedule.block_tokens == 16

    def test_columns_of_bailian_with_blocks_of_mooncake_are_refused(self, replay):
        """Bailian's rows as a converter writes them for readers of Mooncake: the chats stay as further columns."""
        rows = [bailian(i, tokens=2000 + i, time=1537 * i, block_tokens=512) for i in range(9)]
        text = refusal(replay, rows)

        assert "has 4 blocks for 2,000 tokens, expected 125 of 16 tokens (format bailian)" in text
        assert replay(rows, format="mooncake").at_ns[1] == 1_537_000_000

    def test_a_size_that_neither_has_is_refused_until_it_is_set(self, replay):
        rows = [bailian(i, tokens=900 + 40 * i, block_tokens=64) for i in range(9)]
        text = refusal(replay, rows)

        assert "expected 57 of 16 tokens (format bailian)" in text
        assert replay(rows, format="bailian", block_tokens=64).block_tokens == 64

    def test_a_size_that_is_set_is_checked_too(self, replay):
        text = refusal(replay, [bailian(i) for i in range(9)], block_tokens=128)

        assert "expected 1 of 128 tokens (format bailian); 9 of 9 rows do not agree" in text

    def test_rows_of_two_sizes_agree_with_none(self, replay):
        rows = [bailian(i, tokens=900, block_tokens=16 if i % 2 else 512) for i in range(10)]
        text = refusal(replay, rows)

        assert "5 of 10 rows do not agree" in text
        assert replay(rows, format="bailian", blocks=False).trace["emitted"] == 10

    def test_a_few_odd_rows_are_counted(self, replay):
        rows = [bailian(i) for i in range(100)]
        rows[7]["hash_ids"].append(5)
        schedule = replay(rows)

        assert schedule.trace["odd_blocks"] == 1
        assert (
            "rows whose blocks of 16 tokens do not agree with their length: 1" in schedule.notes[0]
        )

    def test_mooncake_rows_with_other_blocks_are_refused_although_the_format_is_named(self, replay):
        rows = [bare(bailian(i, time=3000 * i)) for i in range(9)]

        assert "expected 1 of 512 tokens (format mooncake)" in refusal(
            replay, rows, format="mooncake"
        )


class TestUnits:
    def test_the_unit_can_be_set(self, replay):
        in_ms = [bailian(i, time=1537 * i) for i in range(9)]
        in_s = [without(bare(bailian(i)), "hash_ids") for i in range(9)]

        assert replay(in_ms, time_unit="ms").at_ns[-1] == 8 * 1_537_000_000
        assert replay(in_s, time_unit="s").at_ns[1] == round(STEP_S * 1000) * 1_000_000

    def test_times_since_1970_in_milliseconds_are_never_seconds(self, replay):
        rows = [bailian(i, time=1_790_000_000_000 + 20 * i) for i in range(9)]

        assert "column timestamp: '1790000000000' is over a century away" in refusal(replay, rows)
        assert replay(rows, time_unit="ms").at_ns.tolist() == [20_000_000 * i for i in range(9)]

    def test_seconds_of_a_burstgpt_trace_may_be_far_apart(self, tmp_path):
        path = tmp_path / "burst.csv"
        path.write_text("Timestamp,Request tokens,Response tokens\n5,10,3\n500,10,3\n9000,10,3\n")
        arrival = Arrival(process="trace", trace=Trace(file=str(path)))

        assert plan(arrival, {"chat": Traffic()}, 10_000, 1).trace["emitted"] == 3

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            (
                {"time_unit": "ms"},
                "arrival.trace.time_unit: a trace of format azure has dates and times",
            ),
            (
                {"block_tokens": 16},
                "arrival.trace.block_tokens: a trace of format azure has no blocks",
            ),
        ],
    )
    def test_keys_that_mean_nothing_in_a_format_are_refused(self, tmp_path, options, why):
        path = tmp_path / "azure.csv"
        path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
        arrival = Arrival(process="trace", trace=Trace(file=str(path), **options))

        with pytest.raises(ScenarioError, match=why):
            plan(arrival, {"chat": Traffic()}, 60, 1)
