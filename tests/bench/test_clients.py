"""What is read back of a run of ours is what its worker recorded."""

import json
from array import array

import numpy as np
import pyarrow as pa
import pytest

from tailgauge.rows.parquet import Segments, chunk_table, compact, write_part
from tailgauge.rows.schema import Chunks

MS = 1_000_000
CHUNKS = 6


def _segment(request, first, arrived, low):
    some = range(len(arrived))
    return request, 0, 0, first, Chunks(
        bytearray(len(arrived)), array("q", arrived), array("q", low), array("q", [at + 9_000 for at in arrived]),
        array("i", some), array("i", [4] * len(arrived)),
    )  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """Three answers, each flushed in two parts, then folded; the last chunk of each is known as an interval. One preflight."""
    parts = []
    for part, (first, until) in enumerate(((0, 4), (4, CHUNKS))):
        segments = Segments()
        for request in (2, 0, 1):
            arrived = [request * 1000 * MS + index * 20 * MS for index in range(first, until)]
            low = [
                at - 3 * MS if index == CHUNKS - 1 else 0 for index, at in enumerate(arrived, first)
            ]
            segments.add(*_segment(request, first, arrived, low))
        segments.add(*_segment(-1, first, [5 * MS] * (until - first), [0] * (until - first)))
        parts.append(tmp_path / "chunks" / f"part-0-{part}.parquet")
        parts[-1].parent.mkdir(exist_ok=True)
        write_part(parts[-1], chunk_table(segments))
    compact("chunks", parts, tmp_path / "chunks" / "part-0-all.parquet")
    return tmp_path


def test_stamps_come_back_to_the_nanosecond_in_order_of_requests(run):
    import clients

    sent = {2: 1990 * MS, 0: -10 * MS, 1: 990 * MS}
    attempts = pa.table({"request_id": list(sent), "sent_at_ns": list(sent.values())})

    seen, stored = clients.seen_by(run, attempts)

    assert seen.request.tolist() == [0, 1, 2]
    assert seen.began_ns.tolist() == [-10 * MS, 990 * MS, 1990 * MS]
    assert seen.chunks.tolist() == [CHUNKS] * 3
    assert seen.at_ns.tolist() == [
        r * 1000 * MS + i * 20 * MS for r in range(3) for i in range(CHUNKS)
    ]
    assert np.flatnonzero(~seen.exact).tolist() == [5, 11, 17]
    assert stored == (run / "chunks" / "part-0-all.parquet").stat().st_size / (4 * CHUNKS)


@pytest.mark.parametrize(
    ("run_is", "gap_is", "invalid"),
    [
        ("VALID", "VALID", set()),
        ("VALID", "INVALID", {"chunk_gap"}),
        ("DEGRADED", "DEGRADED", set()),
        ("INVALID", "VALID", {"ttft_sent", "chunk_gap"}),
    ],
)
def test_a_p99_is_invalid_by_its_own_error_or_with_its_run(tmp_path, run_is, gap_is, invalid):
    """A run may be VALID though a figure that decides nothing in it is not, and its p99 is marked."""
    import clients

    def error(metric, quantile, verdict):
        return {"metric": metric, "quantile": quantile, "verdict": verdict}

    def row(metric, since, mark):
        of = {"group": "all", "population": "completed", "metric": metric, "since": since}
        return {**of, "percentiles": {"p99": {"mark": mark}}}

    report = {
        "verdict": {"status": run_is},
        "latency": [row("ttft", "sent", "too few"), row("chunk_gap", None, "measurement error")],
        "client_error": [error("ttft_sent", 0.99, "VALID"), error("chunk_gap", 0.5, "INVALID"),
                         error("chunk_gap", 0.99, gap_is)],
    }  # fmt: skip
    (tmp_path / "report.json").write_text(json.dumps(report))

    assert clients._verdict(tmp_path / "report.json") == (run_is, "measurement error", invalid)
