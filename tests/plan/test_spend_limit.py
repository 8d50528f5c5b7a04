"""Limits hold whatever happens: no sequence of calls, however it ends, uses more than was allowed."""

from __future__ import annotations

from datetime import date
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.call import JOB_POLL, JOB_SUBMIT, Call, Message, Part, Prompt, Tool
from tailgauge.plan.spend_limit import Amount, Guard, Sizing, need, used
from tailgauge.rows.schema import AttemptRow
from tailgauge.scenario.prices import Price, Usage

PRICE = Price(date(2026, 1, 1), tuple(map(Fraction, (1, 2, 3, 1, 5))))
LONG = Price(date(2026, 1, 1), PRICE.rates, 100, tuple(map(Fraction, (10, 20, 30, 1, 50))))


def row(**values: object) -> AttemptRow:
    known = {
        "request_id": 0, "leg": 0, "attempt": 0, "cause": "primary", "of_attempt": None, "stage": "steady",
        "traffic": "chat", "protocol": "anthropic", "asked_model": "m", "scheduled_at_ns": 0, "dispatched_at_ns": 0,
        "sent_at_ns": 1, "status": 200, "ended": "ok",
    }  # fmt: skip
    return AttemptRow(**{**known, **values})  # type: ignore[arg-type]


amounts = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda t: (max(t), min(t)))
limits = st.builds(
    Amount,
    st.none() | st.integers(0, 20),
    st.none() | st.integers(0, 300),
    st.none() | st.fractions(0, 300, max_denominator=7),
)


@given(limits, st.lists(st.tuples(amounts, amounts, st.integers(0, 5), st.booleans()), max_size=60))
def test_no_limit_is_ever_exceeded(limit, calls):
    """Calls overlap, each uses at most what it needed, some never tell; what was really used is summed beside it."""
    refusals: list[str] = []
    guard = Guard(limit, Sizing(), {}, refusals.append)
    open_calls: list[tuple[int, Amount]] = []
    really = Amount()
    refused = False
    for number, ((needed, real), (cost, real_cost), close, known) in enumerate(calls):
        taken = guard.hold(number, Amount(1, needed, Fraction(cost)))
        assert not (refused and taken), "after a refusal nothing is sent any more"
        refused = refused or not taken
        if taken:
            used_by_it = Amount(1, real, Fraction(real_cost))
            really = really.plus(used_by_it)
            open_calls.append((number, used_by_it))
        if close < len(open_calls):
            key, used_by_it = open_calls.pop(close)
            guard.settle(key, used_by_it if known else None)
        for have, most in zip(really, limit, strict=True):
            assert most is None or (have or 0) <= most
        for counted, have in zip(guard.taken, really, strict=True):
            assert (counted or 0) >= (have or 0), "what is held covers what is used"
    assert len(refusals) == int(refused)


@given(limits, st.integers(1, 12))
def test_shares_add_up_to_the_limit(limit, workers):
    shares = limit.shares(workers)

    total = Amount()
    for share in shares:
        total = total.plus(share)
        assert Amount.of_plain(share.plain()) == share, "it survives the link"
    assert total == Amount(limit.requests or 0, limit.tokens or 0, limit.cost or Fraction(0))
    for index in range(3):
        parts = [share[index] for share in shares]
        if limit[index] is None:
            assert parts == [None] * workers
        else:
            assert max(parts) - min(parts) <= 1  # type: ignore[operator,type-var]


def test_what_a_call_gives_back_is_there_for_the_next_one():
    guard = Guard(Amount(None, 100, None), Sizing(), {}, pytest.fail)
    assert guard.hold("a", Amount(1, 80))
    guard.settle("a", Amount(1, 30))

    assert guard.hold("b", Amount(1, 70))
    assert guard.taken == Amount(2, 100)


@pytest.mark.parametrize(
    "limit", [Amount(2, None, None), Amount(None, 300, None), Amount(2, 300, Fraction(1))], ids=str
)
def test_a_call_that_was_not_sent_leaves_its_room_to_others(limit):
    guard = Guard(limit, Sizing(), {"m": PRICE}, pytest.fail)
    call = Call(Prompt.of("hi"), 10)
    assert guard.take("a", call, "m")
    taken = guard.taken
    for number in range(10):
        assert guard.take(number, call, "m")
        guard.give_back(number)

    assert guard.taken == taken


@given(st.text(max_size=200))
def test_a_text_is_never_sized_below_its_bytes_unless_it_is_ours(text):
    assert Sizing().tokens(Prompt.of(text)) >= len(text.encode("utf-8", "surrogatepass"))


def test_everything_that_is_sent_is_sized():
    message = Message("user", (Part("x" * 100), Part("y" * 10)))
    prompt = Prompt((message,), (Part("s" * 1000),), (Tool("t" * 5, "d" * 50, "{" * 500),))

    assert Sizing(1.0, 0).tokens(prompt) >= 100 + 10 + 1000 + 5 + 50 + 500
    call = Call(prompt, 40, thinking="enabled", thinking_tokens=30, schema="j" * 70)
    assert (need(call, Sizing(), None).tokens or 0) >= 1665 + 70 + 40


def test_a_batch_is_taken_whole_and_asking_after_it_costs_a_call_only():
    submit = Call(Prompt.of("a"), 10, kind=JOB_SUBMIT, batch=(Prompt.of("b"),) * 7)
    one = need(Call(Prompt.of("b"), 10), Sizing(), PRICE)

    assert need(submit, Sizing(), PRICE) == Amount(1, 7 * (one.tokens or 0), 7 * (one.cost or 0))
    assert need(Call(Prompt.of("a"), 10, kind=JOB_POLL), Sizing(), PRICE) == Amount(1)


@given(
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(0, 50),
)
def test_no_way_to_count_the_input_costs_more_than_was_taken(plain, short, hour, read, output):
    text = "w" * (plain + short + hour + read)
    marked = Prompt((Message("user", (Part(text, "1h"),)),))
    for price in (PRICE, LONG):
        taken = need(Call(marked, 50), Sizing(), price)
        assert price.cost(Usage(plain, short, hour, read, output)) <= (taken.cost or 0)
        taken = need(Call(Prompt.of(text), 50), Sizing(), price)
        assert price.cost(Usage(plain, short + hour, 0, read, output)) <= (taken.cost or 0)


def test_what_an_ended_call_has_used():
    counts = {
        "input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 30,
        "cache_creation_1h_input_tokens": 10, "output_tokens": 5,
    }  # fmt: skip

    assert used(row(**counts), PRICE) == Amount(1, 65, PRICE.cost(Usage(10, 20, 10, 20, 5)))
    assert used(row(**counts), None) == Amount(1, 65, None)
    assert used(row(ended="rate_limited", status=429), PRICE) == Amount(1), (
        "refused: nothing was used"
    )
    assert used(row(ended="connect_error", status=None, sent_at_ns=None), PRICE) == Amount(1)
    assert used(row(ended="cancelled", **counts), PRICE) is None, "the last count never came"
    assert used(row(), PRICE) is None, "the target does not tell"


@pytest.mark.parametrize(("limit", "name"), [
    (Amount(2, None, None), "max_requests"),
    (Amount(None, 2 * 74 + 73, None), "max_tokens"),
    (Amount(None, None, Fraction(500, 10**6)), "max_cost"),
])  # fmt: skip
def test_the_limit_that_stopped_the_run_is_named_once(limit, name):
    refusals: list[str] = []
    guard = Guard(limit, Sizing(frame=47), {"m": PRICE}, refusals.append)
    call = Call(Prompt.of("x"), 10)  # 47 + 16 + 1 + 10 = 74 tokens

    assert guard.admits([call, call], "m")
    assert [guard.take(i, call, "m") for i in range(5)] == [True, True, False, False, False]
    assert not guard.admits([call], "m")
    assert refusals == [name]
