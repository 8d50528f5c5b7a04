"""Why one call is slower than another: its own size, the replica's slowdown for it, the replica's brownouts.

The same seed, prompt and replica give the same number, in whatever order they are drawn.

    service time = what the engine plans * X * S * B
    X  size of the prompt's work: the same for every attempt with it; lognormal with median 1
    S  slowdown of this prompt on this replica: a hedge sent to another replica draws anew, a retry on the same one does not
    B  brownout: a factor while the replica is in one. Each cycle of `off_s + on_s` holds exactly one, at a place drawn
       for the cycle, so the share of time is on / (on + off) and the state at any time is known without a history

Sources: the S&X model, in which runtimes are not independent, is from Gardner et al.; that a few percent of calls are ten
times slower is from Dean & Barroso, "The Tail at Scale". Attempts that share X are why hedging gains less than the
independent formula promises.
"""

from __future__ import annotations

from math import exp

from tailgauge.scenario.simulated import StragglersTable
from tailgauge.simulator.behaviours.draws import draws


class Stragglers:
    """The slowness of an endpoint; every factor is 1 by default."""

    def __init__(self, table: StragglersTable, seed: int) -> None:
        self._table = table
        self._seed = seed
        self._on_ns = round(table.brownout_on_s * 1e9)
        self._off_ns = round(table.brownout_off_s * 1e9)

    def factor(self, draw_key: str, replica: int, now_ns: int) -> float:
        """Return the product X * S * B for a call that starts now."""
        prompt = prompt_key(draw_key)
        return self.size(prompt) * self.slowdown(prompt, replica) * self.brownout(replica, now_ns)

    def size(self, prompt: str) -> float:
        """Return X of a prompt."""
        if not self._table.size_sigma:
            return 1.0
        return exp(self._table.size_sigma * draws(self._seed, "size", prompt).gauss())

    def slowdown(self, prompt: str, replica: int) -> float:
        """Return S of a prompt on a replica."""
        table = self._table
        if not table.pareto_alpha and not table.slow_share:
            return 1.0
        random = draws(self._seed, "slow", prompt, replica)
        if table.pareto_alpha:
            return random.paretovariate(table.pareto_alpha)
        return table.slow_factor if random.random() < table.slow_share else 1.0

    def brownout(self, replica: int, now_ns: int) -> float:
        """Return B of a replica at a time."""
        if self._table.brownout_factor == 1.0:
            return 1.0
        cycle, offset_ns = divmod(now_ns, self._on_ns + self._off_ns)
        start_ns = round(draws(self._seed, "brownout", replica, cycle).random() * self._off_ns)
        is_on = start_ns <= offset_ns < start_ns + self._on_ns
        return self._table.brownout_factor if is_on else 1.0


def prompt_key(draw_key: str) -> str:
    """Return the key that all attempts of a call share: `request/leg` of `request/leg/attempt`."""
    prompt, slash, _ = draw_key.rpartition("/")
    return prompt if slash else draw_key
