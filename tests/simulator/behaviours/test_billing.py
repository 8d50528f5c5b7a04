"""What is on the bill."""

from __future__ import annotations

from fractions import Fraction

import pytest

from tailgauge.simulator.billing import BillSettings, Usage, billed_output, cost


@pytest.mark.parametrize(
    ("bill", "cancelled", "tokens"),
    [("generated", False, 30), ("generated", True, 30), ("full", True, 100), ("full", False, 30)],
)
def test_only_a_cancelled_call_may_be_billed_for_what_it_never_made(
    bill: str, cancelled: bool, tokens: int
) -> None:
    assert billed_output(BillSettings(bill_cancelled=bill), 30, 100, cancelled=cancelled) == tokens


def test_each_kind_of_token_has_its_price() -> None:
    rates = BillSettings(
        read=Fraction(1, 20), write_5m=Fraction(5, 4), write_1h=Fraction(2), output=Fraction(5)
    )

    assert cost(rates, Usage(1000, 2000, 400, 100, 10)) == 1000 + 100 + 500 + 200 + 50
