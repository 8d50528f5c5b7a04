"""The prefix cache: which part of a prompt is read, which is written, and why.

Time is passed in. Call `lookup` when a call is admitted, and `begin` when its response begins: only then, and after
`visibility_delay_s`, can other calls read its entries. Call `abandon` if it never begins; it may always be called.

    marked      entries at the marks only; from each mark 20 positions are searched backwards, itself the first; marks
                on prefixes below the model's minimum do nothing. read + creation + input = the whole prompt
    automatic   every whole block is an entry, the longest known run from the start is read, the last token never is;
                nothing is billed as written

An entry lives for its TTL from the moment it can be read, and where `sliding` from each lookup that reads it. A second
write of a live entry changes nothing. So with Poisson calls of rate l, TTL T, visibility delay w and q = e^-lT:

    hit share = 1 - q (sliding), lT / (1 + lT) (fixed), (1 - q) / (1 + q l w) (sliding, delayed)

Sources: Anthropic's prompt-caching page (2026-08); users of the service report the misses that `route_miss_prob` and the
races model (SDK threads on misses of back-to-back calls, and on parallel calls that each write).
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
EVICTED = "evicted"  # by other entries, for lack of capacity
RACE = "race"  # a call that writes it has not begun to answer
BELOW_MINIMUM = "below_minimum"
LOOKBACK = "lookback"  # it is there, too far before the marks
NO_MARKER = "no_marker"
ROUTE_MISS = "route_miss"  # it is there, but the call came to a machine that does not have it
OFF = "off"

# The last two are those of OpenAI's breakpoints, whose writes cost as much as those of 5m.
TTLS = ("5m", "1h", "30m", "12h")

_MEMORY = 65536  # keys of lost entries that are remembered: a lost entry is not a first use


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
    """The prompt of a call, as positions and marks."""

    positions: tuple[Position, ...]
    total_tokens: int
    breakpoints: tuple[Breakpoint, ...] = ()  # none in a prompt of automatic blocks
    model: str = ""
    searches_all: bool = False  # every block before a mark is searched, beyond the lookback too
    # Keys at the end of the tools, of the system, and of the parameters before the messages.
    sections: tuple[tuple[str, bytes], ...] = ()

    @property
    def marked_positions(self) -> int:
        """Return the number of positions up to the last mark."""
        if not self.breakpoints:
            return 0
        return self.breakpoints[-1].position + 1

    @property
    def marked_tokens(self) -> int:
        """Return the tokens up to the last mark."""
        if not self.breakpoints:
            return 0
        return self.positions[self.breakpoints[-1].position].tokens


class Write(NamedTuple):
    """An entry that a call will write when it begins."""

    key: bytes
    tokens: int  # beyond the entry before it
    ttl_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """The result of the cache for one call; the four counts add up to the prompt."""

    cache_read: int = 0
    creation_5m: int = 0
    creation_1h: int = 0
    input_tokens: int  # the uncached remainder
    reason: str
    replica: int = 0
    read_keys: tuple[bytes, ...] = ()
    writes: tuple[Write, ...] = ()
    number: int = 0

    @property
    def cache_creation(self) -> int:
        """Return the tokens written, with either TTL."""
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
        """Return the result that `lookup` would have, for estimates: no entry is refreshed, no write begins."""
        table = self._table
        if table.mode == "off":
            return Lookup(input_tokens=prompt.total_tokens, reason=OFF)
        machine = replica if table.per_replica else 0
        store = self._store(machine)
        store.drop_expired(now_ns)
        if table.mode == "automatic":
            lookup = self._automatic(prompt, store, self._is_routed_away(call_key), now_ns)
        else:
            lookup = self._marked(prompt, store, self._is_routed_away(call_key), now_ns)
        return replace(lookup, replica=machine)

    def _is_routed_away(self, call_key: str) -> bool:
        """Draw whether a call comes to a machine that does not have the entries, and writes none here."""
        share = self._table.route_miss_prob
        return bool(share) and draws(self._seed, "route", call_key).random() < share

    def lookup(self, prompt: Prompt, now_ns: int, call_key: str = "", replica: int = 0) -> Lookup:
        """Look a prompt up at admission. `call_key` decides whether the call is routed away."""
        lookup = self.peek(prompt, now_ns, call_key, replica)
        store = self._store(lookup.replica)
        store.use(lookup.read_keys, now_ns, sliding=self._table.sliding)
        self._number += 1
        self._open.add(self._number)
        store.pending.update(write.key for write in lookup.writes)
        return replace(lookup, number=self._number)

    def begin(self, lookup: Lookup, now_ns: int) -> None:
        """Store the writes of a call as entries: its response begins."""
        if self.abandon(lookup):
            store = self._store(lookup.replica)
            for write in lookup.writes:
                store.add(write, now_ns, now_ns + self._delay_ns)

    def abandon(self, lookup: Lookup) -> bool:
        """Drop the writes of a call that will not begin any more; return whether it was open."""
        if lookup.number not in self._open:
            return False
        self._open.remove(lookup.number)
        pending = self._store(lookup.replica).pending
        for write in lookup.writes:
            pending[write.key] -= 1
            if not pending[write.key]:
                del pending[write.key]
        return True

    def _marked(self, prompt: Prompt, store: _Store, is_away: bool, now_ns: int) -> Lookup:
        """Return what a prompt with marks reads and would write, and why it reads nothing. Nothing is stored.

        `is_away`: the call came to a machine without the entries, so it reads and writes nothing in this store. It pays
        for its writes all the same.
        """
        positions = prompt.positions
        minimum = self._table.least_tokens(prompt.model)
        marks = [mark for mark in prompt.breakpoints if positions[mark.position].tokens >= minimum]
        if not marks:
            reason = BELOW_MINIMUM if prompt.breakpoints else NO_MARKER
            return Lookup(input_tokens=prompt.total_tokens, reason=reason)
        searched = self._searched_positions(prompt, marks)
        # The first live entry of the search, which begins at the last mark; -1: there is none.
        entry_index = next((i for i in searched if store.has(positions[i].key, now_ns)), -1)
        hit = -1 if is_away else entry_index
        read = 0
        read_keys = []
        if hit >= 0:
            read = positions[hit].tokens
            # Reading an entry uses the marked prefixes of it, too.
            read_keys = [positions[mark.position].key for mark in marks if mark.position < hit]
            read_keys.append(positions[hit].key)
        if read:
            reason = HIT
        elif entry_index >= 0:
            reason = ROUTE_MISS
        else:
            # An entry before the searched positions is there, but too far from the marks.
            earlier = positions[: min(searched)]
            is_far = any(store.has(position.key, now_ns) for position in earlier)
            searched_keys = [positions[i].key for i in searched]
            reason = store.miss_reason(searched_keys, now_ns, LOOKBACK if is_far else COLD)
        new_marks = [mark for mark in marks if mark.position > hit]
        # Each mark behind what was read writes an entry; its tokens are billed by its TTL.
        writes, created_5m, created_1h = self._writes(prompt, new_marks, read)
        return Lookup(
            cache_read=read,
            creation_5m=created_5m,
            creation_1h=created_1h,
            input_tokens=prompt.total_tokens - read - created_5m - created_1h,
            reason=reason,
            read_keys=tuple(read_keys),
            writes=() if is_away else tuple(writes),
        )

    def _writes(
        self, prompt: Prompt, marks: list[Breakpoint], read: int
    ) -> tuple[list[Write], int, int]:
        """Return the entries that the marks write behind the tokens read, and their tokens by price: of 5m and of 1h."""
        writes = []
        created_5m = 0
        created_1h = 0
        start = read  # each entry begins where the one before it ends
        for mark in marks:
            position = prompt.positions[mark.position]
            size = position.tokens - start
            start = position.tokens
            writes.append(Write(position.key, size, self._ttl_ns[mark.ttl]))
            if mark.ttl == "1h":
                created_1h += size
            else:
                created_5m += size
        return writes, created_5m, created_1h

    def _searched_positions(self, prompt: Prompt, marks: list[Breakpoint]) -> list[int]:
        """Return the positions that are searched, from each mark backwards, the last mark first."""
        lookback = self._table.lookback
        if prompt.searches_all:
            lookback = len(prompt.positions)
        searched: list[int] = []
        for mark in reversed(marks):
            searched += range(mark.position, max(-1, mark.position - lookback), -1)
        return searched

    def _automatic(self, prompt: Prompt, store: _Store, is_away: bool, now_ns: int) -> Lookup:
        """Return what a prompt of whole blocks reads and would write, and why it reads nothing. Nothing is stored.

        The longest run of known blocks from the start is read. The last token is always computed, so a block that ends
        the prompt is not read. `is_away`: the call came to a machine without the entries, so it reads and writes nothing
        in this store.
        """
        blocks = [block for block in prompt.positions if block.tokens < prompt.total_tokens]
        known_blocks = 0  # blocks from the start on that are entries
        while known_blocks < len(blocks) and store.has(blocks[known_blocks].key, now_ns):
            known_blocks += 1
        minimum = self._table.least_tokens(prompt.model)
        if known_blocks and blocks[known_blocks - 1].tokens < minimum:
            known_blocks = 0
        hits = 0 if is_away else known_blocks
        read = blocks[hits - 1].tokens if hits else 0
        if hits:
            reason = HIT
        elif not blocks or blocks[-1].tokens < minimum:
            reason = BELOW_MINIMUM
        elif known_blocks:
            reason = ROUTE_MISS
        else:
            reason = store.miss_reason([blocks[0].key], now_ns, COLD)
        ttl_ns = round(self._table.automatic_ttl_s * 1e9)
        # The last block is written too, though it is never read whole.
        writes = []
        start = read
        for block in prompt.positions[hits:]:
            writes.append(Write(block.key, block.tokens - start, ttl_ns))
            start = block.tokens
        # The end of a prompt is used first and its start last, so that for lack of capacity the ends go first.
        read_keys = tuple(block.key for block in reversed(blocks[:hits]))
        return Lookup(
            cache_read=read,
            input_tokens=prompt.total_tokens - read,
            reason=reason,
            read_keys=read_keys,
            writes=() if is_away else tuple(reversed(writes)),
        )

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

    def add(self, write: Write, now_ns: int, visible_at_ns: int) -> None:
        """Add an entry, unless a live one is there; drop old ones where there is no capacity for it."""
        old_entry = self._entries.get(write.key)
        if old_entry is not None:
            if now_ns < old_entry.expires_at_ns:
                return
            self._drop(write.key, EXPIRED)
        self._lost.pop(write.key, None)
        self._entries[write.key] = _Entry(
            tokens=write.tokens,
            ttl_ns=write.ttl_ns,
            visible_at_ns=visible_at_ns,
            expires_at_ns=visible_at_ns + write.ttl_ns,
        )
        self._tokens += write.tokens
        while self._tokens > self._capacity_tokens:
            self._drop(next(iter(self._entries)), EVICTED)

    def miss_reason(self, keys: list[bytes], now_ns: int, default: str) -> str:
        """Return why none of the keys was read; `default` if none was ever there."""
        entries = [self._entries[key] for key in keys if key in self._entries]
        is_pending = any(key in self.pending for key in keys)
        if is_pending or any(now_ns < entry.visible_at_ns for entry in entries):
            return RACE
        if entries:
            return EXPIRED
        return next((self._lost[key] for key in keys if key in self._lost), default)

    def drop_expired(self, now_ns: int) -> None:
        """Drop expired entries, from the least recently used on, up to a live one; `has` ignores the others."""
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
