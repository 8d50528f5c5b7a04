"""The price of a call: the output that a cancelled call is billed for, and prices relative to one input token.

Exact: rates are fractions. These are the endpoint's own rates, for its spend limit; what a real provider charges is in the
price file.

    cost = input + read * R + creation_5m * W5 + creation_1h * W1 + output * O

Sources: Anthropic's price page: W5 = 1.25, W1 = 2, R = 0.1 for most models (2026-08). Whether a cancelled stream is billed
for what was generated or in full differs by provider and gateway, hence `bill_cancelled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tailgauge.scenario.simulated import BillingTable


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt's tokens by their price; the four add up to the prompt."""

    input_tokens: int  # the uncached remainder
    read: int = 0
    creation_5m: int = 0
    creation_1h: int = 0


class Billing:
    """The prices of an endpoint."""

    def __init__(self, table: BillingTable) -> None:
        self._bills_cancelled_in_full = table.bill_cancelled == "full"
        self._read = exact(table.read)
        self._write_5m = exact(table.write_5m)
        self._write_1h = exact(table.write_1h)
        self._output = exact(table.output)

    def billed_output(self, generated: int, planned: int, *, cancelled: bool) -> int:
        """Return the output tokens on the bill of a call that generated some of its planned tokens."""
        return planned if cancelled and self._bills_cancelled_in_full else generated

    def cost(self, prompt: PromptTokens, output_tokens: int) -> Fraction:
        """Return the price of a call, in prices of one uncached input token."""
        return (
            prompt.input_tokens
            + prompt.read * self._read
            + prompt.creation_5m * self._write_5m
            + prompt.creation_1h * self._write_1h
            + output_tokens * self._output
        )


def exact(number: float) -> Fraction:
    """Return the number as it was written: 0.1 is a tenth."""
    return Fraction(repr(number))
