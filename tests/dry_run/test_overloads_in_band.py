"""Three calls in ten end by an overload inside a 200, before any content: what policies make of it, against the server log."""

import pytest
from dry_run.in_memory import UNBOUNDED, run_in_memory

SHARE = 0.3
OPEN_BUDGET = {
    "max_retries": 3,
    "budget_share": 1.0,
    "budget_burst": 1e6,
    "deadline_s": 600.0,
    "base_s": 0.05,
}
POLITE = {"policy": "polite", **OPEN_BUDGET}


def overloaded(protocol="anthropic", traffic=None, **fault):
    """The rows of a run whose endpoint is overloaded so."""
    busy = {"kind": "error_event", "share": SHARE, "status": 529, **fault}
    return run_in_memory(
        {
            "target": {"protocol": protocol},
            "arrival": {"rate_per_s": 20.0},
            "stages": {"duration_s": 30.0, "warmup_s": 0.0},
            "limits": UNBOUNDED,
            "simulated": {"ttft_ms": 100.0, "faults": {"busy": busy}},
            "traffic": {"main": {"prompt_tokens": 10, "output_tokens": 4, **(traffic or {})}},
        }
    )


def planted(kept):
    """Calls that the server log has an overload of."""
    return {
        (row.request_id, row.leg, row.attempt)
        for row in kept.server_rows
        if row.error_status in {503, 529}
    }


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
@pytest.mark.parametrize(
    "shape", ["provider", "wrapped", "flat", "message", "detail", "field", "chunk"]
)
def test_each_shape_of_an_overload_is_one(protocol, shape):
    kept = overloaded(protocol, shape=shape)
    classed = {
        (row.request_id, row.leg, row.attempt) for row in kept.attempts if row.ended == "overloaded"
    }

    assert classed == planted(kept)
    assert len(classed) == pytest.approx(SHARE * len(kept.attempts), rel=0.2)
    assert {row.status for row in kept.server_rows} == {200}


def test_polite_retries_each_of_them():
    kept = overloaded(traffic={"retry": POLITE})
    refused = planted(kept)
    retried = {
        (row.request_id, row.leg, row.of_attempt) for row in kept.attempts if row.cause == "retry"
    }
    last = {key for key in refused if key[2] == 3}

    assert len(refused) > 150
    assert retried == refused - last
    assert {row.ended for row in kept.requests} <= {"ok", "overloaded"}
    assert sum(row.ended == "overloaded" for row in kept.requests) == len(last)


def test_they_hold_hedges_back():
    hedge = {"policy": "fixed", "delay_ms": 20.0, "budget_share": 1.0, "budget_burst": 1e6}
    calm = overloaded(traffic={"hedge": {**hedge, "throttle_tokens": 0.0}})
    kept = overloaded(traffic={"hedge": {**hedge, "throttle_tokens": 10.0, "throttle_ratio": 0.1}})
    copies = sum(row.cause == "hedge" for row in kept.attempts)
    held = [row.hedge_held for row in kept.requests]

    assert sum(row.cause == "hedge" for row in calm.attempts) > 0.6 * len(calm.requests)
    assert copies < 0.15 * len(kept.requests)
    assert held.count("throttle") > 0.5 * len(kept.requests)
    assert len(planted(kept)) == pytest.approx(SHARE * len(kept.attempts), rel=0.2)


def test_an_overload_after_content_breaks_the_answer_and_is_not_retried():
    kept = overloaded(traffic={"retry": POLITE}, at_chunk=2)
    broken = [row for row in kept.attempts if row.ended == "stream_error"]

    assert len(broken) == len(planted(kept)) > 30
    assert {row.error_class for row in broken} == {"overloaded"}
    assert {row.cause for row in kept.attempts} == {"primary"}
