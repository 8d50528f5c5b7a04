"""What is on the bill."""

import pytest

from tailgauge.scenario.simulated import BillingTable
from tailgauge.simulator.behaviours.billing import Billing, PromptTokens


@pytest.mark.parametrize(
    ("bill", "cancelled", "tokens"),
    [("generated", False, 30), ("generated", True, 30), ("full", True, 100), ("full", False, 30)],
)
def test_only_a_cancelled_call_may_be_billed_for_what_it_never_made(bill, cancelled, tokens):
    assert (
        Billing(BillingTable(bill_cancelled=bill)).billed_output(30, 100, cancelled=cancelled)
        == tokens
    )


def test_each_kind_of_token_has_its_price():
    prices = Billing(BillingTable(read=0.05, write_5m=1.25, write_1h=2.0, output=5.0))

    assert prices.cost(PromptTokens(1000, 2000, 400, 100), 10) == 1000 + 100 + 500 + 200 + 50
