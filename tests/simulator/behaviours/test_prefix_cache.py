"""What a prompt reads, what it writes, and the reason it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge.scenario.simulated import CacheTable
from tailgauge.simulator.behaviours.prefix_cache import (
    BELOW_MINIMUM,
    COLD,
    EVICTED,
    EXPIRED,
    HIT,
    LOOKBACK,
    NO_MARKER,
    OFF,
    RACE,
    ROUTE_MISS,
    Breakpoint,
    Lookup,
    Position,
    PrefixCache,
    Prompt,
)

S = 1_000_000_000
MARKED = CacheTable(mode="marked", minimum_tokens=100)
AUTOMATIC = CacheTable(mode="automatic", minimum_tokens=0)


@pytest.fixture
def cache():
    return PrefixCache(MARKED, 0)


def prompt(
    *blocks: tuple[str, int], marks: dict[int, str] | None = None, model: str = "m", rest: int = 0
) -> Prompt:
    """Blocks as (content, tokens); marks as position -> ttl."""
    positions, content, total = [], model, 0
    for word, size in blocks:
        content, total = f"{content}/{word}", total + size
        positions.append(Position(content.encode(), total))
    points = tuple(Breakpoint(p, ttl) for p, ttl in sorted((marks or {}).items()))
    return Prompt(tuple(positions), total + rest, points)


def call(cache, one, at_s, **more):
    """A call whose response begins at once."""
    found = cache.lookup(one, round(at_s * S), **more)
    cache.begin(found, round(at_s * S))
    return found


def counts(found: Lookup) -> tuple[int, int, int, str]:
    return found.cache_read, found.cache_creation, found.input_tokens, found.reason


SYSTEM = prompt(("system", 900), ("question", 50), marks={0: "5m"})


def test_switched_off_all_is_input():
    cache = PrefixCache(CacheTable(), 0)

    assert [counts(call(cache, SYSTEM, at)) for at in (0, 1)] == [(0, 0, 950, OFF)] * 2


def test_writes_are_split_by_their_ttl(cache):
    one = prompt(
        ("tools", 300), ("system", 200), ("turn", 120), ("tail", 30), marks={0: "1h", 2: "5m"}
    )
    first, again, later = call(cache, one, 0), call(cache, one, 1), call(cache, one, 400)

    assert (first.creation_1h, first.creation_5m, first.input_tokens) == (300, 320, 30)
    assert (again.cache_read, again.cache_creation) == (620, 0)
    assert (later.cache_read, later.creation_5m, later.creation_1h) == (
        300,
        320,
        0,
    )  # the 5 minutes are over


@pytest.mark.parametrize(
    ("gap_s", "reason"),
    [(299.999, HIT), (300, EXPIRED), (301, EXPIRED)],
    ids=["within", "at", "after"],
)
def test_an_entry_lives_for_its_ttl(cache, gap_s, reason):
    call(cache, SYSTEM, 0)

    assert call(cache, SYSTEM, gap_s).reason == reason


def test_the_prefix_of_what_is_read_is_refreshed_too(cache):
    long = prompt(("system", 500), ("turn", 200), marks={0: "5m", 1: "5m"})
    for at in (0, 200, 400):
        call(cache, long, at)

    assert call(cache, prompt(("system", 500), ("x", 9), marks={0: "5m"}), 600).reason == HIT


def test_peek_refreshes_nothing(cache):
    call(cache, SYSTEM, 0)

    assert [cache.peek(SYSTEM, at * S).reason for at in (200, 299, 301)] == [HIT, HIT, EXPIRED]


def test_a_mark_below_the_minimum_takes_nothing_from_a_later_one(cache):
    one = prompt(("tools", 60), ("system", 60), marks={0: "1h", 1: "5m"})

    assert (call(cache, one, 0).creation_1h, call(cache, one, 1).cache_read) == (0, 120)


def test_without_a_mark_nothing_is_cached(cache):
    assert [counts(call(cache, prompt(("a", 500)), at)) for at in (0, 1)] == [
        (0, 0, 500, NO_MARKER)
    ] * 2


@pytest.mark.parametrize(("added", "reason"), [(19, HIT), (20, LOOKBACK)])
def test_twenty_positions_are_looked_at_from_the_mark_backwards(cache, added, reason):
    start = [("start", 500)]
    call(cache, prompt(*start, marks={0: "5m"}), 0)
    tail = [(f"block {i}", 10) for i in range(added)]
    found = call(cache, prompt(*start, *tail, marks={added: "5m"}), 1)

    assert (found.reason, found.cache_read) == (reason, 500 if reason == HIT else 0)


def test_a_mark_in_between_carries_the_lookback_further(cache):
    call(cache, prompt(("start", 500), marks={0: "5m"}), 0)
    tail = [(f"block {i}", 10) for i in range(30)]
    found = call(cache, prompt(("start", 500), *tail, marks={15: "5m", 30: "5m"}), 1)

    assert counts(found) == (500, 300, 0, HIT)


def test_a_write_is_visible_when_its_response_begins(cache):
    first = cache.lookup(SYSTEM, 0)
    assert cache.lookup(SYSTEM, 1).reason == RACE
    cache.begin(first, 5 * S)

    assert cache.lookup(SYSTEM, 5 * S).reason == HIT
    assert (
        cache.peek(SYSTEM, 305 * S - 1).reason == HIT
    )  # lived since it could be read, and was used at 5 s


def test_a_delay_postpones_what_others_see():
    cache = PrefixCache(CacheTable(mode="marked", minimum_tokens=100, visibility_delay_s=2.0), 0)
    call(cache, SYSTEM, 10)

    assert [cache.peek(SYSTEM, at * S).reason for at in (11, 12)] == [RACE, HIT]


def test_a_call_that_never_begins_writes_nothing(cache):
    found = cache.lookup(SYSTEM, 0)
    cache.abandon(found)
    cache.begin(found, 1)

    assert cache.lookup(SYSTEM, 2).reason == COLD


def test_abandoning_a_call_that_has_begun_changes_nothing(cache):
    cache.abandon(call(cache, SYSTEM, 0))

    assert cache.peek(SYSTEM, 1).reason == HIT


def test_the_least_recently_used_goes_first_for_want_of_room():
    cache = PrefixCache(CacheTable(mode="marked", minimum_tokens=100, capacity_tokens=1000), 0)
    a, b, c = (prompt((letter, 400), marks={0: "5m"}) for letter in "abc")
    for one, at in ((a, 0), (b, 1), (a, 2), (c, 3)):
        call(cache, one, at)

    assert [cache.peek(one, 4 * S).reason for one in (a, b, c)] == [HIT, EVICTED, HIT]


def test_replicas_know_their_own_calls_only():
    settings = CacheTable(mode="marked", minimum_tokens=100, per_replica=True)
    alone, shared = PrefixCache(settings, 0), PrefixCache(MARKED, 0)

    assert [call(alone, SYSTEM, at, replica=at % 2).reason for at in range(4)] == [
        COLD,
        COLD,
        HIT,
        HIT,
    ]
    assert [call(shared, SYSTEM, at, replica=at % 2).reason for at in range(4)] == [
        COLD,
        HIT,
        HIT,
        HIT,
    ]


def test_a_share_of_calls_is_routed_away_by_its_key():
    cache = PrefixCache(CacheTable(mode="marked", minimum_tokens=100, route_miss_prob=0.4), 3)
    keys = [f"{i}/0/0" for i in range(1, 2000)]
    found = [call(cache, SYSTEM, i * 0.001, call_key=key) for i, key in enumerate(keys)]
    missed = [one for one in found if one.reason == ROUTE_MISS]

    assert len(missed) / len(found) == pytest.approx(0.4, abs=0.045)
    assert {(one.cache_read, one.cache_creation) for one in missed} == {(0, 900)}
    assert [one.reason for one in found] == [
        cache.peek(SYSTEM, 2 * S, key).reason if one.reason != COLD else COLD
        for one, key in zip(found, keys, strict=True)
    ]


def blocks(content: str, rest: int = 0) -> Prompt:
    """One block of 16 tokens a letter."""
    return prompt(*((letter, 16) for letter in content), rest=rest)


@pytest.mark.parametrize(
    ("second", "found"),
    [
        (blocks("abc", rest=5), (48, 0, 5, HIT)),
        (blocks("abcde"), (48, 0, 32, HIT)),
        (blocks("abxc"), (32, 0, 32, HIT)),
        (blocks("abc"), (32, 0, 16, HIT)),  # the last token is always computed
        (blocks("xbc"), (0, 0, 48, COLD)),
        (blocks("", rest=9), (0, 0, 9, BELOW_MINIMUM)),
    ],
)
def test_automatic_blocks_are_read_as_far_as_they_agree(second, found):
    cache = PrefixCache(AUTOMATIC, 0)
    call(cache, blocks("abc", rest=9), 0)

    assert counts(call(cache, second, 1)) == found


def test_automatic_blocks_have_a_minimum_and_a_race():
    cache = PrefixCache(CacheTable(mode="automatic", minimum_tokens=32), 0)
    first = cache.lookup(blocks("abcd"), 0)
    assert cache.peek(blocks("abcd"), 0).reason == RACE
    cache.begin(first, 1)

    assert cache.peek(blocks("ab", rest=1), 2).cache_read == 32
    assert counts(cache.peek(blocks("ax", rest=99), 2))[0] == 0


def test_the_ends_of_prompts_go_first_for_want_of_room():
    cache = PrefixCache(CacheTable(mode="automatic", minimum_tokens=0, capacity_tokens=64), 0)
    call(cache, blocks("abcd"), 0)
    call(cache, blocks("xy"), 1)

    assert cache.peek(blocks("abcd", rest=1), 2 * S).cache_read == 32


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),  # prompt
            st.integers(1, 24),  # its length in blocks
            st.lists(st.integers(0, 23), max_size=4, unique=True),
            st.integers(0, 200),  # seconds since the call before
            st.booleans(),  # begins
        ),
        max_size=40,
    ),
    st.sampled_from(["marked", "automatic"]),
    st.integers(50, 2000),
)
def test_the_counts_add_up_and_memory_is_bounded(calls, mode, capacity):
    cache = PrefixCache(CacheTable(mode=mode, minimum_tokens=40, capacity_tokens=capacity), 0)
    now = 0
    for which, length, marks, gap, begins in calls:
        now += gap * S
        shape = [(f"{which} {i}", 10) for i in range(length)]
        one = prompt(*shape, marks=dict.fromkeys([m for m in marks if m < length], "5m"), rest=3)
        found = cache.lookup(one, now)
        assert found.cache_read + found.cache_creation + found.input_tokens == one.total_tokens
        assert (found.cache_read > 0) == (found.reason == HIT)
        if begins:
            cache.begin(found, now)
        cache.abandon(found)
        assert cache._stores[0]._tokens <= capacity
        assert cache._stores[0]._tokens == sum(
            entry.tokens for entry in cache._stores[0]._entries.values()
        )
        assert not cache._stores[0].pending
        assert not cache._open
