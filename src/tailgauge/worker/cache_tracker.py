"""A worker's model of the target's prompt cache, from its own calls.

Pure: times are arguments. Call `sent` before a call is sent, `begun` when its response begins (only then others can read
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
    "speed", "thinking", "output_config", "tool_choice", "reasoning_effort", "response_format", "chat_template_kwargs",
)  # fmt: skip
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
    cache_since_use_ns: (
        int | None
    )  # of the longest part that is readable, else of the longest ever seen
    cache_writers: int
    cache_marks: int
    cache_ttl: str | None
    cache_blocks: int | None  # from that part to the mark that finds it
    params_hash: str
    first_difference: int | None

    def fill(self, row: AttemptRow) -> None:
        """Copy them into the call's row."""
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


class CacheBook:
    """`alone`: the run has one worker. `ttl_s`: lifetime of an entry by the mark's TTL.

    By target: `models`, the default ones; `lookbacks`, where they are not `lookback`. `params` by traffic table: what it adds
    to its requests that is a part of the cache's key.
    """

    def __init__(
        self, alone: bool, ttl_s: Mapping[str, float] = PROVIDER_TTL_S, lookback: int = LOOKBACK,
        models: Mapping[str, str] | None = None, *, lookbacks: Mapping[str, int] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._alone = alone
        self._lookback = lookback
        self._lookbacks = lookbacks or {}
        self._models = models or {}
        self._params = params or {}
        self._ttl_ns = {name: round(life * 1e9) for name, life in ttl_s.items()}
        self._entries: OrderedDict[_EntryKey, _Entry] = OrderedDict()
        self._open: dict[CallKey, tuple[list[_Spot], _EntryKey | None]] = {}
        self._writers: Counter[_EntryKey] = Counter()
        self._texts: OrderedDict[tuple[str, int], _Shared] = OrderedDict()
        self._forgot = False

    @classmethod
    def of(cls, scenario: Scenario, *, alone: bool, simulated: bool) -> CacheBook | None:
        """The model of a run's targets; None where nothing is cached."""
        if all(traffic.cache is None for traffic in scenario.traffic.values()):
            return None
        second = scenario.second_target or scenario.target
        models = {MAIN: scenario.target.model, SECOND: second.model}
        # Tables of two targets may reach the same engine: what one wrote, the other may read.
        alone = alone and len({traffic.target for traffic in scenario.traffic.values()}) == 1
        cache = scenario.simulated.cache
        lives_s = PROVIDER_TTL_S
        lookback = LOOKBACK
        if simulated:
            lives_s = {
                "5m": cache.ttl_5m_s, "1h": cache.ttl_1h_s, "30m": cache.ttl_30m_s, "12h": cache.ttl_12h_s,
            }  # fmt: skip
            lookback = cache.lookback
        lookbacks = {
            target: _EVERYWHERE for target in (MAIN, SECOND) if _looks_everywhere(scenario, target)
        }
        params = {
            name: _added_params(scenario, traffic) for name, traffic in scenario.traffic.items()
        }
        return cls(alone, lives_s, lookback, models, lookbacks=lookbacks, params=params)

    def sent(self, call: Call, key: CallKey, now_ns: int, traffic: str = "") -> CacheNote | None:
        """Expectation of a call that is sent now; None if its prompt has no prefix.

        `traffic` names the table that numbers the prefixes.
        """
        prompt = call.prompt
        if prompt.prefix is None or call.kind != MESSAGE:
            return None
        model = call.model or self._models.get(call.target)
        params = _params_hash(call, model, self._params.get(traffic, ""))
        spots = _spots(call, model, params)
        marks = [i for i, spot in enumerate(spots) if spot.ttl is not None]
        written = marks or sorted({_shared_end(prompt), len(spots) - 1} - {-1})
        found = self._readable(
            spots, marks, now_ns, self._lookbacks.get(call.target, self._lookback)
        )
        known = found if found is not None else self._known(spots, written)
        entry = None if known is None else self._entries[spots[known].key]
        writers = max((self._writers[spots[i].key] for i in written), default=0)
        self._writers.update(spots[i].key for i in written)
        self._open[key] = [spots[i] for i in written], None if found is None else spots[found].key
        of = marks[-1] if marks else _shared_end(prompt)
        return CacheNote(
            prefix=prompt.prefix,
            prefix_hash=str(spots[of].key[-1])[:_HEX] if of >= 0 else sha256().hexdigest()[:_HEX],
            cache_expected=self._expected(found is not None, writers, prompt.unique),
            cache_since_use_ns=None if entry is None else now_ns - entry.used_at_ns,
            cache_writers=writers, cache_marks=len(marks), cache_ttl=spots[marks[-1]].ttl if marks else None,
            cache_blocks=None if known is None else min(i for i in written if i >= known) - known,
            params_hash=params[:_HEX], first_difference=self._difference((traffic, prompt.prefix), prompt),
        )  # fmt: skip

    def begun(self, key: CallKey, now_ns: int) -> None:
        """The response begins: entries that it writes or reads are in use. A second call does nothing."""
        if key not in self._open:
            return
        (written, read) = self._open[key]
        entries = self._entries
        self.ended(key, now_ns)
        for entry_key, ttl in written:
            entries[entry_key] = _Entry(now_ns, None if ttl is None else self._ttl_ns[ttl])
            entries.move_to_end(entry_key)
        if read is not None and read in entries:
            entries[read].used_at_ns = now_ns
            entries.move_to_end(read)
        while len(entries) > _ENTRIES:
            entries.popitem(last=False)
            self._forgot = True

    def ended(self, key: CallKey, now_ns: int) -> None:  # noqa: ARG002 - same signature as the other events
        """The call is over; if its response never began, it wrote nothing."""
        written, _ = self._open.pop(key, ((), None))
        for entry_key, _ in written:
            self._writers[entry_key] -= 1
            if not self._writers[entry_key]:
                del self._writers[entry_key]

    def _expected(self, readable: bool, writers: int, unique: bool) -> str:
        # The response of a call that writes may have begun at the target before this call arrives.
        is_cold = not writers and (unique or (self._alone and not self._forgot))
        return WARM if readable else COLD if is_cold else UNKNOWN

    def _readable(
        self, spots: list[_Spot], marks: list[int], now_ns: int, lookback: int
    ) -> int | None:
        """The longest entry that can be read."""
        if not marks:
            return self._known(spots, [len(spots) - 1])
        for mark in reversed(marks):
            for i in range(mark, max(-1, mark - lookback), -1):
                entry = self._entries.get(spots[i].key)
                if entry and (entry.ttl_ns is None or now_ns - entry.used_at_ns < entry.ttl_ns):
                    return i
        return None

    def _known(self, spots: list[_Spot], written: list[int]) -> int | None:
        """The longest entry ever seen."""
        last = written[-1] if written else -1
        return next((i for i in range(last, -1, -1) if spots[i].key in self._entries), None)

    def _difference(self, number: tuple[str, int], prompt: Prompt) -> int | None:
        """First byte in which the shared part differs from the last call with this number."""
        shared: _Shared = (prompt.tools, prompt.system, prompt.messages[: prompt.shared])
        last = self._texts.get(number)
        self._texts[number] = shared
        self._texts.move_to_end(number)
        if len(self._texts) > _TEXTS:
            self._texts.popitem(last=False)
        if last is None or last == shared:
            return None
        return _first_difference(rendered(*last), rendered(*shared))


def rendered(
    tools: tuple[Tool, ...], system: tuple[Part, ...], messages: tuple[Message, ...]
) -> bytes:
    """The canonical text of a prompt or of its beginning; marks are no part of it."""
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
    """Every block's end."""
    prompt = call.prompt
    shared = call.prompt.messages[: call.prompt.shared]
    # A shared prefix is hashed once; a unique one would only fill the memory.
    digest = _digests.__wrapped__ if prompt.unique else _digests
    before, known = digest(prompt.tools, prompt.system, shared)
    hashed = before.copy()
    ends = list(known)
    for raw, ttl in _blocks((), (), prompt.messages[prompt.shared :]):
        hashed.update(raw)
        ends.append((hashed.hexdigest(), ttl))
    if prompt.automatic is not None:
        last, ttl = ends[-1]
        ends[-1] = (last, ttl or prompt.automatic)
    front = len(prompt.tools) + len(prompt.system)
    return [
        _Spot((call.target, model, params if i >= front else None, end), ttl)
        for i, (end, ttl) in enumerate(ends)
    ]


@lru_cache(_DIGESTS)
def _digests(
    tools: tuple[Tool, ...], system: tuple[Part, ...], messages: tuple[Message, ...]
) -> tuple[Any, tuple[tuple[str, str | None], ...]]:
    """The hash state after a prefix, and the digest at each block's end."""
    hashed = sha256()
    ends = []
    for raw, ttl in _blocks(tools, system, messages):
        hashed.update(raw)
        ends.append((hashed.hexdigest(), ttl))
    return hashed, tuple(ends)


def _shared_end(prompt: Prompt) -> int:
    """Index of the shared prefix's last block, -1 without one."""
    parts = sum(len(message.parts) for message in prompt.messages[: prompt.shared])
    return len(prompt.tools) + len(prompt.system) + parts - 1


def _looks_everywhere(scenario: Scenario, target: str) -> bool:
    if target == SECOND and scenario.second_target is None:
        return False
    rules = PROTOCOLS[scenario.target_of(target).protocol].marks
    return rules is not None and rules.lookback is None


def _added_params(scenario: Scenario, traffic: TrafficSettings) -> str:
    """What a traffic table adds to its requests that is a part of the cache's key; empty for nothing."""
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


def _first_difference(one: bytes, other: bytes) -> int:
    """First index at which two different texts differ; the length of the shorter if it begins the longer."""
    low = 0
    high = min(len(one), len(other))
    while low < high:  # the first `low` bytes agree, the first `high + 1` do not
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
