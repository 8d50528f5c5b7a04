"""A client that leaves: when the engine stops, what it wastes, and who pays."""

import pytest
from simulator.http.conftest import HELLO, named

TOKENS, STEP_NS = 150, 5_000_000
ENGINE = ("profile=tiny", "engine.overhead_ms=1", "engine.overhead_sigma=0", "engine.step_ms=5")


def leave(serve, *sets):
    """The server log of a call whose client left after a few chunks."""
    endpoint = serve(*sets)
    stream = endpoint.message("r", max_tokens=TOKENS, stream=True)
    for _ in range(5):
        next(stream)
    stream.close()
    return endpoint.row("r", "tokens_after_cancel"), endpoint


@pytest.mark.parametrize("bill", ["generated", "full"])
@pytest.mark.parametrize("mode", ["immediate", "next_step", "after_ms", "never"])
def test_the_engine_stops_as_its_mode_says_and_the_bill_follows(serve, mode, bill):
    modes = (
        f"engine.cancel_mode={mode}",
        "engine.cancel_after_ms=100",
        f"billing.bill_cancelled={bill}",
    )
    row, _ = leave(serve, *ENGINE, *modes)
    sent, wasted, billed = (
        row[key] for key in ("output_tokens", "tokens_after_cancel", "billed_output_tokens")
    )
    assert row["ended_at_ns"] is None
    assert row["cancelled_at_ns"] >= row["chunk_sent_at_ns"][-1]
    # Made while the client left: one, and more if the machine stalled. A late chunk was made before it was sent.
    last_made_ns = row["prefill_ended_at_ns"] + (sent - 1) * STEP_NS
    unsent = 1 + (row["cancelled_at_ns"] - last_made_ns) // STEP_NS
    if mode == "immediate":
        assert wasted == 0
    elif mode == "next_step":
        assert wasted == 1
    elif mode == "after_ms":
        assert 3 < wasted < TOKENS - sent
    else:
        assert 0 <= TOKENS - sent - wasted <= unsent
    generated = TOKENS if mode == "never" else sent + wasted
    assert billed == TOKENS if bill == "full" else 0 <= billed - generated <= unsent


def test_a_settled_truth_waits_for_what_the_engine_goes_on_with(serve):
    endpoint = serve(*ENGINE, "engine.cancel_mode=never")
    stream = endpoint.message("r", max_tokens=TOKENS, stream=True)
    next(stream)
    (early,) = endpoint.server_log("r")
    stream.close()
    (settled,) = endpoint.server_log("r&settled")

    assert early["billed_output_tokens"] is None
    assert settled["billed_output_tokens"] == TOKENS


def test_a_client_that_leaves_before_the_first_token_wastes_its_wait(serve):
    endpoint = serve(
        "profile=tiny", "engine.overhead_ms=5000", "engine.overhead_sigma=0", "limits.itpm=1000"
    )
    impatient = endpoint.claude.with_options(timeout=0.3)
    with pytest.raises(Exception, match="timed out"):
        impatient.messages.create(model="m", max_tokens=5, messages=HELLO, **named("r"))
    row = endpoint.row("r", "tokens_after_cancel")
    assert (row["tokens_after_cancel"], row["billed_output_tokens"], row["admitted_at_ns"]) == (
        0,
        0,
        None,
    )
    raw = endpoint.claude.messages.with_raw_response.count_tokens(model="m", messages=HELLO)
    assert raw.status_code == 200


@pytest.mark.parametrize("bill", ["generated", "full"])
def test_without_an_engine_nothing_is_made_for_nobody(serve, bill):
    row, endpoint = leave(serve, "chunk_gap_ms=5", f"billing.bill_cancelled={bill}")
    assert row["tokens_after_cancel"] == 0
    assert row["billed_output_tokens"] == (TOKENS if bill == "full" else row["output_tokens"])
    assert endpoint.message(max_tokens=2).usage.output_tokens == 2
