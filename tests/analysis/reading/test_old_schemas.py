"""Every schema version that was ever released still loads."""

from pathlib import Path

import pyarrow as pa
import pytest

from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import SUCCESSES, sample
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.reading.old_schemas import with_times

FIXTURES = Path(__file__).parent / "fixtures"


def test_every_version_has_a_fixture():
    assert {path.name for path in FIXTURES.iterdir()} == {
        f"schema-{version}" for version in range(1, schema.SCHEMA_VERSION + 1)
    }


@pytest.mark.parametrize("version", range(1, schema.SCHEMA_VERSION + 1))
def test_an_old_run_still_loads(version):
    """Six requests at 2 a second, the first two in the warm-up, the last one rate-limited."""
    frames = load([FIXTURES / f"schema-{version}"])
    stage = steady(frames)

    assert frames.problems == ()
    assert stage.requests["ended"].tolist() == ["ok", "ok", "ok", "rate_limited"]
    assert sample(BY_NAME["ttft_sched"], stage, SUCCESSES)[0].tolist() == [200.0] * 3
    assert sample(BY_NAME["chunk_gap"], stage, SUCCESSES)[0].tolist() == [10.0] * 6
    assert len(frames.server_log) == 5


def test_what_an_old_part_lacks_is_what_was_always_so():
    frames = load([FIXTURES / "schema-1"])

    assert frames.requests["winner"].isna().all()
    assert frames.requests["tags"].isna().all()
    assert set(frames.attempts["target"]) == {"main"}
    assert frames.attempts["streamed"].all()
    assert frames.attempts["reader_paused_ns"].isna().all()


def test_the_third_schema_knows_attempts_and_winners():
    """Of the third request the hedge won; its loser and the retry of the fourth are rows and no answers."""
    frames = load([FIXTURES / "schema-3"])
    stage = steady(frames)

    assert stage.requests["winner"].tolist()[:3] == [1, 1, 0]
    assert stage.attempts["cause"].tolist() == ["primary", "hedge", "primary", "retry", "primary", "primary"]
    assert frames.requests["tags"].dropna().tolist() == ['{"tenant": "a"}'] * 6


def test_times_that_followed_from_the_row_before_come_back():
    """Two attempts; of the first one two chunks came in one read, and the one before is as early as it can have been."""
    rows = pa.table({
        "request_id": [1, 1, 1, 1, 2, 2], "arrived_at_ns": pa.array([100, None, None, None, 50, None], pa.int64()),
        "gap_ns": pa.array([None, 30, None, 5, None, 7], pa.int64()),
        "low_at_ns": pa.array([60, None, None, None, None, 51], pa.int64()),
        "lag_ns": pa.array([5, 6, None, 6, 9, 8], pa.int64()), "exact": [False, False, True, True, True, False],
    })  # fmt: skip

    assert with_times(rows).to_pydict() == {
        "request_id": [1, 1, 1, 1, 2, 2], "arrived_at_ns": [100, 130, 130, 135, 50, 57],
        "low_at_ns": [60, 100, None, None, None, 51], "lag_ns": [5, 6, 6, 6, 9, 8],
        "exact": [False, False, True, True, True, False],
    }  # fmt: skip
    with pytest.raises(ValueError, match="no time to begin with"):
        with_times(rows.slice(1))


def test_the_seventh_schema_knows_when_chunks_were_due_at_the_endpoint():
    log = load([FIXTURES / "schema-7"]).server_log

    assert (log["first_chunk_sent_at_ns"] - log["first_due_at_ns"]).tolist() == [20_000] * 5
    assert (log["last_chunk_sent_at_ns"] - log["last_due_at_ns"]).tolist() == [20_000] * 5
    assert load([FIXTURES / "schema-6"]).server_log["first_due_at_ns"].isna().all()


def test_the_ninth_schema_knows_how_answers_ended():
    """A count beyond the request is unknown; of older runs none of it is known."""
    attempts = load([FIXTURES / "schema-9"]).attempts
    before = load([FIXTURES / "schema-8"]).attempts

    assert attempts["stop_reason"].dropna().tolist() == ["end_turn"] * 5
    assert attempts["error_class"].dropna().tolist() == ["overloaded"]
    assert attempts["tolerated"].dropna().tolist() == ["done_after_stop"] * 5
    marked = attempts[attempts["usage_marks"] == "input"]
    assert marked["input_tokens"].isna().all()
    assert marked["output_tokens"].tolist() == [3]
    for name in ("stop_reason", "error_class", "tolerated", "usage_marks", "fallback", "tool_ready"):
        assert before[name].isna().all()
