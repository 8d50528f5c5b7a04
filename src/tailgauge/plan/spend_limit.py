"""Limits that a run never exceeds: what a call may need is taken before it is sent, and corrected when it has ended.

One guard per worker. A need is an upper bound: no tokenizer makes more tokens than a text has bytes.
Only of seeded words, whose tokens were counted at the preflight, half as much again as measured is enough. A call
whose usage the target does not report keeps all that it took.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from tailgauge.call import JOB_SUBMIT, MESSAGE, Call, Prompt
from tailgauge.rows.schema import SERVED, AttemptRow
from tailgauge.scenario.prices import Price, Usage

FRAME_TOKENS = 64  # what a chat template adds to a prompt, and to each of its messages a quarter
TOOL_TOKENS = 600  # what a provider adds once there are tools
MARGIN = 1.5  # of what was measured, for seeded words
REQUESTS = "max_requests"
TOKENS = "max_tokens"
COST = "max_cost"


# Known by its identity, because sums of fractions are slow and most runs have no price.
_FREE = Fraction(0)


class Amount(NamedTuple):
    """Calls, tokens and cost: needed, used, or left; None where there is no limit, or no cost."""

    requests: int | None = 0
    tokens: int | None = 0
    cost: Fraction | None = _FREE

    def shares(self, workers: int) -> list[Amount]:
        """Even shares that add up to the whole; the first workers get what does not divide."""

        def part(n: int | None, worker: int) -> int | None:
            if n is None:
                return None
            return n // workers + (worker < n % workers)

        cost = None
        if self.cost is not None:
            cost = self.cost / workers
        shares = []
        for worker in range(workers):
            requests = part(self.requests, worker)
            tokens = part(self.tokens, worker)
            shares.append(Amount(requests, tokens, cost))
        return shares

    def less(self, spent: Amount) -> Amount:
        """Return what is left of a limit, at least nothing."""
        requests, tokens, cost = self
        if requests is not None:
            requests = max(0, requests - (spent.requests or 0))
        if tokens is not None:
            tokens = max(0, tokens - (spent.tokens or 0))
        if cost is not None:
            cost = max(Fraction(0), cost - (spent.cost or 0))
        return Amount(requests, tokens, cost)

    def plus(self, amount: Amount, sign: int = 1) -> Amount:
        """Return the sum; what is not limited or not known counts nothing."""
        requests = (self.requests or 0) + sign * (amount.requests or 0)
        tokens = (self.tokens or 0) + sign * (amount.tokens or 0)
        cost = _FREE if self.cost is None else self.cost
        if amount.cost is not None and amount.cost is not _FREE:
            cost += sign * amount.cost
        return Amount(requests, tokens, cost)

    def plain(self) -> list[Any]:
        """Plain values for a message; `of_plain` reads them."""
        cost = None
        if self.cost is not None:
            cost = str(self.cost)
        return [self.requests, self.tokens, cost]

    @classmethod
    def of_plain(cls, plain: list[Any]) -> Amount:
        """Return what `plain` made."""
        requests, tokens, cost = plain
        if cost is not None:
            cost = Fraction(cost)
        return cls(requests, tokens, cost)


@dataclass(frozen=True, slots=True)
class Sizing:
    """How many tokens a prompt has at most."""

    per_byte: float = 1.0
    frame: int = FRAME_TOKENS

    def tokens(self, prompt: Prompt) -> int:
        """Return an upper bound of the tokens of a whole prompt, with what a template and tools add.

        By the bytes of its texts; a prompt that states more tokens has these.
        """
        parts = list(prompt.system)
        texts = []
        for message in prompt.messages:
            parts += message.parts
            if message.more:
                texts.append(message.more)
        texts += [part.block or part.text for part in parts]
        for tool in prompt.tools:
            if tool.given:
                texts.append(tool.given)
            else:
                texts += [tool.name, tool.description, tool.schema]
        size = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
        frame = self.frame + len(texts) * FRAME_TOKENS // 4
        if prompt.tools:
            frame += TOOL_TOKENS
        return frame + max(math.ceil(size * self.per_byte), prompt.tokens)


def need(call: Call, sizing: Sizing, price: Price | None) -> Amount:
    """Return what a call may use at most; its cost is None without a price."""
    if call.kind not in {MESSAGE, JOB_SUBMIT}:
        return Amount(1)
    prompts = call.batch or (call.prompt,)
    inputs = [sizing.tokens(prompt) + len(call.schema or "") for prompt in prompts]
    output = call.max_tokens  # thinking is a part of it
    total = sum(inputs) + output * len(prompts)
    if price is None:
        return Amount(1, total, None)
    costs = (_dearest(price, tokens, output) for tokens in inputs)
    return Amount(1, total, sum(costs, Fraction(0)))


def _dearest(price: Price, prompt_tokens: int, output_tokens: int) -> Fraction:
    """Whatever becomes of its input: read, new, or written for an hour."""
    rates = [price.rates]
    if price.rates_for(prompt_tokens) != price.rates:
        rates.append(price.long_rates)
    of_input = max(max(rate[:4]) for rate in rates)
    of_output = max(rate[4] for rate in rates)
    return (prompt_tokens * of_input + output_tokens * of_output) / 1_000_000


def used(row: AttemptRow, price: Price | None) -> Amount | None:
    """Return what an ended call has used; None where it is not known."""
    if row.sent_at_ns is None or (row.status or 0) >= 400:
        return Amount(1)
    if row.ended not in SERVED or row.input_tokens is None or row.output_tokens is None:
        return None
    hour = row.cache_creation_1h_input_tokens or 0
    read = row.cache_read_input_tokens or 0
    short = (row.cache_creation_input_tokens or 0) - hour
    usage = Usage(row.input_tokens, short, hour, read, row.output_tokens)
    cost = None
    if price is not None:
        cost = price.cost(usage)
    return Amount(1, usage.prompt + usage.output, cost)


class Guard:
    """One worker's share of the limits, as calls meet it. `prices` by model, where cost is limited.

    `on_refused` is called once with the limit that stopped the worker.
    """

    def __init__(
        self,
        limit: Amount,
        sizing: Sizing,
        prices: Mapping[str, Price],
        on_refused: Callable[[str], object],
    ) -> None:
        self._limit = limit
        self._sizing = sizing
        self._prices = prices
        self._on_refused = on_refused
        # Then nothing needs to be sized or held: a call that was taken counts, whatever becomes of it.
        self.is_of_calls_only = limit.tokens is None and limit.cost is None
        self._held: dict[Hashable, Amount] = {}
        self._refused = False
        self.taken = Amount()  # used, or held for calls that have not ended

    def admits(self, calls: Sequence[Call], model: str, more_calls: int = 0) -> bool:
        """Return whether a request that will make these calls may begin."""
        if self.is_of_calls_only:
            return self.admits_calls(more_calls + len(calls))
        total = Amount(more_calls)
        for call in calls:
            total = total.plus(self._need(call, model))
        return self._admits(total)

    def allows(self, call: Call, model: str, calls: int) -> bool:
        """Return whether so many calls like this one are still allowed."""
        need = Amount(1)
        if not self.is_of_calls_only:
            need = self._need(call, model)
        cost = None
        if need.cost is not None:
            cost = need.cost * calls
        total = Amount((need.requests or 0) * calls, (need.tokens or 0) * calls, cost)
        return not self._refused and self._exceeded(total) is None

    def take(self, key: Hashable, call: Call, model: str) -> bool:
        """Return whether a call may be sent; if so, what it may need is held for it under its key."""
        if self.is_of_calls_only:
            admitted = self.admits_calls(1)
            self.taken = Amount((self.taken.requests or 0) + admitted)
            return admitted
        return self.hold(key, self._need(call, model))

    def give_back(self, key: Hashable) -> None:
        """A call that was taken was not sent."""
        if self.is_of_calls_only:
            self.taken = Amount((self.taken.requests or 0) - 1)
        else:
            self.settle(key, Amount())

    def ended(self, key: Hashable, row: AttemptRow) -> None:
        """A call has ended."""
        if self.is_of_calls_only:
            return
        self.settle(key, used(row, self._prices.get(row.asked_model)))

    def hold(self, key: Hashable, need: Amount) -> bool:
        """Take what a call may need; False: it must not be sent."""
        if not self._admits(need):
            return False
        self._held[key] = need
        self.taken = self.taken.plus(need)
        return True

    def settle(self, key: Hashable, used: Amount | None) -> None:
        """Give back what a call did not use. None: not known, all stays taken."""
        amount = self._held.pop(key, None)
        if amount is not None and used is not None:
            self.taken = self.taken.plus(amount, -1).plus(used)

    def _need(self, call: Call, model: str) -> Amount:
        return need(call, self._sizing, self._prices.get(call.model or model))

    def admits_calls(self, calls: int) -> bool:
        """Return whether so many more calls are allowed, of a guard of calls only."""
        limit = self._limit.requests
        if limit is None or (self.taken.requests or 0) + calls <= limit:
            return not self._refused
        return self._admits(Amount(calls))

    def _admits(self, need: Amount) -> bool:
        """Return whether the limits allow it; once they did not, nothing is admitted any more."""
        if self._refused:
            return False
        name = self._exceeded(need)
        if name is None:
            return True
        self._refused = True
        self._on_refused(name)
        return False

    def _exceeded(self, need: Amount) -> str | None:
        totals = self.taken.plus(need)
        for name, limit, total in zip((REQUESTS, TOKENS, COST), self._limit, totals, strict=True):
            if limit is not None and total is not None and total > limit:
                return name
        return None
