"""Latency under load: planted slopes and bottlenecks are found, and what cannot be estimated is not."""

import numpy as np
import pandas as pd
import pytest
from run_folders.dry_runs import dry_run_of

from tailgauge_analysis.sections.latency_under_load import diagnosis, slopes
from tailgauge_analysis.sections.latency_under_load.concurrency import decoding, open_at
from tailgauge_analysis.sections.latency_under_load.slopes import (
    CACHED,
    CONNECTION,
    IN_FLIGHT,
    UNCACHED,
    regress,
)


def attempts(*spans):
    """Attempts as (sent, first content, last content, ended) in ns; None where it never came."""
    names = ("sent_at_ns", "first_content_at_ns", "last_content_at_ns", "ended_at_ns")
    return pd.DataFrame(spans, columns=names, dtype="float64")


def test_calls_beside_one_are_counted_when_it_was_sent_and_while_it_was_decoded():
    run = attempts((0, 10, 50, 60), (5, 20, 40, 41), (30, None, None, 90), (70, 80, 100, 100))

    assert open_at(run, np.array([0, 5, 30, 41, 95])).tolist() == [0, 1, 2, 2, 1]
    first, last = np.array([10.0, 20.0, 80.0, 7.0]), np.array([50.0, 40.0, 100.0, 7.0])
    assert decoding(run, first, last)[:3] == pytest.approx([1 + 20 / 40, 2, 1])
    assert np.isnan(decoding(run, first, last)[3])


def test_planted_slopes_lie_in_their_intervals():
    rng = np.random.default_rng(7)
    n = 1500
    cached = rng.integers(0, 2, n) * 3000.0
    columns = {
        UNCACHED: rng.lognormal(6.5, 1, n), CACHED: cached, IN_FLIGHT: rng.poisson(8, n).astype(float), CONNECTION: np.zeros(n),
    }  # fmt: skip
    y = 120 + 40 * columns[UNCACHED] / 1000 + 4 * cached / 1000 + 1.5 * columns[IN_FLIGHT]
    y = y + rng.exponential(20, n)
    found = regress("ttft_sent", columns, y, UNCACHED)

    assert found.left_out == (CONNECTION,)
    planted = {UNCACHED: 40, CACHED: 4, IN_FLIGHT: 1.5}
    assert [s.p for s in found.slopes] == [0.5] * 3 + [0.95] * 3
    for slope in found.slopes:
        expected = planted[slope.name]
        width = slope.high - slope.low  # one interval in twenty misses: of six, none by far
        assert slope.low - width <= expected <= slope.high + width, slope
        assert slope.value == pytest.approx(expected, abs=0.15 * 40 if slope.p > 0.9 else 2)


@pytest.mark.parametrize(
    ("n", "why"),
    [(0, "0 answers with usage, 40 needed"), (39, "39 answers with usage"), (200, "no variation")],
)
def test_what_does_not_vary_has_no_slope(n, why):
    found = regress(
        "tpot", {"context_tokens": np.full(n, 500.0), "arriving": np.full(n, 3.0)}, np.ones(n), "arriving"
    )

    assert found.slopes == ()
    assert found.why.startswith(why)
    assert set(found.left_out) == {"context_tokens", "arriving"}


def requests(n, slow, input_ms=0.0, tokens_times=1.0, pace_times=1.0):
    """Answers of 200 ms to the first content and 101 tokens at 10 ms; the slow ones have more of something."""
    rng = np.random.default_rng(3)
    ill = np.arange(n) % (n // slow) == 0
    before = 200 + rng.uniform(0, 10, n) + ill * input_ms
    tokens = np.where(ill, 1 + 100 * tokens_times, 101)
    pace = 10 * np.where(ill, pace_times, 1) * rng.uniform(0.99, 1.01, n)
    return before, before + pace * (tokens - 1), tokens


def test_a_bottleneck_of_input_is_separated_from_one_of_output():
    waits = diagnosis.diagnose(*requests(1000, 50, input_ms=5000))
    long = diagnosis.diagnose(*requests(1000, 50, tokens_times=5))
    slow = diagnosis.diagnose(*requests(1000, 50, pace_times=4))
    both = diagnosis.diagnose(*requests(1000, 50, input_ms=2000, tokens_times=3))

    assert (waits.kind, long.kind, slow.kind, both.kind) == ("input", "output", "output", "both")
    assert waits.share_before_first == pytest.approx(1, abs=0.01)
    assert both.low < 0.5 < both.high
    assert waits.sentence.startswith("Bottleneck: input. ")
    assert "long answers" in long.sentence
    assert "slow decoding" in slow.sentence
    assert (long.tokens_times, slow.pace_times) == pytest.approx((5, 4), rel=0.05)


def test_even_requests_are_healthy_and_few_ones_unknown():
    assert diagnosis.diagnose(*requests(1000, 50)).kind == "healthy"
    few = diagnosis.diagnose(*requests(360, 18, input_ms=5000))
    assert (few.kind, few.share_before_first, few.slow) == ("unknown", None, 19)
    assert diagnosis.diagnose(np.empty(0), np.empty(0), np.empty(0)).kind == "unknown"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The report of a dry run on an engine: 30 ms of prefill per 1,000 tokens, 0.03 ms per token and 1,000 of context."""
    from tailgauge_analysis.report.report import make

    out = tmp_path_factory.mktemp("engine")
    pairs = [
        ("target.url", "simulated"), ("simulated.profile", "haiku"), ("stages.duration_s", 120.0), ("arrival.rate_per_s", 8.0),
        ("traffic.chat.prompt_tokens", 2000), ("traffic.chat.prompt_sigma", 1.0), ("traffic.chat.output_sigma", 0.8),
        ("simulated.engine.overhead_sigma", 0.1),
    ]  # fmt: skip
    return make([dry_run_of("streaming", pairs, out)], out)


def test_the_costs_of_an_engine_are_recovered(engine):
    found = engine.data["slopes"]
    at = {(s["name"], s["p"]): s for one in found for s in one["slopes"]}

    assert at[UNCACHED, 0.5]["value"] == pytest.approx(30, rel=0.15)
    assert at["context_tokens", 0.5]["value"] == pytest.approx(0.03, rel=0.3)
    assert at["arriving", 0.5]["low"] > 0
    assert (found[0]["of"], found[0]["left_out"]) == ("ttft_sent", [CACHED, CONNECTION])


def test_the_section_is_on_the_page_and_in_markdown(engine):
    page, text = engine.html.read_text(), engine.markdown.read_text()
    sentence = engine.data["diagnosis"]["sentence"]

    for text_part in (
        sentence,
        "ms per 1,000 uncached prompt tokens",
        "TTFT since sent: not estimated (no variation)",
    ):
        assert text_part in page
        assert text_part in text.replace("\\", "")
    assert slopes.UNITS["arriving"][0] in page


def test_heat_has_every_answered_request_in_its_cell_and_stays_small():
    from tailgauge_analysis.metrics.timeline import HEAT_COLUMNS, HEAT_ROWS, heat

    at = np.linspace(0, 9000, 60_000)
    wait = np.where(at < 4500, 100.0, 400.0)
    wait[::3] = np.nan
    found = heat(at, wait)

    assert found.counts.shape[0] == HEAT_ROWS
    assert found.counts.shape[1] <= HEAT_COLUMNS
    assert found.counts.sum() == 40_000
    early, late = found.counts[:, found.at_s < 4400], found.counts[:, found.at_s > 4600]
    assert early[0].sum() == early.sum()
    assert late[-1].sum() == late.sum()
    assert heat(at[:40], wait[:40]) is None


def test_the_figures_stand_on_the_page(engine):
    page = engine.html.read_text()

    assert 'id="figure-heat"' in page
    assert 'id="figure-against"' in page
