"""What a call costs: the output that a cancelled call is billed for, and prices relative to one input token.

Rule: pure and exact: rates are fractions, costs are in prices of one uncached input token. These are the endpoint's own
rates, to fill its purse and to test break-even; what a real provider takes is data of another file.

    cost        = input + read * R + creation_5m * W5 + creation_1h * W1 + output * O
    cost ratio  = (1 - h) w + h R       of a prompt with hit share h to the same prompt without a cache
    break-even  h = (w - 1) / (w - R)   share of tokens read; (w - R) / (1 - R) uses of each write

Sources: Anthropic's price page: W5 = 1.25, W1 = 2, R = 0.1 for most models (2026-08). Whether a cancelled stream is billed
for what was generated or in full differs by provider and gateway, hence `bill_cancelled`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal


@dataclass(frozen=True, slots=True)
class BillSettings:
    """Prices, and who pays for a cancelled call's rest."""

    bill_cancelled: Literal["generated", "full"] = "generated"
    read: Fraction = Fraction(1, 10)
    write_5m: Fraction = Fraction(5, 4)
    write_1h: Fraction = Fraction(2)
    output: Fraction = Fraction(5)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a call by their price."""

    input_tokens: int
    cache_read: int
    creation_5m: int
    creation_1h: int
    output_tokens: int


def billed_output(settings: BillSettings, generated: int, planned: int, *, cancelled: bool) -> int:
    """Output tokens on the bill: `generated` when the call ended, of an answer planned with `planned`."""
    return planned if cancelled and settings.bill_cancelled == "full" else generated


def cost(settings: BillSettings, usage: Usage) -> Fraction:
    """Price of a call, in prices of one uncached input token."""
    return (
        usage.input_tokens
        + usage.cache_read * settings.read
        + usage.creation_5m * settings.write_5m
        + usage.creation_1h * settings.write_1h
        + usage.output_tokens * settings.output
    )


def cost_ratio(hit_share: Fraction, write: Fraction, read: Fraction) -> Fraction:
    """Price of a cached prompt to that of the same prompt uncached."""
    return (1 - hit_share) * write + hit_share * read


def break_even_hit_share(write: Fraction, read: Fraction) -> Fraction:
    """Share of tokens that must be read for the cache to pay."""
    return (write - 1) / (write - read)


def break_even_uses(write: Fraction, read: Fraction) -> Fraction:
    """Uses of an entry, its write included, at which it has paid."""
    return (write - read) / (1 - read)
