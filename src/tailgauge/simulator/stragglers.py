"""Why one call is slower than another: its own size, the replica's slowdown for it, the replica's bad minutes.

Rule: pure draws: the same seed, prompt and replica give the same number, whenever and in whatever order it is asked for.

    service time = what the engine plans * X * S * B
    X  size of the prompt's work: the same for every copy of it; lognormal with median 1
    S  slowdown of this prompt on this replica: a hedge sent to another replica draws anew, a retry on the same one does not
    B  brown-out: a factor while the replica is in one. Each cycle of `off_s + on_s` holds exactly one, at a place drawn
       for the cycle, so the share of time is on / (on + off) and the state at any time is known without a history

Sources: S&X against independent runtimes: Gardner et al.; a few percent of ten times slower calls: Dean & Barroso,
"The Tail at Scale". Copies that share X are why hedging gains less than the independent formula promises.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from random import Random


@dataclass(frozen=True, slots=True)
class StragglerSettings:
    """Slowness; every factor is 1 by default."""

    size_sigma: float = 0.0  # of the logarithm of X
    slow_share: float = 0.0  # S: share of (prompt, replica) pairs that are slow
    slow_factor: float = 10.0  # S: how many times slower these are
    pareto_alpha: float = 0.0  # S instead: Pareto from 1 on with this index, 1.5 to 2.5 say; 0: off
    brownout_factor: float = 1.0  # B: how many times slower in a brown-out; 1: off
    brownout_on_s: float = 5.0
    brownout_off_s: float = 55.0
    seed: int = 0


def prompt_key(draw_key: str) -> str:
    """What the copies of a call have in common: `request/leg` of `request/leg/attempt`."""
    prompt, slash, _ = draw_key.rpartition("/")
    return prompt if slash else draw_key


def size(settings: StragglerSettings, prompt: str) -> float:
    """X of a prompt."""
    if not settings.size_sigma:
        return 1.0
    return exp(settings.size_sigma * _random(settings, "size", prompt).gauss())


def slowdown(settings: StragglerSettings, prompt: str, replica: int) -> float:
    """S of a prompt on a replica."""
    if settings.pareto_alpha:
        return _random(settings, "slow", prompt, replica).paretovariate(settings.pareto_alpha)
    if settings.slow_share and _random(settings, "slow", prompt, replica).random() < settings.slow_share:
        return settings.slow_factor
    return 1.0


def brownout(settings: StragglerSettings, replica: int, now_ns: int) -> float:
    """B of a replica at a time."""
    if settings.brownout_factor == 1.0:
        return 1.0
    on_ns, off_ns = round(settings.brownout_on_s * 1e9), round(settings.brownout_off_s * 1e9)
    cycle, into_ns = divmod(now_ns, on_ns + off_ns)
    start_ns = round(_random(settings, "brownout", replica, cycle).random() * off_ns)
    return settings.brownout_factor if start_ns <= into_ns < start_ns + on_ns else 1.0


def factor(settings: StragglerSettings, draw_key: str, replica: int, now_ns: int) -> float:
    """All three for a call that starts now."""
    prompt = prompt_key(draw_key)
    return size(settings, prompt) * slowdown(settings, prompt, replica) * brownout(settings, replica, now_ns)


def _random(settings: StragglerSettings, *what: object) -> Random:
    # Seeded with bytes it does not depend on the process; a header may hold bytes that are no text.
    return Random("/".join(map(str, (settings.seed, *what))).encode("utf-8", "surrogateescape"))
