"""The packaged cache scenarios, whole runs without a socket: what each is there to show is what the cache does.

Rule: arrivals, prompts, request bodies and the cache are the real ones; an answer begins after 0.3 s and takes 0.2 s.
Prompts are sized by the simulated endpoint's own measure of 0.58 words a token, as a run learns it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count
from math import exp
from typing import Any

import pytest

from tailgauge.call import Call, Prompt
from tailgauge.prompts import Maker
from tailgauge.protocols import anthropic, openai
from tailgauge.rows.schema import COLD, UNKNOWN, WARM
from tailgauge.scenario.model import Scenario, load
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

    def send(self, planned: Planned, turn: int, history: tuple[tuple[str, str], ...], now: int) -> None:
        prompts = self.maker.make(planned, turn, history)
        for leg, prompt in enumerate(prompts):
            key = (planned.request_id + turn, leg, 0)
            note = self.book.sent(Call(prompt, 10), key, now)
            found = self.look_up(prompt, now)
            self.seen.append((found, note.cache_expected if note else ""))
            self.at(
                now + BEGINS_NS, lambda at, f=found, k=key: (self.cache.begin(f, at), self.book.begun(k, at))
            )
        if turn + 1 < planned.turns:
            conversation = (*history, (prompts[0].messages[-1].parts[0].text, "so it is"))
            pause = ENDS_NS + round(self.traffic.session.think_s * S)
            self.at(now + pause, lambda at: self.send(planned, turn + 1, conversation, at))

    def look_up(self, prompt: Prompt, now: int) -> Lookup:
        call = Call(prompt, 10)
        if self.anthropic:
            return self.cache.lookup(marked_prompt(anthropic.body(call, prompt, "m")), now)
        body = {"model": "m", "messages": openai._messages(prompt)}
        return self.cache.lookup(block_prompt(body, self.block_tokens), now)


def replayed(name: str, duration_s: float | None = None) -> Result:
    scenario = load(name)
    return Replayed(scenario, duration_s or scenario.stages.duration_s).seen


def read(seen: Result) -> list[bool]:
    return [found.cache_read > 0 for found, _ in seen]


def written(seen: Result) -> list[bool]:
    return [found.cache_creation > 0 for found, _ in seen]


SHOWS: dict[str, Any] = {
    "cached": lambda s: any(read(s)) and any(written(s)),
    "cached_1h": lambda s: all(f.creation_1h == f.cache_creation for f, _ in s) and any(written(s)),
    "cached_multi_turn": lambda s: any(found.cache_read > 0 and found.cache_creation > 0 for found, _ in s),
    "cached_prewarmed": lambda s: all(read(s)) and not any(written(s)),
    "cached_cold": lambda s: not any(read(s)) and all(written(s)),
    "cached_automatic": lambda s: any(read(s)) and not any(written(s)),
    "cache_race": lambda s: not any(read(s)) and all(written(s)),
    "cache_volatile_front": lambda s: not any(read(s)) and all(written(s)),
    "cache_volatile_marked": lambda s: any(read(s)) and all(written(s)),
    "cache_sparse": lambda s: any(written(s)),
    "cache_below_minimum": lambda s: not any(read(s)) and not any(written(s)),
}


@pytest.mark.parametrize("name", SHOWS)
@pytest.mark.parametrize("whole", [False, True], ids=["two seconds", "whole"])
def test_a_scenario_shows_what_it_is_there_for(name: str, whole: bool) -> None:
    seen = replayed(name, None if whole else SHORT_S)

    assert len(seen) >= 5
    assert SHOWS[name](seen)


def test_sparse_traffic_reads_as_rarely_as_the_formula_says_and_marks_of_an_hour_keep_it() -> None:
    """The first call of each prefix is no fair sample of either."""
    sparse, kept = replayed("cache_sparse"), replayed("cached_1h")
    again = [
        [hit for hit, (found, _) in zip(read(s), s, strict=True) if found.reason != COLD]
        for s in (sparse, kept)
    ]

    life = 5 / 20
    assert sum(again[0]) / len(again[0]) == pytest.approx(1 - exp(-life), abs=0.2)
    assert sum(read(sparse)) / len(sparse) < 0.35
    assert sum(again[1]) / len(again[1]) > 0.9


@pytest.mark.parametrize(
    "name", [name for name in SHOWS if name not in {"cached_prewarmed", "cache_below_minimum"}]
)
def test_a_worker_that_is_alone_knows_of_every_call_whether_it_reads(name: str) -> None:
    """But for an entry that expires within 0.3 s: few of all. `unknown` is expected of races only."""
    seen = replayed(name, 20.0 if name != "cache_race" else SHORT_S)
    agree = Counter((expected == WARM) == (found.reason == HIT) for found, expected in seen)

    assert agree[True] / len(seen) > 0.97
    assert {found.reason for found, expected in seen if expected == UNKNOWN} <= {RACE}


def test_a_race_needs_legs_at_once() -> None:
    seen = replayed("cache_race", SHORT_S)

    assert len(seen) == 8 * 4
    assert Counter(found.reason for found, _ in seen) == {"cold": 4, "race": 7 * 4}
    assert Counter(expected for _, expected in seen) == {COLD: 4, UNKNOWN: 7 * 4}


def test_sessions_grow() -> None:
    scenario = load("sessions")
    run = Replayed(scenario, 10.0)

    totals = [found.input_tokens for found, _ in run.seen]
    assert max(totals) > 2 * min(totals)
    assert len(run.seen) > 60
