"""report.json against the endpoint's own log of the same run: hedges and what they waste, fan-outs and their slowest leg."""

import numpy as np
import pytest
from dry_run.in_memory import OPEN_BUDGET
from run_folders.dry_runs import dry_run_report, exact

OUTPUT = 24
SIZES = {"prompt_tokens": 50, "output_tokens": OUTPUT}
PRICE = 5  # an output token in input-token equivalents
LEGS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory, full_size):
    """A control, an variant that hedges, and fan-outs, at four replicas of which each is slow for a tenth of the prompts.

    A loser is stopped 40 ms after its client left, so that what it made is more than what it sent.
    """
    tree = {
        "arrival": {"rate_per_s": 12.0},
        "stages": {"duration_s": 400.0 if full_size else 60.0, "warmup_s": 5.0},
        "limits": {"in_flight_per_worker": 60_000, "attempt_deadline_s": 1e6, "drain_s": 1e6},
        "simulated": {
            "profile": "haiku",
            "engine": {"replicas": 4, "router": "random", "cancel_mode": "after_ms", "cancel_after_ms": 40.0},
            "stragglers": {"slow_share": 0.1, "slow_factor": 8.0},
            "faults": {"busy": {"kind": "status", "share": 0.01, "status": 529}},
        },
        "traffic": {
            "plain": dict(SIZES),
            "late": {
                **SIZES, "pattern": "hedged", "hedge": {"policy": "fixed", "delay_ms": 120.0, **OPEN_BUDGET},
            },
            "fan": {**SIZES, "pattern": "fan_out", "fan_out": {"legs": LEGS}},
        },
    }  # fmt: skip
    return dry_run_report(tree, tmp_path_factory.mktemp("copies"))


@pytest.fixture(scope="module")
def variant(run):
    (found,) = [one for one in run.report["hedging"] if one["traffic"] == "late"]
    return found


@pytest.fixture(scope="module")
def pairs(run):
    """Calls of the hedged table in the steady stage: first calls, and the copies beside them (or nothing)."""
    rows = run.steady("late").set_index("request_id")
    first, copy = rows[rows["attempt"] == 0], rows[rows["attempt"] == 1]
    assert len(copy) == len(rows) - len(first) > 30
    return first, copy.reindex(first.index)


@pytest.fixture(scope="module")
def copy_won(pairs):
    """Which of the two was let run to its end: of contents in the same step of a replica, either may be seen first."""
    first, copy = pairs
    won = (copy["status"] == 200) & copy["ended_at_ns"].notna()
    assert not (won & (first["first_ns"] < copy["first_ns"])).any()
    return won


@pytest.mark.slow
def test_the_hedge_rate_and_the_winners_are_the_logs(variant, pairs, copy_won):
    first, copy = pairs
    hedged = copy["received_at_ns"].notna()
    answered = np.fmin(first["first_ns"], copy["first_ns"]).notna()

    assert (variant["legs"], variant["hedged"]["k"]) == (len(first), hedged.sum())
    assert (variant["won"]["k"], variant["won"]["n"]) == (copy_won.sum(), (hedged & answered).sum())
    assert variant["no_winner"] == (hedged & ~answered).sum()
    assert variant["extra_requests"] == pytest.approx(hedged.mean())


@pytest.mark.slow
def test_percentiles_of_the_logical_request_are_those_of_its_first_content(variant, pairs):
    first, copy = pairs
    times = (np.fmin(first["first_ns"], copy["first_ns"]) - first["scheduled_at_ns"]).fillna(np.inf)

    assert variant["latency"]["ttft_sched"][0]["n"] == len(times)
    for q in variant["latency"]["ttft_sched"][:2]:
        assert q["value"] == pytest.approx(exact(times, q["p"]), abs=1e-6)


@pytest.mark.slow
def test_the_wasted_tokens_and_their_bill_lie_in_their_intervals(run, variant, pairs, copy_won):
    """The log is asked here, not the report's own reading of it."""
    first, copy = pairs
    decided = copy["received_at_ns"].notna() & np.fmin(first["first_ns"], copy["first_ns"]).notna()
    losers = first.where(copy_won, copy)[decided]
    after = losers["tokens_after_cancel"].fillna(0)
    made = (losers["output_tokens"] + after).sum()
    billed = losers["billed_output_tokens"].fillna(0).sum()
    served = losers["status"] == 200
    closed = losers["cancelled_at_ns"].notna()
    left = (OUTPUT - losers["output_tokens"])[closed].sum()
    waste, cost = variant["waste"], variant["cost"]
    log = waste["server_log"]

    assert (waste["losers"], waste["closed"]) == (len(losers), closed.sum())
    assert after.sum() > 0
    for tokens in (made, billed):
        assert waste["output_low"] <= tokens <= waste["output_high"] == OUTPUT * served.sum()
    assert log["made_tokens"] == made
    assert log["cancel_effectiveness"] == pytest.approx(1 - after.sum() / left)
    assert cost["low"] <= PRICE * billed + losers["input_tokens"][served].sum() <= cost["high"]


@pytest.mark.slow
def test_what_the_answers_cost_is_the_bill_of_the_winners_exactly(variant, pairs, copy_won):
    first, copy = pairs
    winners = copy.where(copy_won, first)
    winners = winners[winners["first_ns"].notna()]

    assert (
        variant["cost"]["answered"]
        == (winners["input_tokens"] + PRICE * winners["billed_output_tokens"]).sum()
    )


@pytest.fixture(scope="module")
def fan(run):
    """The table, and the log's legs as rows of requests: when each ended, NaN where it was refused or closed."""
    (section,) = run.report["fan_out"]
    rows = run.steady("fan")
    times = (rows["ended_at_ns"] - rows["received_at_ns"]).where(
        (rows["status"] == 200) & rows["ended_at_ns"].notna()
    )
    legs = rows.assign(time=times).pivot(index="request_id", columns="leg", values="time")
    return section, legs


@pytest.mark.slow
def test_joins_and_slowest_legs_are_the_logs(run, fan):
    section, legs = fan
    whole, joined = legs.dropna(), legs.max(axis=1, skipna=False).fillna(np.inf)

    assert (section["requests"], section["complete"], section["legs"]) == (
        len(legs),
        len(whole),
        LEGS,
    )
    assert len(whole) > 100
    for q in section["joined"]:
        if q["value_is"] == "value":
            assert q["value"] == pytest.approx(exact(joined, q["p"]), abs=1e-6)
    for key, values in (
        ("slowest", whole.max(axis=1)),
        ("single", whole.stack()),
        ("one_less", np.sort(whole, axis=1)[:, -2]),
    ):
        for q in section[key]:
            if q["value_is"] == "value":
                assert q["value"] == pytest.approx(exact(values, q["p"]), abs=1e-6), key


@pytest.mark.slow
def test_the_critical_leg_and_the_failed_legs_are_the_logs(run, fan):
    section, legs = fan
    whole, rows = legs.dropna(), run.steady("fan")
    ends = whole.to_numpy()
    alone = ends[
        (ends == ends.max(axis=1)[:, None]).sum(axis=1) == 1
    ]  # where two are last, none is
    last = alone.argmax(axis=1)

    assert [p["k"] for p in section["critical"]["positions"]] == np.bincount(
        last, minlength=LEGS
    ).tolist()
    assert section["critical"]["n"] == len(alone) > 0.95 * len(whole)
    refused = rows["status"] != 200
    assert section["partial"]["failed"] == refused.sum()
    assert section["partial"]["requests_with_failed"] == rows[refused]["request_id"].nunique()
    assert section["partial"]["closed"] == (rows["cancelled_at_ns"].notna()).sum()
