"""A worker's model of the target's prompt cache, from its own calls.

Pure: times are arguments. `CacheBook.from_scenario` takes what it needs from the scenario. Call `sent` before a call is sent, `begun` when its response begins (only then others can read
what it writes), and `ended` at its end, also if it never began.

    entry     the prompt up to a cache mark; without marks (engines with automatic caching) up to the end of the shared
              prefix and up to the prompt's end
    readable  an entry of an answered call, at a mark or up to `lookback` blocks before one, used within its TTL
    warm      part of the prompt is readable
    cold      nothing is: this is the only worker, and it never sent the prompt or the entry expired; or the first bytes
              are unique to the request
    unknown   otherwise: another worker may have sent it, or a call that writes it is in flight

Entries are scoped by target and model, those of messages also by thinking, tool choice and schema. Memory is bounded: the
65,536 entries used last and the last text of 256 prefixes. After the first eviction an unseen entry is `unknown`.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from tailgauge import vendors
from tailgauge.call import MAIN, MESSAGE, SECOND, Call, Message, Part, Prompt, Tool
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.protocols.additions import merged
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.rows.schema import COLD, UNKNOWN, WARM, AttemptRow
from tailgauge.scenario.model import Scenario

PROVIDER_TTL_S: Mapping[str, float] = {
    mark: float(life_s)
    for vendor in ("anthropic", "openai")
    for mark, life_s in vendors.TABLE["cache"][vendor]["lives_s"].items()
}
LOOKBACK = 20  # blocks from a mark in which a target looks for an entry, the marked one included
_EVERYWHERE = 1_000_000  # blocks, of targets that look at all of them
# Fields of a body that are a part of the cache's key, where a scenario adds them.
_KEY_FIELDS = (
    "speed",
    "thinking",
    "output_config",
    "tool_choice",
    "reasoning_effort",
    "response_format",
    "chat_template_kwargs",
)
_ENTRIES = 65_536
_TEXTS = 256
_DIGESTS = 256
_HEX = 16  # letters of a hash in the rows

CallKey = tuple[int, int, int]  # request_id, leg, attempt
_EntryKey = tuple[str | None, ...]
_Shared = tuple[tuple[Tool, ...], tuple[Part, ...], tuple[Message, ...]]


@dataclass(frozen=True, slots=True)
class CacheNote:
    """Columns about a call's prefix when it is sent."""

    prefix: int
    prefix_hash: str
    cache_expected: str
    # Since the use of the longest part that is readable, else of the longest ever seen.
    cache_since_use_ns: int | None
    cache_writers: int
    cache_marks: int
    cache_ttl: str | None
    cache_blocks: int | None  # from that part to the mark that finds it
    params_hash: str
    first_difference: int | None

    def fill(self, row: AttemptRow) -> None:
        """Copy the columns into the call's row."""
        for field in fields(self):
            setattr(row, field.name, getattr(self, field.name))


class _Spot(NamedTuple):
    """The prompt up to the end of one block."""

    key: _EntryKey
    ttl: str | None


@dataclass(slots=True)
class _Entry:
    used_at_ns: int
    ttl_ns: int | None


@dataclass(slots=True)
class _OpenCall:
    """A call whose response has not begun: the entries that it writes, and the one that it reads."""

    written: list[_Spot]
    read: _EntryKey | None


class CacheBook:
    """The entries that a worker has seen the target write.

    `is_alone`: the run has one worker. `ttl_s`: lifetime of an entry by the mark's TTL. By target: `models`, the default ones;
    `lookbacks`, where they are not `lookback`. `params` by traffic table: what it adds to its requests that is a part of the
    cache's key.
    """

    def __init__(
        self,
        is_alone: bool,
        ttl_s: Mapping[str, float] = PROVIDER_TTL_S,
        lookback: int = LOOKBACK,
        models: Mapping[str, str] | None = None,
        *,
        lookbacks: Mapping[str, int] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> None:
        self._is_alone = is_alone
        self._lookback = lookback
        self._lookbacks = lookbacks or {}
        self._models = models or {}
        self._params = params or {}
        self._ttl_ns = {name: round(seconds * 1e9) for name, seconds in ttl_s.items()}
        self._entries: OrderedDict[_EntryKey, _Entry] = OrderedDict()  # the last used is last
        self._open: dict[CallKey, _OpenCall] = {}
        self._writers: Counter[_EntryKey] = Counter()  # open calls that write an entry
        self._texts: OrderedDict[tuple[str, int], _Shared] = OrderedDict()
        self._has_evicted = False

    @classmethod
    def from_scenario(
        cls, scenario: Scenario, *, is_alone: bool, simulated: bool
    ) -> CacheBook | None:
        """Return the model of a run's targets; None where nothing is cached."""
        tables = scenario.traffic
        if all(traffic.cache is None for traffic in tables.values()):
            return None
        second = scenario.second_target or scenario.target
        # Tables of two targets may reach the same engine: what one wrote, the other may read.
        has_one_target = len({traffic.target for traffic in tables.values()}) == 1
        ttl_s = PROVIDER_TTL_S
        lookback = LOOKBACK
        if simulated:
            cache = scenario.simulated.cache
            lookback = cache.lookback
            ttl_s = {
                "5m": cache.ttl_5m_s,
                "1h": cache.ttl_1h_s,
                "30m": cache.ttl_30m_s,
                "12h": cache.ttl_12h_s,
            }
        targets = [target for target in (MAIN, SECOND) if _looks_everywhere(scenario, target)]
        return cls(
            is_alone and has_one_target,
            ttl_s,
            lookback,
            {MAIN: scenario.target.model, SECOND: second.model},
            lookbacks=dict.fromkeys(targets, _EVERYWHERE),
            params={name: _added_params(scenario, traffic) for name, traffic in tables.items()},
        )

    def sent(self, call: Call, key: CallKey, now_ns: int, traffic: str = "") -> CacheNote | None:
        """Return the expectation of a call that is sent now; None if its prompt has no prefix.

        Positions count the blocks of the prompt from 0; an entry is the prompt up to the end of a block.
        The call is kept as open, until `begun` or `ended`, and its shared text for the comparison with the
        next call. `traffic`: the table that numbers the prefixes.
        """
        prompt = call.prompt
        if prompt.prefix is None or call.kind != MESSAGE:
            return None
        model = call.model or self._models.get(call.target)
        params = _params_hash(call, model, self._params.get(traffic, ""))
        spots = _spots(call, model, params)
        marks = [place for place, spot in enumerate(spots) if spot.ttl is not None]
        shared_end = _shared_end(prompt)
        # Positions at which the target writes an entry. Without marks the engine itself caches the shared prefix (-1: there
        # is none) and the whole prompt.
        written = marks or sorted({shared_end, len(spots) - 1} - {-1})
        lookback = self._lookbacks.get(call.target, self._lookback)
        readable = self._readable(spots, marks, now_ns, lookback)
        # The longest entry that can be read, else the longest that was ever seen: its last use is
        # reported.
        longest = readable
        if longest is None:
            longest = self._longest_seen(spots, written)
        since_use_ns = None
        blocks_to_mark = None
        if longest is not None:
            since_use_ns = now_ns - self._entries[spots[longest].key].used_at_ns
            # The target looks for entries from its marks backwards: so many blocks lie between.
            blocks_to_mark = min(place for place in written if place >= longest) - longest
        read_key = None if readable is None else spots[readable].key
        # How many other open calls write one of these entries.
        writers = self._add_call(key, [spots[place] for place in written], read_key)
        prefix_end = shared_end
        ttl = None
        if marks:
            prefix_end = marks[-1]
            ttl = spots[prefix_end].ttl
        # Without a prefix the hash is that of no bytes.
        prefix_hash = sha256().hexdigest()
        if prefix_end >= 0:
            prefix_hash = str(spots[prefix_end].key[-1])
        return CacheNote(
            prefix=prompt.prefix,
            prefix_hash=prefix_hash[:_HEX],
            cache_expected=self._expected(readable is not None, writers, prompt.unique),
            cache_since_use_ns=since_use_ns,
            cache_writers=writers,
            cache_marks=len(marks),
            cache_ttl=ttl,
            cache_blocks=blocks_to_mark,
            params_hash=params[:_HEX],
            first_difference=self._difference((traffic, prompt.prefix), prompt),
        )

    def _add_call(self, key: CallKey, written: list[_Spot], read: _EntryKey | None) -> int:
        """Keep an open call; returns how many others write one of its entries, at most."""
        writers = max((self._writers[spot.key] for spot in written), default=0)
        self._writers.update(spot.key for spot in written)
        self._open[key] = _OpenCall(written, read)
        return writers

    def begun(self, key: CallKey, now_ns: int) -> None:
        """Note that the response begins: others can read what the call writes, and the entry that it reads was used.

        The call is no longer kept as open, so that a second call of this does nothing. Beyond the bound the
        entries that were not used for longest are dropped; from then on an unseen entry is `unknown`.
        """
        call = self._open.get(key)
        if call is None:
            return
        entries = self._entries
        self.ended(key, now_ns)
        for spot in call.written:
            ttl_ns = None if spot.ttl is None else self._ttl_ns[spot.ttl]
            entries[spot.key] = _Entry(now_ns, ttl_ns)
            entries.move_to_end(spot.key)
        if call.read is not None and call.read in entries:
            entries[call.read].used_at_ns = now_ns
            entries.move_to_end(call.read)
        while len(entries) > _ENTRIES:
            entries.popitem(last=False)
            self._has_evicted = True

    def ended(self, key: CallKey, now_ns: int) -> None:  # noqa: ARG002 - same signature as the other events
        """Note that the call is over; if its response never began, it wrote nothing."""
        call = self._open.pop(key, None)
        if call is None:
            return
        for spot in call.written:
            self._writers[spot.key] -= 1
            if not self._writers[spot.key]:
                del self._writers[spot.key]

    def _expected(self, readable: bool, writers: int, unique: bool) -> str:
        if readable:
            return WARM
        # The response of a call that writes may have begun at the target before this call arrives.
        if writers:
            return UNKNOWN
        is_cold = unique or (self._is_alone and not self._has_evicted)
        return COLD if is_cold else UNKNOWN

    def _readable(
        self, spots: list[_Spot], marks: list[int], now_ns: int, lookback: int
    ) -> int | None:
        """Return the place of the longest entry that can be read."""
        if not marks:
            return self._longest_seen(spots, [len(spots) - 1])
        for mark in reversed(marks):
            for place in range(mark, max(-1, mark - lookback), -1):
                entry = self._entries.get(spots[place].key)
                if entry is None:
                    continue
                if entry.ttl_ns is None or now_ns - entry.used_at_ns < entry.ttl_ns:
                    return place
        return None

    def _longest_seen(self, spots: list[_Spot], written: list[int]) -> int | None:
        """Return the place of the longest entry ever seen."""
        if not written:
            return None
        places = range(written[-1], -1, -1)
        return next((place for place in places if spots[place].key in self._entries), None)

    def _difference(self, number: tuple[str, int], prompt: Prompt) -> int | None:
        """Return the first byte in which the shared part differs from that of the call before with this number."""
        shared: _Shared = (prompt.tools, prompt.system, prompt.messages[: prompt.shared])
        previous = self._texts.get(number)
        self._texts[number] = shared
        self._texts.move_to_end(number)
        if len(self._texts) > _TEXTS:
            self._texts.popitem(last=False)
        if previous is None or previous == shared:
            return None
        return _first_difference(rendered(*previous), rendered(*shared))


def rendered(
    tools: tuple[Tool, ...], system: tuple[Part, ...], messages: tuple[Message, ...]
) -> bytes:
    """Return the canonical text of a prompt or of its beginning; marks are no part of it."""
    return b"".join(raw for raw, _ in _blocks(tools, system, messages))


def _blocks(
    tools: tuple[Tool, ...], system: tuple[Part, ...], messages: tuple[Message, ...]
) -> Iterator[tuple[bytes, str | None]]:
    for tool in tools:
        yield _block(tool.name, tool.given or tool.description, tool.schema, "tool"), tool.ttl
    for part in system:
        yield _block(part.block or part.text, "system"), part.ttl
    for message in messages:
        for part in message.parts:
            yield _block(part.block or part.text, message.role), part.ttl


def _block(*texts: str) -> bytes:
    return ("\x1f".join(texts) + "\x1e").encode("utf-8", "surrogatepass")


def _spots(call: Call, model: str | None, params: str) -> list[_Spot]:
    """Return, for the end of every block of a prompt, the key of the entry that ends there and the TTL of its mark.

    The TTL is None without a cache mark. `params`: hash of the parameters of the call on which entries of
    messages depend.
    """
    prompt = call.prompt
    shared = prompt.messages[: prompt.shared]
    # The hash of a shared prefix is remembered; a unique prefix would only fill the memory, and is hashed without it.
    digest = _digests.__wrapped__ if prompt.unique else _digests
    shared_hash, shared_ends = digest(prompt.tools, prompt.system, shared)
    hashed = shared_hash.copy()
    ends = list(shared_ends)
    for raw, ttl in _blocks((), (), prompt.messages[prompt.shared :]):
        hashed.update(raw)
        ends.append((hashed.hexdigest(), ttl))
    # The target puts a mark of this TTL at the end by itself.
    if prompt.automatic is not None:
        end, ttl = ends[-1]
        ends[-1] = (end, ttl or prompt.automatic)
    # Entries of tools and of the system prompt serve calls with other parameters too.
    first_message = len(prompt.tools) + len(prompt.system)
    spots = []
    for place, (end, ttl) in enumerate(ends):
        scope = params if place >= first_message else None
        spots.append(_Spot((call.target, model, scope, end), ttl))
    return spots


@lru_cache(_DIGESTS)
def _digests(
    tools: tuple[Tool, ...], system: tuple[Part, ...], messages: tuple[Message, ...]
) -> tuple[Any, tuple[tuple[str, str | None], ...]]:
    """Return the hash state after a prefix, and digest and TTL at each block's end."""
    hashed = sha256()
    ends = []
    for raw, ttl in _blocks(tools, system, messages):
        hashed.update(raw)
        ends.append((hashed.hexdigest(), ttl))
    return hashed, tuple(ends)


def _shared_end(prompt: Prompt) -> int:
    """Return the index of the shared prefix's last block, -1 without one."""
    parts = sum(len(message.parts) for message in prompt.messages[: prompt.shared])
    return len(prompt.tools) + len(prompt.system) + parts - 1


def _looks_everywhere(scenario: Scenario, target: str) -> bool:
    if target == SECOND and scenario.second_target is None:
        return False
    rules = PROTOCOLS[scenario.target_of(target).protocol].marks
    return rules is not None and rules.lookback is None


def _added_params(scenario: Scenario, traffic: TrafficSettings) -> str:
    """Return what a traffic table adds to its requests that is a part of the cache's key; empty for nothing."""
    body = merged(scenario.target_of(traffic.target).body, traffic.body)
    added = {name: body[name] for name in _KEY_FIELDS if name in body}
    return json.dumps(added, sort_keys=True) if added else ""


def _params_hash(call: Call, model: str | None, added: str = "") -> str:
    chosen: tuple[Any, ...] = (
        model,
        call.thinking,
        call.thinking_tokens,
        call.use_tool,
        call.schema,
    )
    if added:
        chosen = (*chosen, added)
    return sha256(repr(chosen).encode("utf-8", "surrogatepass")).hexdigest()


def _first_difference(left: bytes, right: bytes) -> int:
    """Return the first index at which two different texts differ; the length of the shorter if it begins the longer."""
    low = 0
    high = min(len(left), len(right))
    while low < high:  # the first `low` bytes agree, the first `high + 1` do not
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
