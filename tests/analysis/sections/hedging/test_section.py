"""Hedging in the report: copies, what losers took, variants and their control."""

import re
from fractions import Fraction

import numpy as np
import pytest
from dry_run.in_memory import OPEN_BUDGET
from run_folders.dry_runs import dry_run_folder

from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.hedging.section import compute

COPY = {"attempt": 1, "cause": "hedge", "of_attempt": 0}
USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def found(folder):
    return {one.traffic: one for one in compute(Run([folder]))}


def hedged(policy, **more):
    return {
        "pattern": "hedged", "prompt_tokens": 50, "output_tokens": 12,
        "hedge": {"policy": policy, **OPEN_BUDGET, **more},
    }  # fmt: skip


def dry_run(out, traffic, seconds=60.0, **simulated):
    tree = {
        "arrival": {"rate_per_s": 30.0}, "stages": {"duration_s": seconds, "warmup_s": 0.0}, "traffic": traffic,
        "simulated": simulated,
    }  # fmt: skip
    return dry_run_folder(tree, out)


LATENCY = {"ttft_ms": 200, "ttft_sigma": 0.7, "chunk_gap_ms": 8}


@pytest.fixture(scope="module")
def three(tmp_path_factory, full_size):
    """A control and two variants at an endpoint without load, where every call draws its own TTFT."""
    traffic = {
        "plain": {"pattern": "streaming", "prompt_tokens": 50, "output_tokens": 12, "weight": 2.0},
        "late": hedged("fixed", delay_ms=250.0),
        "immediate": hedged("immediate"),
    }
    return dry_run(
        tmp_path_factory.mktemp("three"), traffic, 600.0 if full_size else 30.0, **LATENCY
    )


def draws(n=200_000):
    return 200 * np.exp(0.7 * np.random.default_rng(1).standard_normal((n, 2)))


@pytest.mark.slow
def test_variants_recover_the_latency_model(three):
    by = found(three)
    plain, late, immediate = (by[name] for name in ("plain", "late", "immediate"))
    first, second = draws().T
    is_slow = first > 250
    of_late = np.minimum(first, np.where(is_slow, 250 + second, np.inf))

    assert list(by) == ["plain", "immediate", "late"]
    assert plain.is_control
    for variant, drawn in ((plain, first), (late, of_late), (immediate, np.minimum(first, second))):
        for q in variant.latency["ttft_sched"][:2]:
            assert q.low * 0.97 <= np.quantile(drawn, q.p) <= q.high * 1.03
    won = (250 + second < first)[is_slow].mean()
    for share, planted in (
        (late.hedged, is_slow.mean()),
        (late.won, won),
        (immediate.won, 0.5),
    ):
        assert share.low <= planted <= share.high
    assert late.extra_requests == pytest.approx(late.hedged.value)
    assert immediate.hedged.value == 1.0
    (ratio,) = [one for one in late.versus.ratios["ttft_sched"] if one.p == 0.95]
    assert late.versus.traffic == "plain"
    assert ratio.low <= np.quantile(of_late, 0.95) / np.quantile(first, 0.95) <= ratio.high


@pytest.mark.slow("never-generated", "next_step-full")
@pytest.mark.parametrize(
    ("cancel_mode", "billed"),
    [("next_step", "generated"), ("never", "generated"), ("next_step", "full")],
)
def test_the_waste_in_the_server_log_lies_in_its_interval(tmp_path, cancel_mode, billed):
    engine = {"router": "random", "cancel_mode": cancel_mode, "overhead_ms": 50}
    variant = found(
        dry_run(
            tmp_path, {"chat": hedged("fixed", delay_ms=150.0)}, 15.0, profile="sonnet", engine=engine,
            stragglers={"slow_share": 0.2, "slow_factor": 10.0}, billing={"bill_cancelled": billed},
        )
    )["chat"]  # fmt: skip
    waste, log = variant.waste, variant.waste.server_log

    assert waste.losers == waste.closed > 20
    assert waste.output_high == 12 * waste.losers
    assert waste.output_low <= log.made_tokens <= waste.output_high
    if cancel_mode == "never":
        assert log.made_tokens == waste.output_high
        assert log.cancel_effectiveness == 0
    else:
        assert log.cancel_effectiveness > 0.9
    prompt, output, winners = 50, 5 * 12, variant.legs
    assert variant.cost.answered == pytest.approx(
        winners * (prompt + output)
    )  # prices of the simulated endpoint
    assert variant.cost.high == pytest.approx(waste.losers * (prompt + output))
    assert variant.cost.low == pytest.approx(5 * waste.output_low + 50 * waste.input_reported)


@pytest.fixture
def recorded(mixed, tmp_path):
    """A copy that won, one that lost with content, a copy that was refused, a leg of which both failed, and calls without a copy."""
    run = mixed()
    closed = {"ended": "cancelled", "end": 120}
    copy = {**COPY, "sent": 100}
    won = [
        {"sent": 0, "end": 400, "ended": "cancelled"},
        {**copy, "first": 400, "kinds": "x" * 8, **USAGE},
    ]
    lost = [
        {"sent": 0, "first": 200, "kinds": "x" * 10, **USAGE, "output_tokens": 40},
        {**copy, "first": 201, "kinds": "xx", "gap": 0, "ended": "cancelled", "end": 201, **USAGE},
    ]
    refused = [{"sent": 0, "first": 300, **USAGE}, {**copy, "ended": "rate_limited", "end": 110}]
    failed = [{"ended": "server_error"}, {**copy, "ended": "overloaded"}]
    run.request(0, won, "h", "hedged", winner=1)
    run.request(500, lost, "h", "hedged")
    run.request(900, refused, "h", "hedged")
    run.request(1300, failed, "h", "hedged", ended="overloaded")
    for i in range(16):
        held = "budget" if i < 3 else None
        run.request(2000 + i * 100, [{"first": 80, **USAGE}], "h", "hedged", hedge_held=held)
    run.request(5000, [{"first": 80, **closed}], "other", ended="cancelled")
    return run, run.write(tmp_path / "run")


def test_each_hedged_leg_is_counted_for_what_it_was(recorded):
    variant = found(recorded[1])["h"]
    waste = variant.waste

    assert (variant.requests, variant.legs, variant.hedged.k, variant.won.k, variant.no_winner) == (
        20,
        20,
        4,
        1,
        1,
    )
    assert variant.held == {"budget": 3}
    assert variant.extra_requests == 4 / 20
    assert (waste.losers, waste.closed) == (3, 2)
    assert (waste.output_low, waste.output_high) == (
        0 + 2 + 0,
        8 + 40 + 0,
    )  # a refused copy makes nothing
    assert waste.by_max_tokens == 0
    assert (waste.input_tokens, waste.input_reported, waste.input_unknown) == (30, 1, 0)
    assert waste.server_log is None
    assert (variant.limited.k, variant.limited.n) == (2, 24)
    assert variant.versus is None


def test_costs_are_exact_where_prices_are_known(mixed, recorded, tmp_path):
    run, _ = recorded
    run.run = {"target": {"url": "https://x.invalid", "simulated": False, "protocol": "anthropic"}}
    for row in run.attempts:
        row["model"] = row["asked_model"] = "claude-sonnet-4-5"
    cost = found(run.write(tmp_path / "priced"))["h"].cost

    dollars = Fraction(1, 10**6)
    answers = 8 + 40 + 3 + 16 * 3
    assert cost.unit == "USD"
    assert cost.low == float((10 * 3 + 2 * 15) * dollars)
    assert cost.high == float((20 * 3 + 48 * 15) * dollars)
    assert cost.answered == float((19 * 10 * 3 + answers * 15) * dollars)

    for row in run.attempts:
        row["model"] = row["asked_model"] = "nobody-knows"
    cost = found(run.write(tmp_path / "unpriced"))["h"].cost
    assert (cost.low, cost.high, cost.why) == (None, None, "no price for nobody-knows")


@pytest.mark.slow
def test_the_report_gives_the_reason_for_what_is_unknown(recorded, tmp_path):
    report = make([recorded[1]], tmp_path)
    page, text = report.html.read_text(), report.markdown.read_text()

    for shown in (page, text):
        assert "gain not measured: the run has no control" in shown
        assert "Variant and control" not in shown
        assert (
            "2 – 48 in all 3 losing calls together; 2 of them were closed before they reported their tokens"
            in re.sub("<[^>]*>", "", shown)
        )
        assert "only the target knows what it generates after a disconnect" in shown
        assert "3 requests: budget 3" in shown


@pytest.mark.slow
def test_variants_of_one_run_are_reported_with_their_interference(three, tmp_path):
    report = make([three], tmp_path)
    page, text = report.html.read_text(), report.markdown.read_text()

    for shown in (page, text):
        assert "Variant and control ran at the same time" in shown
        assert "run both in alternating blocks" in shown
    assert "Latency tail with and without hedges" in page
    assert "Cancellation" in text
    assert "TTFT relative to the control (plain): p" in text
    assert ", faster" in text


def test_a_run_that_lost_its_record_still_reports_its_copies(recorded):
    """Without the scenario there is neither a policy nor a control to be known."""
    _, folder = recorded
    (folder / "run.json").unlink()
    (folder / "workers" / "0.json").unlink()
    variant = found(folder)["h"]

    assert (variant.policy, variant.versus, variant.hedged.k) == ("unknown", None, 4)
