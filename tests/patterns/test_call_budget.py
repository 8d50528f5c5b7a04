"""The budget of additional calls: what it promises, exactly."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from tailgauge.patterns.policies import Budget


@given(
    st.integers(0, 1000),
    st.floats(1, 50).map(lambda x: round(x, 3)),
    st.lists(st.booleans(), max_size=400),
)
def test_never_more_are_taken_than_the_burst_and_the_share_of_the_calls(thousandths, burst, acts):
    budget, calls, taken = Budget(thousandths / 1000, burst), 0, 0

    for act in acts:
        if act:
            budget.give()
            calls += 1
        else:
            taken += budget.take()
        assert taken <= Fraction(round(burst * 1000), 1000) + Fraction(thousandths, 1000) * calls


def test_it_begins_full_and_is_filled_by_the_calls():
    budget = Budget(0.1, 2)

    assert [budget.take() for _ in range(3)] == [True, True, False]
    for _ in range(9):
        budget.give()
    assert not budget.take()
    budget.give()
    assert budget.take()  # ten tenths are one, without a rounding error
    assert not budget.take()


def test_it_saves_no_more_than_its_burst():
    budget = Budget(1.0, 3)
    for _ in range(100):
        budget.give()

    assert sum(budget.take() for _ in range(10)) == 3
