"""How often a report shows an effect of tokens or concurrency: where there is none, and where one was planted.

    python -m bench.slopes --reports 200

Traffic is drawn by numpy with a fresh seed, which is printed. Effects of all tokens are 0 in each of NOTHING, and those of
calls in flight too but in `queue`, where each call ahead takes time.
"""

from __future__ import annotations

import argparse
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections import slopes
from tailgauge_analysis.sections.slopes import Regression

MS = 1e6
NOISES = ("lognormal", "exponential", "normal", "gamma", "bimodal")


@dataclass(kw_only=True)
class Drawn:
    """Calls in order of arrival; times in ms. `of`: session and turn of each."""

    sent: np.ndarray
    ttft: np.ndarray
    prompt: np.ndarray
    output: np.ndarray
    pace: np.ndarray
    session: np.ndarray | None = None
    turn: np.ndarray | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    is_open: bool = True

    def regressions(self, rng: np.random.Generator) -> list[Regression]:
        """Estimate the effects of a report over these calls."""
        n = len(self.sent)
        order = np.argsort(self.sent, kind="stable")
        session = np.arange(n) if self.session is None else self.session
        turn = np.zeros(n, np.int64) if self.turn is None else self.turn
        output = np.maximum(2, self.output).astype(np.int64)
        gaps = [
            rng.gamma(4, pace / 4, count - 1) for pace, count in zip(self.pace, output, strict=True)
        ]
        first = self.sent + self.ttft
        last = first + np.array([gap.sum() for gap in gaps])
        columns = {name: np.asarray(values)[order] for name, values in self.columns.items()}
        shared: dict[str, Any] = {
            "request_id": (session * schema.TURNS + turn)[order],
            "ended": "ok",
            "stage": "steady",
            "traffic": "chat",
        }
        shared.update(columns)
        attempts = pd.DataFrame({
            "leg": 0, "attempt": 0, "target": "main", "asked_model": "m", "scheduled_at_ns": self.sent[order] * MS,
            "sent_at_ns": self.sent[order] * MS, "first_content_at_ns": first[order] * MS,
            "last_content_at_ns": last[order] * MS, "ended_at_ns": last[order] * MS, "cache_read_input_tokens": 0.0,
            "cache_creation_input_tokens": 0.0, "input_tokens": np.round(self.prompt[order]), "worker": 0,
            "output_tokens": output[order] * 1.0, "reader_paused_ns": np.nan, **shared,
        })  # fmt: skip
        requests = pd.DataFrame({
            "answer_leg": 0.0, "answer_attempt": 0.0, "streamed": True, "pace_missing": None, "pace_skip": 0,
            "pace_tokens": output[order], "pace_chunks": output[order], "pace_from_ns": first[order] * MS,
            "output_tokens": output[order], "tags": None, "name": None, **shared,
        })  # fmt: skip
        passed = np.concatenate([gaps[i] for i in order]) * MS
        stage = Steady(requests, attempts, passed, output[order] - 1, "any", 0.0, 1e9)
        arrivals = slopes.arrivals_ns(attempts) if self.is_open else np.empty(0)
        return slopes.significant(slopes.fitted(attempts, stage, arrivals))


def noise(rng: np.random.Generator, kind: str, n: int, sd: float) -> np.ndarray:
    """Return positive latencies with this deviation."""
    match kind:
        case "lognormal":
            return rng.lognormal(0, 0.8, n) * sd / 1.30
        case "exponential":
            return rng.exponential(sd, n)
        case "gamma":
            return rng.gamma(2, sd / 1.414, n)
        case "bimodal":
            return np.where(rng.random(n) < 0.8, 0.0, 2.4 * sd) + rng.gamma(9, sd / 11, n)
        case _:
            return np.maximum(1, 4 * sd + rng.normal(0, sd, n))


def slow_periods(rng: np.random.Generator, n: int, calls: float) -> np.ndarray:
    """Return a series with variance 1 that stays about itself for so many calls."""
    kept = np.exp(-1 / calls)
    steps = rng.normal(0, np.sqrt(1 - kept**2), n)
    steps[0] = rng.normal()
    level = 0.0
    series = np.empty(n)
    for i in range(n):
        level = kept * level + steps[i]
        series[i] = level
    return series


def plain(rng: np.random.Generator) -> Drawn:
    """Draw calls without any effect."""
    n = int(rng.choice([300, 800, 1500]))
    rate = rng.uniform(2, 20)
    sent = np.cumsum(rng.exponential(1000 / rate, n))
    return Drawn(
        sent=sent,
        ttft=100 + noise(rng, str(rng.choice(NOISES)), n, rng.uniform(20, 300)),
        prompt=rng.lognormal(rng.uniform(5, 7.5), rng.uniform(0.3, 1.2), n),
        output=rng.lognormal(rng.uniform(2, 4), rng.uniform(0, 0.8), n) + 2,
        pace=rng.uniform(5, 30) * rng.lognormal(0, rng.uniform(0, 0.3), n),
    )


def autocorrelated(rng: np.random.Generator) -> Drawn:
    """Draw calls that meet slow periods, which no load causes."""
    drawn = plain(rng)
    n = len(drawn.sent)
    slow = np.exp(rng.uniform(0.2, 0.8) * slow_periods(rng, n, rng.uniform(3, 100)))
    drawn.ttft = drawn.ttft * slow
    drawn.pace = drawn.pace * slow
    if rng.random() < 0.5:  # lengths that change slowly too
        drawn.prompt = drawn.prompt * np.exp(0.5 * slow_periods(rng, n, rng.uniform(3, 50)))
    return drawn


def changing_load(rng: np.random.Generator) -> Drawn:
    """Draw calls whose rate changes in steps, a ramp or a wave, and a latency with a trend of its own."""
    drawn = plain(rng)
    n = len(drawn.sent)
    place = np.linspace(0, 1, n)
    shapes = (
        1 + 3 * place,
        np.where(place > 0.5, 4, 1),
        1.5 + np.sin(6 * place),
        1 + 4 * (np.abs(place - 0.5) < 0.1),
    )
    rate = shapes[rng.integers(len(shapes))]
    drawn.sent = np.cumsum(np.diff(drawn.sent, prepend=0) / rate)
    trends = (1 + place, np.where(place > 0.5, 1.5, 1.0), 1 + 0.5 * np.sin(6 * place), np.ones(n))
    trend = trends[rng.integers(len(trends))]
    drawn.ttft = drawn.ttft * trend
    drawn.pace = drawn.pace * trend
    return drawn


def queue(rng: np.random.Generator) -> Drawn:
    """Draw calls that wait for servers; what a call takes there has nothing to do with its tokens."""
    drawn = plain(rng)
    n = len(drawn.sent)
    servers = int(rng.choice([1, 2, 4, 8]))
    load = rng.uniform(0.3, 0.95)
    mean = load * servers * float(np.diff(drawn.sent).mean())
    served = noise(rng, str(rng.choice(NOISES[:4])), n, 1.0)
    served = served / served.mean() * mean
    free = np.zeros(servers)
    for i, at in enumerate(drawn.sent):
        server = int(free.argmin())
        free[server] = max(free[server], at) + served[i]
        drawn.ttft[i] = free[server] - at
    return drawn


def tables(rng: np.random.Generator) -> Drawn:
    """Draw calls of tables, or of models, that differ in lengths, latency and pace."""
    drawn = plain(rng)
    n = len(drawn.sent)
    kind = rng.integers(0, int(rng.choice([2, 3, 5])), n)
    if rng.random() < 0.5:  # one after the other
        kind = np.sort(kind)
    size = rng.lognormal(0, 1, 5)
    slower = rng.lognormal(0, 0.7, 5)
    drawn.prompt = drawn.prompt * size[kind]
    drawn.ttft = drawn.ttft * slower[kind]
    drawn.pace = drawn.pace * slower[kind]
    drawn.output = drawn.output * rng.lognormal(0, 0.7, 5)[kind]
    name = str(rng.choice(["traffic", "asked_model", "target", "tags"]))
    drawn.columns = {name: np.array([f"kind {code}" for code in kind])}
    return drawn


def sessions(rng: np.random.Generator) -> Drawn:
    """Draw conversations whose context grows, and of which some are slow throughout."""
    count = int(rng.choice([30, 100, 250]))
    turns = rng.geometric(1 / rng.uniform(3, 10), count)
    session = np.repeat(np.arange(count), turns)
    turn = np.concatenate([np.arange(length) for length in turns])
    n = len(session)
    grows = rng.lognormal(5.5, 0.7, count)
    slow = rng.lognormal(0, rng.uniform(0.1, 0.6), count)
    ttft = (50 + noise(rng, str(rng.choice(NOISES)), n, rng.uniform(20, 150))) * slow[session]
    think = rng.exponential(rng.uniform(500, 3000), n) + ttft
    begin = np.cumsum(rng.exponential(rng.uniform(300, 2000), count))
    waits = np.cumsum(np.where(turn == 0, 0.0, think))
    sent = begin[session] + waits - waits[np.flatnonzero(turn == 0)][session]
    return Drawn(
        sent=sent,
        ttft=ttft,
        prompt=grows[session] * (turn + 1) * rng.lognormal(0, 0.2, n),
        output=rng.lognormal(3, 0.5, n),
        pace=10 * slow[session],
        session=session,
        turn=turn,
    )


def users(rng: np.random.Generator) -> Drawn:
    """Draw a closed loop of users, of whom some are slow, with prompts of their own length."""
    count = int(rng.choice([10, 30, 60]))
    each = int(rng.choice([10, 30]))
    drawn = plain(rng)
    n = count * each
    user = np.repeat(np.arange(count), each)
    slow = rng.lognormal(0, 0.4, count)[user]
    ttft = (50 + noise(rng, "lognormal", n, 100)) * slow * np.exp(0.4 * slow_periods(rng, n, 20))
    sent = np.concatenate(
        [np.cumsum(rng.exponential(1000, each) + part) for part in np.split(ttft, count)]
    )
    drawn.sent = sent
    drawn.ttft = ttft
    drawn.prompt = rng.lognormal(6, 0.5, count)[user] * rng.lognormal(0, rng.uniform(0, 0.5), n)
    drawn.output = rng.lognormal(3, 0.5, n)
    drawn.pace = 10 * slow
    drawn.session = user
    drawn.turn = np.tile(np.arange(each), count)
    drawn.is_open = False
    return drawn


def ties(rng: np.random.Generator) -> Drawn:
    """Draw latencies of few different values, and prompts of a few lengths."""
    drawn = plain(rng)
    n = len(drawn.sent)
    width = rng.choice([1, 20, 100, 300])
    drawn.ttft = np.round(drawn.ttft / width) * width + 1
    drawn.prompt = rng.choice([100, 500, 2000, 4000], n) * 1.0
    return drawn


def equal_lengths(rng: np.random.Generator) -> Drawn:
    """Draw calls that are equally long, or nearly so."""
    drawn = autocorrelated(rng)
    n = len(drawn.sent)
    drawn.prompt = 1000 + rng.integers(0, int(rng.choice([1, 5, 300])), n)
    drawn.output = np.full(n, 40.0)
    return drawn


NOTHING: dict[str, Callable[[np.random.Generator], Drawn]] = {
    "iid": plain,
    "autocorrelated": autocorrelated,
    "changing load": changing_load,
    "queue": queue,
    "tables": tables,
    "sessions": sessions,
    "users": users,
    "ties": ties,
    "equal lengths": equal_lengths,
}


def shown(regressions: list[Regression]) -> list[str]:
    """Return the effects that a report shows."""
    return [slope.name for one in regressions for slope in one.slopes if slope.value is not None]


def planted(rng: np.random.Generator) -> tuple[bool, bool]:
    """Plant a cost of prompt tokens at 2,000 requests: whether it was found, and whether its interval holds it."""
    n = 2000
    cost = rng.uniform(20, 100)
    drawn = plain(rng)
    rate = rng.uniform(2, 20)
    drawn.sent = np.cumsum(rng.exponential(1000 / rate, n))
    spread = rng.uniform(300, 1500)
    drawn.prompt = np.maximum(
        20, rng.choice([rng.normal(3 * spread, spread, n), rng.exponential(spread, n)])
    )
    if rng.random() < 0.3:
        drawn.prompt = rng.uniform(0, spread * 3.46, n) + 20
    wait = noise(rng, str(rng.choice(NOISES)), n, rng.uniform(50, 150))
    drawn.ttft = 100 + cost * drawn.prompt / 1000 + wait
    drawn.output = np.full(n, 8.0)
    drawn.pace = np.full(n, 10.0)
    found = [one for one in drawn.regressions(rng)[0].slopes if one.name == slopes.UNCACHED]
    is_found = bool(found) and found[0].value is not None
    return is_found, bool(found) and found[0].low <= cost <= found[0].high


def main() -> None:
    """Print the shares."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--reports", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    total = 0
    for place, (name, draw) in enumerate(NOTHING.items()):
        counted: dict[str, int] = {}
        reports = 0
        for number in range(options.reports):
            rng = np.random.default_rng([options.seed, place, number])
            effects = shown(draw(rng).regressions(rng))
            if name == "queue":
                effects = [effect for effect in effects if effect != slopes.IN_FLIGHT]
            reports += bool(effects)
            for effect in effects:
                counted[effect] = counted.get(effect, 0) + 1
        total += reports
        print(
            f"{name}: {reports} of {options.reports} reports show an effect {counted}", flush=True
        )
    print(f"all: {total} of {options.reports * len(NOTHING)}")
    results = [
        planted(np.random.default_rng([options.seed, 99, i])) for i in range(options.reports)
    ]
    found, held = np.mean(results, axis=0)
    print(f"planted: found in {found:.0%}, inside its interval in {held:.0%}")


if __name__ == "__main__":
    main()
