"""An engine driven through a list of calls, and how far a measured number may lie from the expected one.

Fixed seeds. Waiting times follow each other, so errors come from the means of 20 batches of consecutive calls.
"""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np
from simulator.engine.fluid import fluid

from tailgauge.simulator.engine.config import PROFILES, EngineConfig
from tailgauge.simulator.engine.engine import Engine
from tailgauge.simulator.engine.job import ENDINGS, NO_HOOKS, REFUSED, Job

BATCHES = 20
NEVER = -1
_EVER_NS = 2**62
_FOLD_EVERY = 512  # calls between two looks at what happened: emissions do not pile up


@dataclass
class Demands:
    """What each call needs; entry i belongs to call i."""

    prompt_tokens: np.ndarray
    output_tokens: np.ndarray

    def jobs(self):
        """One job a call; its key is its index."""
        tokens = self.prompt_tokens.tolist(), self.output_tokens.tolist()
        return [Job(i, *values) for i, values in enumerate(zip(*tokens, strict=True))]


@dataclass
class Measured:
    """What became of the calls; times in ns, NEVER where it did not happen."""

    sent_ns: list = field(default_factory=list)
    calls: dict = field(default_factory=dict)  # the engine's, by index, once they have ended
    refused: set = field(default_factory=set)

    def fold(self, emissions):
        """Take in endings; returns their times."""
        ends = []
        for emission in emissions:
            if emission.kind in ENDINGS:
                self.calls[emission.job.key] = emission.call
                if emission.kind == REFUSED:
                    self.refused.add(emission.job.key)
                ends.append(emission.at_ns)
        return ends

    def column(self, value, default=NEVER):
        """A number of each call, as an array."""
        calls = (self.calls.get(i) for i in range(len(self.sent_ns)))
        return np.array(
            [default if call is None or (v := value(call)) is None else v for call in calls]
        )

    @property
    def sent(self):
        return np.array(self.sent_ns)

    @property
    def ended(self):
        return self.column(lambda call: call.ended_ns)

    @property
    def first(self):
        return self.column(lambda call: call.chunk_times_ns[0] if call.times else None)

    @property
    def last(self):
        return self.column(lambda call: call.chunk_times_ns[-1] if call.times else None)

    @property
    def tokens(self):
        return self.column(lambda call: call.tokens)

    @property
    def chunks(self):
        return self.column(lambda call: len(call.chunk_times_ns))


def engine_of(profile, seed, hooks):
    config = profile if isinstance(profile, EngineConfig) else PROFILES[profile]
    return Engine(config, seed, hooks, tokens=False)


def gauges(engine):
    """Each replica as it stands: calls that run and wait, share of its memory in use."""
    return [(len(r.running), len(r.waiting), r.kv_used_share) for r in engine.replicas]


def run(profile, at_ns, demands, seed, *, hooks=NO_HOOKS):
    """Open loop: call i arrives at `at_ns[i]` (in order), whatever became of the others; runs until all ended."""
    engine, measured = engine_of(profile, seed, hooks), Measured()
    for i, (job, now_ns) in enumerate(zip(demands.jobs(), np.asarray(at_ns).tolist(), strict=True)):
        measured.sent_ns.append(now_ns)
        engine.submit(job, now_ns)
        if not i % _FOLD_EVERY:
            measured.fold(engine.advance(now_ns))
    measured.fold(engine.advance(_EVER_NS))
    return measured


def run_closed(profile, think_ns, users, demands, seed):
    """Closed loop: each user thinks, calls, waits for the end, and again, until the demands are used up.

    The i-th call follows the think time `think_ns[i]`, counted from the end of that user's call before.
    """
    engine, measured, jobs = engine_of(profile, seed, NO_HOOKS), Measured(), demands.jobs()
    thinks = iter(np.asarray(think_ns).tolist())
    ready = [next(thinks) for _ in range(users)]
    heapify(ready)
    while True:
        due_ns = engine.next_due_ns()
        sends = bool(ready) and (due_ns is None or ready[0] < due_ns)
        now_ns = heappop(ready) if sends else due_ns
        if now_ns is None or (sends and len(measured.sent_ns) == len(jobs)):
            return measured
        if sends:
            engine.submit(jobs[len(measured.sent_ns)], now_ns)
            measured.sent_ns.append(now_ns)
        for ended_ns in measured.fold(engine.advance(now_ns)):
            heappush(ready, ended_ns + next(thinks))


def poisson_ns(rate_per_s, n, seed):
    gaps = np.random.default_rng([seed, 1]).exponential(1e9 / rate_per_s, n)
    return np.rint(np.cumsum(gaps)).astype(np.int64)


def exponential_ms(mean_ms, n, seed):
    return np.random.default_rng([seed, 2]).exponential(mean_ms, n)


def alike(n, prompt_tokens, output_tokens):
    return Demands(np.full(n, prompt_tokens), np.full(n, output_tokens))


def customers(work_ms, slowdown=0.0, **config):
    """Queueing theory's customers, who need as much work each, and the engine that serves them."""
    works = np.asarray(work_ms).tolist()
    return fluid(lambda job: works[job.key], slowdown, **config), alike(len(works), 1, 1)


def sojourns_ms(rho, work_ms, seed, *, servers=1, slots=1, slowdown=0.0):
    """Times in system of Poisson customers at utilisation rho, the first tenth left out: the system began empty."""
    n = len(work_ms)
    config, demands = customers(work_ms, slowdown, slots=slots)
    rate_per_s = rho * servers * 1e3 / float(np.mean(work_ms))
    measured = run(config, poisson_ns(rate_per_s, n, seed), demands, seed)
    return ((measured.ended - measured.sent) / 1e6)[n // 10 :]


def assert_is(expected, values, statistic, relative):
    """The statistic is the expected one within `relative`, or within four standard errors where those are wider."""
    batches = [statistic(batch) for batch in np.array_split(np.asarray(values), BATCHES)]
    error = np.std(batches, ddof=1) / np.sqrt(BATCHES)
    measured = statistic(np.asarray(values))

    assert abs(measured - expected) <= max(relative * abs(expected), 4 * error), (
        measured,
        expected,
        error,
    )


def p99(values):
    return np.quantile(values, 0.99, method="inverted_cdf")


def ttft_ms(measured):
    return (measured.first - measured.sent) / 1e6


def tpot_ms(measured):
    return (measured.last - measured.first) / 1e6 / (measured.tokens - 1)


def gaps_ms(measured, call=0):
    """Chunk gaps of one call."""
    return np.diff(measured.calls[call].chunk_times_ns) / 1e6
