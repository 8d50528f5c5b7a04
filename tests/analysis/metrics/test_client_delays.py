"""Late sends of any shape: the report names the client with its seconds, and nothing about a target that never changed."""

import re

import numpy as np
import pytest

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.result import remarks

N = 1500
RATE = 50.0
AT_S = np.arange(N) / RATE
OF_TARGET = ("backlog", "trend", "change", "warm-up", "unanswered")


def between(from_s, to_s):
    due_s = np.arange(N) / RATE
    return (due_s >= from_s) & (due_s < to_s)


SHAPES = {  # ms by which each request was sent late, and the stretch that the report names
    "one worker of two": (np.where(between(17, 21) & (np.arange(N) % 2 == 0), 400.0, 0.05), (17, 21)),
    "all workers": (np.where(between(17, 21), 400.0, 0.05), (17, 21)),
    "caught up after a stop": (np.where(between(10, 12), 1000 * np.clip(12 - AT_S, 0, 2), 0.05), (10, 12)),
    "short": (np.where(between(12, 12.5), 900.0, 0.05), (12, 13)),
    "long": (np.where(between(8, 16), 300.0, 0.05), (8, 16)),
    "periodic": (np.where(AT_S % 3 < 0.4, 150.0, 0.05), None),
    "at the start": (np.where(between(3, 6), 700.0, 0.05), (3, 6)),
    "at the end": (np.where(between(26, 30), 700.0, 0.05), (26, 30)),
    "more and more": (10.0 * AT_S, None),
    "all the time": (np.full(N, 200.0), (3, 30)),
}  # fmt: skip


@pytest.fixture
def sent_late(write):
    """A run whose requests were sent so late, at a target that takes so long, with some noise."""

    def run(delay_ms, wait_ms=200.0, seed=1, arrival="open"):
        ttft_ms = delay_ms + wait_ms * np.random.default_rng(seed).lognormal(0, 0.03, N)
        of_run = {"n": N, "chunks": 2, "rate_per_s": RATE, "warmup_s": 3.0}
        made = Run([write(**of_run, delay_ms=delay_ms, ttft_ms=ttft_ms)])
        made.frames.run["arrival"] = arrival
        return made

    return run


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("arrival", ["open", "closed"])
def test_a_late_client_is_named_and_the_target_is_not(sent_late, shape, arrival):
    delay_ms, span = SHAPES[shape]
    run = sent_late(delay_ms, arrival=arrival)
    found = run.evidence.stability
    named = found.of("client")

    assert not [finding for finding in found.findings if finding.kind in OF_TARGET]
    assert "target" not in found.sentence.replace("The target is not judged", "")
    assert named.text in remarks(run)
    if span:
        assert (named.from_s, named.to_s) == pytest.approx(span, abs=1.1)
        begin, end = (f"00:{second:02d}" for second in (int(named.from_s), int(named.to_s)))
        when = f"at {begin}" if begin == end else f"from {begin} to {end}"
        assert re.fullmatch(rf"The client was late by up to [\d.]+ s {when}\.", named.text)


@pytest.mark.slow
@pytest.mark.parametrize("begin", [6.0, 20.0])
def test_a_target_that_changed_at_another_time_is_still_found(sent_late, begin):
    delay_ms = np.where(between(12, 14), 400.0, 0.05)
    wait_ms = np.where(between(begin, begin + 4), 600.0, 200.0)
    found = sent_late(delay_ms, wait_ms, seed=2).evidence.stability

    assert found.of("change").from_s == pytest.approx(begin, abs=0.5)
    assert found.of("client").from_s == pytest.approx(12, abs=0.5)


@pytest.mark.slow("receive_lag_max_ns")
@pytest.mark.parametrize("column", ["loop_lag_max_ns", "receive_lag_max_ns"])
def test_a_client_that_reads_late_is_named(write, column):
    """Its timestamps are ranges then, or its own clock's."""
    second = np.arange(31)
    lag = np.where((second >= 10) & (second < 14), 600_000_000, 400_000)
    ttft_ms = np.where(between(10, 14), 700.0, 200.0) + np.arange(N) % 7
    written = write(
        n=N,
        chunks=2,
        rate_per_s=RATE,
        warmup_s=3.0,
        ttft_ms=ttft_ms,
        health={column: np.tile(lag, 2)},
        stamps="user",
    )
    found = Run([written]).evidence.stability

    assert not [finding for finding in found.findings if finding.kind in OF_TARGET]
    assert found.of("client").from_s == pytest.approx(10, abs=1.1)


@pytest.mark.slow
def test_a_client_that_was_hardly_late_is_not_named(write):
    delay_ms = np.where(between(12, 12.1), 60.0, 0.05)
    run = Run([write(n=N, chunks=2, rate_per_s=RATE, delay_ms=delay_ms, ttft_ms=200.0 + delay_ms)])

    assert (run.evidence.stability.findings, remarks(run)) == ((), [])
