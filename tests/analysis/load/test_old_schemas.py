"""Every schema version that was ever released still loads."""

from pathlib import Path

import pytest

from tailgauge.rows import schema
from tailgauge_analysis.load.frames import load
from tailgauge_analysis.metrics.latency import SUCCESSES, sample
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import steady

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


def test_the_seventh_schema_knows_when_chunks_were_due_at_the_endpoint():
    log = load([FIXTURES / "schema-7"]).server_log

    assert (log["first_chunk_sent_at_ns"] - log["first_due_at_ns"]).tolist() == [20_000] * 5
    assert (log["last_chunk_sent_at_ns"] - log["last_due_at_ns"]).tolist() == [20_000] * 5
    assert load([FIXTURES / "schema-6"]).server_log["first_due_at_ns"].isna().all()
