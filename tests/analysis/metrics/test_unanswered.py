"""Requests that hang are named in every run, answers that are only long in none; and since when a target was gone."""

import re

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder

from tailgauge_analysis.metrics.unanswered import gone_since
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.result import remarks


def scenario(
    share=0.0,
    at_chunk=0,
    *,
    n=300,
    seconds=30.0,
    drain_s=30.0,
    deadline_s=3600.0,
    tables=None,
    seed=1,
):
    """Short answers, of which a share hangs after so many chunks."""
    chat = {"prompt_tokens": 50, "output_tokens": 20}
    simulated = {"ttft_ms": 200.0, "chunk_gap_ms": 20.0}
    if share:
        fault = {"kind": "stall", "share": share, "at_chunk": at_chunk, "seconds": 1e6}
        simulated["faults"] = {"hangs": fault}
    return {
        "seed": seed, "arrival": {"rate_per_s": n / seconds}, "stages": {"duration_s": seconds},
        "limits": {"drain_s": drain_s, "attempt_deadline_s": deadline_s}, "simulated": simulated,
        "traffic": tables or {"chat": chat},
    }  # fmt: skip


def run_of(tree, folder):
    return Run([dry_run_folder(tree, folder)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "hanging",
    [
        {"share": 0.005, "n": 600},
        {"share": 0.02, "at_chunk": 1},
        {"share": 0.1, "at_chunk": 10, "drain_s": 5.0},
        {"share": 0.6, "drain_s": 10.0},
        {"share": 0.03, "deadline_s": 20.0},
        {
            "share": 0.05,
            "tables": {"chat": {"prompt_tokens": 50, "output_tokens": 20, "stream": False}},
        },
    ],
    ids=lambda case: ", ".join(map(str, case)),
)
def test_requests_that_hang_are_named(tmp_path, hanging):
    run = run_of(scenario(**hanging, seed=7), tmp_path)
    ended = run.frames.requests["ended"]
    open_at_end = int(ended.isin(("censored", "timeout")).sum())
    found = run.evidence.stability.of("unanswered")

    assert open_at_end
    missing = "only the beginning of an answer" if "at_chunk" in hanging else "no answer"
    assert re.fullmatch(
        rf"[\d,]+ requests? of the whole run got {missing}; (the oldest|it) waits [\d.]+ s\.",
        found.text,
    )
    number = int(found.text.split()[0].replace(",", ""))
    assert 0.6 * open_at_end <= number <= open_at_end
    assert found.text in remarks(run)
    assert run.evidence.stability.of("backlog") is None
    assert run.evidence.stability.stable is False


LONG = {"prompt_tokens": 50, "output_tokens": 20_000, "weight": 0.1, "stream": False}
CHAT = {"prompt_tokens": 50, "output_tokens": 20, "weight": 0.9}


@pytest.mark.slow
@pytest.mark.parametrize(
    "tables",
    [
        {"chat": CHAT, "long": LONG},  # 400 s, twice what the run lasts
        {"chat": {**CHAT, "stream": False}, "long": {**LONG, "output_tokens": 2500}},
        {"chat": CHAT, "long": {**LONG, "stream": True, "output_tokens": 4000}},
        {"long": {**LONG, "stream": True, "output_tokens": 4000, "weight": 1.0}},
    ],
    ids=["whole", "some end in the drain", "streamed", "streamed, none ends"],
)
def test_answers_that_are_only_long_are_not_said_to_be_missing(tmp_path, tables):
    run = run_of(scenario(n=150, tables=tables, drain_s=10.0), tmp_path)
    found = run.evidence.stability

    assert "censored" in set(run.frames.requests["ended"])
    assert [finding.kind for finding in found.findings] == []


def test_where_nothing_completes_all_requests_are_named(tmp_path):
    found = run_of(scenario(share=1.0, n=160, drain_s=60.0), tmp_path).evidence.stability

    assert re.fullmatch(
        r"1\d\d requests of the whole run got no answer; the oldest waits (89|90)(\.\d)? s\.",
        found.of("unanswered").text,
    )
    assert found.of("backlog") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "ended",
    [
        {},
        dict.fromkeys(range(398, 400), "connect_error"),  # too few to say
        dict.fromkeys(range(0, 400, 2), "connect_error"),
        dict.fromkeys(range(100, 200), "connect_error"),  # it came back
        dict.fromkeys(range(400), "connect_error"),  # it never was there
    ],
    ids=["well", "the last two", "every other", "for a while", "always"],
)
def test_a_target_that_answers_at_last_is_not_gone(write, ended):
    assert gone_since(Run([write(n=400, ended=ended)]).frames) is None


def test_a_target_that_is_gone_has_no_backlog(write):
    found = Run(
        [write(n=1000, ended=dict.fromkeys(range(500, 1000), "censored"))]
    ).evidence.stability

    assert found.of("backlog") is None
    assert np.isfinite(found.growth_per_s)


def frozen_ms(n, from_s, to_s, wait_ms):
    """Waits at 20 requests/s of a target that does nothing for a while, streams of its answers included."""
    at_s = np.arange(n) / 20
    over_s = at_s + wait_ms / 1e3
    is_held = (over_s > from_s) & (at_s < to_s)
    return np.where(is_held, (to_s - at_s) * 1e3 + wait_ms, wait_ms)


@pytest.mark.slow
@pytest.mark.parametrize(("from_s", "to_s"), [(4.0, 13.0), (5.0, 8.0), (2.0, 14.5)])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_a_target_that_is_silent_for_a_while_is_named(write, from_s, to_s, sigma):
    wait_ms = 200 * np.exp(sigma * np.random.default_rng(6).normal(size=300))
    waits_ms = frozen_ms(300, from_s, to_s, wait_ms)
    run = Run([write(n=300, rate_per_s=20.0, chunks=1, ttft_ms=waits_ms)])
    found = run.evidence.stability.of("change")

    assert "the target was silent" in found.text
    assert (found.from_s, found.to_s) == pytest.approx((from_s, to_s), abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.0, 0.8, 1.5])
@pytest.mark.parametrize("rate_per_s", [0.5, 5.0, 50.0])
@pytest.mark.parametrize("median_ms", [50.0, 3000.0])
def test_no_silence_is_named_where_waits_vary_by_chance(write, sigma, rate_per_s, median_ms):
    wait_ms = median_ms * np.exp(sigma * np.random.default_rng(7).normal(size=300))
    run = Run([write(n=300, rate_per_s=rate_per_s, chunks=1, ttft_ms=wait_ms)])

    assert "silent" not in run.evidence.stability.sentence
