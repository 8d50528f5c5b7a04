"""The prefix cache: which part of a prompt is read, which is written, and why.

Time is passed in. `lookup` when a call is admitted, `begin` when its response begins: only then, and after
`visibility_delay_s`, can others read what it writes. `abandon` if it never begins; it may always be called.

    marked      entries at the marks only; from each mark 20 positions are looked at backwards, itself the first; marks
                on prefixes below the model's minimum do nothing. read + creation + input = the whole prompt
    automatic   every whole block is an entry, the longest known run from the start is read, the last token never is;
                nothing is billed as written

An entry lives for its TTL from the moment it can be read, and where `sliding` from each lookup that reads it. A second
write of a live entry changes nothing. So with Poisson calls of rate l, TTL T, visibility delay w and q = e^-lT:

    hit share = 1 - q (sliding), lT / (1 + lT) (fixed), (1 - q) / (1 + q l w) (sliding, delayed)

Sources: Anthropic's prompt-caching page (2026-08); what `route_miss_prob` and the races model is reported by users of the
service (SDK threads on misses of back-to-back calls, and on parallel calls that each write).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, replace
from typing import NamedTuple

from tailgauge.scenario.simulated import CacheTable
from tailgauge.simulator.behaviours.draws import draws

HIT = "hit"  # something was read
COLD = "cold"  # never seen
EXPIRED = "expired"
EVICTED = "evicted"  # by others, for lack of capacity
RACE = "race"  # a call that writes it has not begun to answer
BELOW_MINIMUM = "below_minimum"
LOOKBACK = "lookback"  # it is there, too far before the marks
NO_MARKER = "no_marker"
ROUTE_MISS = "route_miss"  # it is there, and the call came to a machine that does not know
OFF = "off"

# The last two are of OpenAI's breakpoints, whose writes cost as much as those of 5m.
TTLS = ("5m", "1h", "30m", "12h")

_MEMORY = 65536  # keys of lost entries that are remembered, to tell a loss from a first time


@dataclass(frozen=True, slots=True)
class Position:
    """The prompt up to the end of one block."""

    key: bytes  # equal for two prompts exactly where they share the prefix
    tokens: int  # from the start of the prompt


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """A marked block."""

    position: int  # index into the prompt's positions
    ttl: str  # one of TTLS


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the cache knows of a call."""

    positions: tuple[Position, ...]
    total_tokens: int
    breakpoints: tuple[Breakpoint, ...] = ()  # none in a prompt of automatic blocks
    model: str = ""
    searches_all: bool = False  # every block before a mark is searched, whatever the lookback
    # Keys at the end of the tools, of the system, and of the parameters before the messages.
    sections: tuple[tuple[str, bytes], ...] = ()

    @property
    def marked_positions(self) -> int:
        """Positions up to the last mark."""
        return self.breakpoints[-1].position + 1 if self.breakpoints else 0

    @property
    def marked_tokens(self) -> int:
        """Tokens up to the last mark."""
        return self.positions[self.marked_positions - 1].tokens if self.breakpoints else 0


class Write(NamedTuple):
    """An entry to be."""

    key: bytes
    tokens: int  # beyond the entry before it
    ttl_ns: int


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the cache did for one call; the four counts add up to the prompt."""

    cache_read: int
    creation_5m: int
    creation_1h: int
    input_tokens: int  # the uncached remainder
    reason: str
    replica: int = 0
    read_keys: tuple[bytes, ...] = ()
    writes: tuple[Write, ...] = ()
    number: int = 0

    @property
    def cache_creation(self) -> int:
        """Tokens written, with either TTL."""
        return self.creation_5m + self.creation_1h


@dataclass(slots=True)
class _Entry:
    tokens: int
    ttl_ns: int
    visible_at_ns: int
    expires_at_ns: int


class PrefixCache:
    """The entries of an endpoint."""

    def __init__(self, table: CacheTable, seed: int) -> None:
        self._table = table
        self._seed = seed
        self._stores: dict[int, _Store] = {}
        self._open: set[int] = set()
        self._number = 0
        self._delay_ns = round(table.visibility_delay_s * 1e9)
        lives_s = {
            "5m": table.ttl_5m_s,
            "1h": table.ttl_1h_s,
            "30m": table.ttl_30m_s,
            "12h": table.ttl_12h_s,
        }
        self._ttl_ns = {ttl: round(seconds * 1e9) for ttl, seconds in lives_s.items()}

    def peek(self, prompt: Prompt, now_ns: int, call_key: str = "", replica: int = 0) -> Lookup:
        """What `lookup` would return; nothing is refreshed and nothing begins. For estimates."""
        table = self._table
        if table.mode == "off":
            return Lookup(0, 0, 0, prompt.total_tokens, OFF)
        machine = replica if table.per_replica else 0
        store = self._store(machine)
        store.drop_expired(now_ns)
        share = table.route_miss_prob
        away = bool(share) and draws(self._seed, "route", call_key).random() < share
        if table.mode == "automatic":
            return self._automatic(prompt, store, away, machine, now_ns)
        return self._marked(prompt, store, away, machine, now_ns)

    def lookup(self, prompt: Prompt, now_ns: int, call_key: str = "", replica: int = 0) -> Lookup:
        """Look a prompt up at admission. `call_key` decides whether the call is routed away."""
        found = self.peek(prompt, now_ns, call_key, replica)
        store = self._store(found.replica)
        store.use(found.read_keys, now_ns, sliding=self._table.sliding)
        self._number += 1
        self._open.add(self._number)
        store.pending.update(write.key for write in found.writes)
        return replace(found, number=self._number)

    def begin(self, lookup: Lookup, now_ns: int) -> None:
        """The response begins: what it writes becomes an entry."""
        if self.abandon(lookup):
            store = self._store(lookup.replica)
            for write in lookup.writes:
                store.put(write, now_ns, now_ns + self._delay_ns)

    def abandon(self, lookup: Lookup) -> bool:
        """The call will not begin any more: it writes nothing. Returns whether it was open; else nothing happens."""
        if lookup.number not in self._open:
            return False
        self._open.remove(lookup.number)
        pending = self._store(lookup.replica).pending
        for write in lookup.writes:
            pending[write.key] -= 1
            if not pending[write.key]:
                del pending[write.key]
        return True

    def _marked(
        self, prompt: Prompt, store: _Store, away: bool, machine: int, now_ns: int
    ) -> Lookup:
        positions = prompt.positions
        least = self._table.least_tokens(prompt.model)
        marks = [mark for mark in prompt.breakpoints if positions[mark.position].tokens >= least]
        if not marks:
            reason = BELOW_MINIMUM if prompt.breakpoints else NO_MARKER
            return Lookup(0, 0, 0, prompt.total_tokens, reason, machine)
        ends = [mark.position for mark in reversed(marks)]
        back = len(positions) if prompt.searches_all else self._table.lookback
        looked_at = [p for end in ends for p in range(end, max(-1, end - back), -1)]
        there = next((p for p in looked_at if store.has(positions[p].key, now_ns)), -1)
        hit = -1 if away else there
        done = read = positions[hit].tokens if hit >= 0 else 0
        created = {"5m": 0, "1h": 0}
        writes = []
        for mark in marks:
            position = positions[mark.position]
            if mark.position > hit:
                created["1h" if mark.ttl == "1h" else "5m"] += position.tokens - done
                writes.append(Write(position.key, position.tokens - done, self._ttl_ns[mark.ttl]))
                done = position.tokens
        # The prefixes of what is read are in use too.
        used = [positions[mark.position].key for mark in marks if mark.position < hit]
        used += [positions[hit].key] if hit >= 0 else []
        if read:
            reason = HIT
        elif there >= 0:
            reason = ROUTE_MISS
        else:
            before = range(min(looked_at))
            far = any(store.has(positions[p].key, now_ns) for p in before)
            reason = store.why_not(
                [positions[p].key for p in looked_at], now_ns, LOOKBACK if far else COLD
            )
        rest = prompt.total_tokens - done
        written = () if away else tuple(writes)
        return Lookup(
            read, created["5m"], created["1h"], rest, reason, machine, tuple(used), written
        )

    def _automatic(
        self, prompt: Prompt, store: _Store, away: bool, machine: int, now_ns: int
    ) -> Lookup:
        blocks = [one for one in prompt.positions if one.tokens < prompt.total_tokens]
        there = next(
            (i for i, one in enumerate(blocks) if not store.has(one.key, now_ns)), len(blocks)
        )
        least = self._table.least_tokens(prompt.model)
        if there and blocks[there - 1].tokens < least:
            there = 0
        run = 0 if away else there
        read = blocks[run - 1].tokens if run else 0
        ttl_ns = round(self._table.automatic_ttl_s * 1e9)
        ends = [0, *(one.tokens for one in prompt.positions)]
        writes = [
            Write(one.key, one.tokens - start, ttl_ns)
            for one, start in zip(prompt.positions[run:], ends[run:], strict=False)
        ]
        if run:
            reason = HIT
        elif not blocks or blocks[-1].tokens < least:
            reason = BELOW_MINIMUM
        else:
            reason = ROUTE_MISS if there else store.why_not([blocks[0].key], now_ns, COLD)
        # The end of a prompt is used first and its start last, so that for lack of capacity the ends go first.
        used = tuple(one.key for one in reversed(blocks[:run]))
        written = () if away else tuple(reversed(writes))
        return Lookup(read, 0, 0, prompt.total_tokens - read, reason, machine, used, written)

    def _store(self, replica: int) -> _Store:
        if replica not in self._stores:
            self._stores[replica] = _Store(self._table.capacity_tokens)
        return self._stores[replica]


class _Store:
    """The entries of one machine, the least recently used first."""

    def __init__(self, capacity_tokens: int) -> None:
        self.pending: Counter[bytes] = Counter()  # keys that open calls will write
        self._capacity_tokens = capacity_tokens
        self._tokens = 0
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._lost: OrderedDict[bytes, str] = OrderedDict()

    def has(self, key: bytes, now_ns: int) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.visible_at_ns <= now_ns < entry.expires_at_ns

    def use(self, keys: tuple[bytes, ...], now_ns: int, *, sliding: bool) -> None:
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and self.has(key, now_ns):
                self._entries.move_to_end(key)
                if sliding:
                    entry.expires_at_ns = now_ns + entry.ttl_ns

    def put(self, write: Write, now_ns: int, visible_at_ns: int) -> None:
        known = self._entries.get(write.key)
        if known is not None:
            if now_ns < known.expires_at_ns:
                return
            self._drop(write.key, EXPIRED)
        self._lost.pop(write.key, None)
        _, tokens, ttl_ns = write
        self._entries[write.key] = _Entry(tokens, ttl_ns, visible_at_ns, visible_at_ns + ttl_ns)
        self._tokens += tokens
        while self._tokens > self._capacity_tokens:
            self._drop(next(iter(self._entries)), EVICTED)

    def why_not(self, keys: list[bytes], now_ns: int, otherwise: str) -> str:
        """Why none of the keys was read."""
        known = [(key, self._entries.get(key)) for key in keys]
        if any(
            key in self.pending or (entry and now_ns < entry.visible_at_ns) for key, entry in known
        ):
            return RACE
        if any(entry for _, entry in known):
            return EXPIRED
        return next((self._lost[key] for key in keys if key in self._lost), otherwise)

    def drop_expired(self, now_ns: int) -> None:
        """Drop what is past its end, from the least recently used on; `has` ignores the others."""
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if now_ns < entry.expires_at_ns:
                return
            self._drop(key, EXPIRED)

    def _drop(self, key: bytes, reason: str) -> None:
        self._tokens -= self._entries.pop(key).tokens
        self._lost[key] = reason
        if len(self._lost) > _MEMORY:
            self._lost.popitem(last=False)
