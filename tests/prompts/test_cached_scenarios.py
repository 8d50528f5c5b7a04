"""The packaged cache scenarios, whole runs without a socket: what each is there to show is what the cache does.

Rule: arrivals, prompts, request bodies and the cache are the real ones; an answer begins after 0.3 s and takes 0.2 s.
Prompts are sized by the simulated endpoint's own measure of 0.58 words a token, as a run learns it.
"""

from __future__ import annotations

import heapq
import tomllib
from collections import Counter
from itertools import count
from math import exp
from typing import Any

import pytest
from scenario.variants import text_of, uncomment

from tailgauge.call import Call, Prompt
from tailgauge.prompts import Maker
from tailgauge.protocols import anthropic, openai
from tailgauge.rows.schema import COLD, UNKNOWN, WARM
from tailgauge.scenario.model import Scenario, load, parse
from tailgauge.schedule.schedule import Planned, plan
from tailgauge.simulator.behaviours.prefix_cache import HIT, RACE, Lookup, PrefixCache
from tailgauge.simulator.protocols.prefix import block_prompt, marked_prompt
from tailgauge.worker.cache_tracker import CacheBook

S = 1_000_000_000
BEGINS_NS, ENDS_NS = round(0.3 * S), round(0.5 * S)
SHORT_S = 2.0
WORDS_PER_TOKEN = 0.58

Result = list[tuple[Lookup, str]]  # what the cache did, and what the worker had expected


class Replayed:
    """A scenario from its first arrival to its last answer, on a clock that costs nothing."""

    def __init__(self, scenario: Scenario, duration_s: float) -> None:
        ((name, self.traffic),) = scenario.traffic.items()
        self.anthropic = scenario.target.protocol == "anthropic"
        simulated = scenario.simulated.cache
        self.cache = PrefixCache(simulated, scenario.seed)
        self.block_tokens = simulated.block_tokens
        self.book = CacheBook(True, {"5m": simulated.ttl_5m_s, "1h": simulated.ttl_1h_s})
        marks = scenario.marks(self.traffic)
        self.maker = Maker(scenario.seed, self.traffic, name, WORDS_PER_TOKEN, marks=marks)
        self.seen: Result = []
        self.events: list[tuple[int, int, Any]] = []
        self.order = count()
        if self.traffic.cache and self.traffic.cache.pre_warm:
            for prompt in self.maker.pre_warm():
                self.cache.begin(self.look_up(prompt, 0), 0)
        schedule = plan(scenario.arrival, scenario.traffic, duration_s, scenario.seed)
        until = round(duration_s * S)
        for planned in schedule.slice(0, until):
            self.at(planned.at_ns, lambda now, p=planned: self.send(p, 0, (), now))
        while self.events:
            now, _, what = heapq.heappop(self.events)
            if now < until:
                what(now)

    def at(self, when: int, what: Any) -> None:
        heapq.heappush(self.events, (when, next(self.order), what))

    def send(
        self, planned: Planned, turn: int, history: tuple[tuple[str, str], ...], now: int
    ) -> None:
        prompts = self.maker.make(planned, turn, history)
        for leg, prompt in enumerate(prompts):
            key = (planned.request_id + turn, leg, 0)
            note = self.book.sent(Call(prompt, 10), key, now)
            found = self.look_up(prompt, now)
            self.seen.append((found, note.cache_expected if note else ""))
            self.at(
                now + BEGINS_NS,
                lambda at, f=found, k=key: (self.cache.begin(f, at), self.book.begun(k, at)),
            )
        if turn + 1 < planned.turns:
            conversation = (*history, (prompts[0].messages[-1].parts[0].text, "so it is"))
            pause = ENDS_NS + round(self.traffic.session.think_s * S)
            self.at(now + pause, lambda at: self.send(planned, turn + 1, conversation, at))

    def look_up(self, prompt: Prompt, now: int) -> Lookup:
        call = Call(prompt, 10)
        if self.anthropic:
            return self.cache.lookup(marked_prompt(anthropic.message_body(call, prompt, "m")), now)
        body = {"model": "m", "messages": openai._messages(prompt)}
        return self.cache.lookup(block_prompt(body, self.block_tokens), now)


def replayed(name: str, *variants: str, duration_s: float | None = None) -> Result:
    """A packaged scenario with the lines of some variants in use."""
    text = uncomment(text_of(name), variants)
    scenario = parse({"name": name, **tomllib.loads(text)}, name)
    return Replayed(scenario, duration_s or scenario.stages.duration_s).seen


def read(seen: Result) -> list[bool]:
    return [found.cache_read > 0 for found, _ in seen]


def written(seen: Result) -> list[bool]:
    return [found.cache_creation > 0 for found, _ in seen]


SHOWS: dict[tuple[str, ...], Any] = {
    ("cached",): lambda s: any(read(s)) and any(written(s)),
    ("cached", "one_hour"): lambda s: all(f.creation_1h == f.cache_creation for f, _ in s) and any(written(s)),
    ("cached_multi_turn",): lambda s: any(found.cache_read > 0 and found.cache_creation > 0 for found, _ in s),
    ("cached", "prewarmed"): lambda s: all(read(s)) and not any(written(s)),
    ("cached", "cold"): lambda s: not any(read(s)) and all(written(s)),
    ("cached", "automatic"): lambda s: any(read(s)) and not any(written(s)),
    ("fan_out", "cache_race"): lambda s: sum(read(s)) < 0.02 * len(s),
    ("cached", "volatile_front"): lambda s: not any(read(s)) and all(written(s)),
    ("cached", "volatile_marked"): lambda s: any(read(s)) and all(written(s)),
    ("cached", "sparse"): lambda s: any(written(s)),
    ("cached", "below_minimum"): lambda s: not any(read(s)) and not any(written(s)),
}  # fmt: skip
KNOWN_BY_ONE_WORKER = [
    names for names in SHOWS if names not in {("cached", "prewarmed"), ("cached", "below_minimum")}
]


@pytest.mark.parametrize("names", SHOWS, ids=" ".join)
@pytest.mark.parametrize("duration_s", [SHORT_S, None], ids=["two seconds", "whole"])
def test_a_scenario_shows_what_it_is_there_for(
    names: tuple[str, ...], duration_s: float | None
) -> None:
    seen = replayed(*names, duration_s=duration_s)

    assert len(seen) >= 5
    assert SHOWS[names](seen)


def test_sparse_traffic_reads_as_rarely_as_the_formula_says_and_marks_of_an_hour_keep_it() -> None:
    """So long a run that the first calls of the prefixes hardly count."""
    sparse = replayed("cached", "sparse", duration_s=300.0)
    kept = replayed("cached", "sparse", "one_hour", duration_s=300.0)

    rate_per_s = 8 / 100
    life_s = 5
    assert sum(read(sparse)) / len(sparse) == pytest.approx(1 - exp(-rate_per_s * life_s), abs=0.03)
    assert sum(read(kept)) / len(kept) > 0.9


@pytest.mark.parametrize("names", KNOWN_BY_ONE_WORKER, ids=" ".join)
def test_a_worker_that_is_alone_knows_of_every_call_whether_it_reads(
    names: tuple[str, ...],
) -> None:
    """But for an entry that expires within 0.3 s: few of all. `unknown` is expected of races only."""
    seen = replayed(*names, duration_s=20.0)
    agree = Counter((expected == WARM) == (found.reason == HIT) for found, expected in seen)

    assert agree[True] / len(seen) > 0.97
    assert {found.reason for found, expected in seen if expected == UNKNOWN} <= {RACE}


def test_a_race_needs_legs_at_once() -> None:
    seen = replayed("fan_out", "cache_race", duration_s=10.0)
    requests = len(seen) // 5

    assert requests > 50
    assert Counter(found.reason for found, _ in seen) == {"cold": requests, "race": 4 * requests}
    assert Counter(expected for _, expected in seen) == {COLD: requests, UNKNOWN: 4 * requests}


def test_sessions_grow() -> None:
    scenario = load("sessions")
    run = Replayed(scenario, 10.0)

    totals = [found.input_tokens for found, _ in run.seen]
    assert max(totals) > 2 * min(totals)
    assert len(run.seen) > 60
