"""How evenly an answer flows: stalls, bunches, goodput, on answers worked out by hand."""

import numpy as np
import pytest

from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.metrics.throughput import throughput
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.sections.streaming import medians, stalls, streams


def test_a_stall_is_long_and_unlike_its_answer():
    gaps = np.array([10.0] * 9 + [1001] + [500.0] * 9 + [4000] + [10.0] * 9 + [999])
    of = np.repeat([0, 1, 3], 10)

    assert np.flatnonzero(stalls(gaps, of)).tolist() == [9]
    assert medians(gaps, of).tolist() == [10, 500, 0, 10]
    assert len(stalls(np.empty(0), np.empty(0, int))) == 0


def test_the_flow_of_a_run_of_known_answers(mixed, tmp_path):
    """Ten answers of 20 tokens in 10 chunks, one buffered, one that stalls; ten tokens are outside the window."""
    run = mixed(duration_s=10.0)
    answer = {"gap": 50, "kinds": "x" * 10, "output_tokens": 20}
    for i in range(8):
        run.request(i * 1000, [{**answer, "first": 100}])
    run.request(8000, [{**answer, "first": 900, "gap": 0.02}])
    run.request(9550, [{**answer, "first": 0.1, "gap": 100}])
    for chunk in run.chunks[5:10]:  # the second half of the first answer
        chunk["arrived_at_ns"] += 5_000_000_000
        chunk["lag_ns"] += 5_000_000_000
    frames = load([run.write(tmp_path / "run")])
    stage = steady(frames)
    found = streams(stage.without_slow_readers)

    assert (found.answers, found.tokens_per_chunk_p50) == (10, 2.0)
    assert (found.buffered, found.buffered_share) == (1, 0.1)
    assert (found.stalls, found.stalled_share) == (1, 0.1)
    assert found.user_tokens_per_s_p50 == pytest.approx(19 / 0.45)
    assert throughput(frames, stage).output_tokens_per_s == (9 * 20 + 10) / 10


def test_an_answer_that_was_asked_for_in_one_piece_was_not_held_back(mixed, tmp_path):
    """Both have a hundred tokens in one chunk; only the streamed one should have had more chunks."""
    run = mixed(duration_s=2.0)
    answer = {"first": 100, "gap": 1, "kinds": "x", "chars": 400, "output_tokens": 100}
    run.request(0, [answer])
    run.request(500, [{**answer, "streamed": False}])
    found = streams(steady(load([run.write(tmp_path / "run")])).without_slow_readers)

    assert (found.answers, found.buffered, found.buffered_share) == (1, 1, 1.0)
