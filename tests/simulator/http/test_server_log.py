"""The server log: names parsed, rows bounded, Parquet of the schema."""

import io

import pyarrow.parquet as pq
import pytest

from tailgauge.rows.schema import columns
from tailgauge.simulator.http.server_log import ServerLog, parse_call, to_parquet


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("run-1/65536/0/2", (65536, 0, 2)),
        ("run-1/-3/0/0", (-3, 0, 0)),
        ("run-1/1/0", None),
        ("a/run-1/1/0/0", None),
        ("run-1/1/0/x", None),
        ("run-1/+1/0/0", None),
        ("run-1/1/0/40000", None),
        ("run-1/9999999999999999999/0/0", None),
        ("", None),
    ],
)
def test_a_client_request_id_is_parsed_or_left_null(name, call):
    assert parse_call(name) == call


def test_the_oldest_closed_rows_go_when_there_are_too_many_stamps():
    log = ServerLog(max_stamps=25)
    still_open = log.open("r/0/0/0", "anthropic", 1)
    for i in range(1, 6):
        row = log.open(f"r/{i}/0/0", "anthropic", i)
        row.chunk_sent_at_ns.extend(range(9))
        log.close(row)
    assert [row.request_id for row in log.rows("r")] == [4, 5, still_open.request_id]
    assert log.dropped == 3


def test_a_run_is_not_found_under_the_beginning_of_its_name():
    log = ServerLog()
    for name in ("run-1/1/0/0", "run-10/1/0/0", "run-1", "other"):
        log.close(log.open(name, "anthropic", 1))
    assert [row.client_request_id for row in log.rows("run-1")] == ["run-1/1/0/0", "run-1"]
    assert len(log.rows("")) == 4


def test_rows_of_open_calls_are_copies():
    log = ServerLog()
    row = log.open("r/1/0/0", "anthropic", 1)
    [copy] = log.rows("r")
    row.chunk_sent_at_ns.append(5)
    assert copy.chunk_sent_at_ns == []


def test_the_parquet_file_has_the_columns_of_the_records_even_without_rows():
    log = ServerLog()
    row = log.open("bad \udcff name", "openai", 1)
    row.chunk_sent_at_ns.append(7)
    for rows in ([], log.rows("")):
        table = pq.read_table(io.BytesIO(to_parquet(rows)))
        described = [(f.name, f.nullable) for f in table.schema]
        assert described == [(c.name, c.nullable) for c in columns("target")]
        assert table.num_rows == len(rows)
