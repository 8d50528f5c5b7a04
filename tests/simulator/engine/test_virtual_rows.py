"""The rows of a virtual run: of the records' types, repeatable to the byte, and none lost."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest
from simulator.engine.measuring import alike, poisson_ns

from tailgauge.patterns.table import Traffic
from tailgauge.rows.schema import TABLES, columns
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival
from tailgauge.simulator import virtual
from tailgauge.simulator.engine.config import EngineConfig, FluidLaw
from tailgauge.simulator.engine.profiles import PROFILES
from tailgauge.simulator.virtual import Demands
from tailgauge.simulator.virtual_fates import NEVER

NAMES = ("requests", "attempts", "chunks", "target")
MIX = {
    "short": Traffic(weight=3, prompt_tokens=200, prompt_sigma=0.5, output_tokens=20),
    "long": Traffic(prompt_tokens=2000, prompt_sigma=0.3, output_tokens=100),
}


def run(seed=1, profile="sonnet"):
    schedule = plan(Arrival(rate_per_s=5), MIX, 60, 1)
    return virtual.run(profile, schedule.at_ns, Demands.of(schedule), seed)


@pytest.fixture(scope="module")
def rows():
    return run()


def parquet(rows):
    files = []
    for name in NAMES:
        files.append(io.BytesIO())
        pq.write_table(getattr(rows, name), files[-1], compression="zstd")
    return [file.getvalue() for file in files]


def test_two_runs_of_a_seed_are_the_same_bytes(rows):
    assert parquet(run()) == parquet(rows)


def test_another_seed_draws_other_latencies(rows):
    assert run(seed=2).column("first_content_at_ns").tolist() != rows.column("first_content_at_ns").tolist()


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_those_of_the_records(rows, name):
    table = getattr(rows, name)

    assert table.column_names == [c.name for c in columns(name)]
    for column in columns(name):
        if not column.nullable:
            assert table.column(column.name).null_count == 0, column.name
    assert name in TABLES


def test_every_arrival_has_a_request_an_attempt_and_a_truth(rows):
    schedule = plan(Arrival(rate_per_s=5), MIX, 60, 1)
    n = len(schedule)

    assert (rows.requests.num_rows, rows.attempts.num_rows, rows.target.num_rows) == (n, n, n)
    assert rows.column("sent_at_ns").tolist() == schedule.at_ns.tolist()
    assert rows.attempts.column("ended").unique().to_pylist() == ["ok"]
    assert rows.column("output_tokens").tolist() == schedule.output_tokens.tolist()
    assert rows.attempts.column("traffic").to_pylist() == [schedule.names[i] for i in schedule.traffic]


def test_chunks_tell_the_same_as_their_attempt_and_the_truth(rows):
    chunks = rows.chunks.select(["request_id", "arrived_at_ns", "chunk_index"]).to_pydict()
    truth = rows.target.column("chunk_sent_at_ns").to_pylist()

    assert chunks["arrived_at_ns"] == [at for times in truth for at in times]
    assert [times[0] for times in truth] == rows.column("first_content_at_ns").tolist()
    assert [times[-1] for times in truth] == rows.column("last_content_at_ns").tolist()
    counts = rows.column("chunks").tolist()
    assert chunks["request_id"] == np.repeat(rows.column("request_id"), counts).tolist()
    assert chunks["chunk_index"] == [i for count in counts for i in range(count)]


def test_refused_calls_are_rows_without_content():
    config = EngineConfig(FluidLaw(), slots=1, queue_cap=0)
    n = 20_000
    work = np.random.default_rng(2).exponential(10.0, n)
    rows = virtual.run(config, poisson_ns(100, n, 2), Demands.of_work(work), 2, chunks=False)

    ended = np.array(rows.attempts.column("ended").to_pylist())
    refused = ended == "overloaded"
    assert set(ended.tolist()) == {"ok", "overloaded"}
    assert set(rows.column("status")[refused].tolist()) == {529}
    assert set(rows.column("first_content_at_ns")[refused].tolist()) == {NEVER}
    assert refused.mean() == pytest.approx(0.5, abs=0.02)  # Erlang B for one server and load 1


def test_a_closed_loop_censors_what_is_in_flight_at_its_end_and_repeats():
    def closed():
        demands = alike(2_000, 500, PROFILES["tiny"].answer_tokens)
        thinks = np.full(2_010, 100_000_000)
        return virtual.run_closed("tiny", thinks, 10, 20_000_000_000, demands, 3)

    rows = closed()
    ended = rows.attempts.column("ended").to_pylist()
    assert set(ended) == {"ok", "censored"}
    assert ended.count("censored") <= 10
    assert rows.column("sent_at_ns").max() < 20_000_000_000
    assert parquet(closed()) == parquet(rows)


def test_a_closed_loop_needs_think_times_for_all_its_calls():
    with pytest.raises(ValueError, match="think time"):
        virtual.run_closed("tiny", np.zeros(5, int), 2, 10**9, alike(10, 10, 10), 1)
