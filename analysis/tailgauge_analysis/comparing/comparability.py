"""What runs must share to be compared: schema, hosts, versions, target, seed and scenario.

A difference is refused unless its name is allowed. A name is a group (`hosts`) or a key of the scenario with all keys
below it (`traffic.chat.hedge`). Name, description and objectives of a scenario change no traffic and may differ. The seed
is compared within a pair only: each pair should have a different one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tailgauge.errors import UsageError
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json

SCHEMA, HOSTS, VERSIONS, TARGET, SEED, SCENARIO = "schema", "hosts", "versions", "target", "seed", "scenario"
CLOCK = "clock"
GROUPS = (SCHEMA, HOSTS, VERSIONS, TARGET, SEED)  # what --allow knows beside the scenario's keys
LABELS = ("name", "description", "slo")
TARGETS = ("target", "second_target")
ABSENT = "-"
SHOWN = 80  # characters of a value

Facts = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference. `a` and `b` are the values of each side, in order of appearance."""

    group: str
    key: str
    a: tuple[str, ...]
    b: tuple[str, ...]
    between_variants: bool  # one value throughout A, another throughout B
    mixed: bool  # differs within pairs in another pattern
    allowed: bool

    @property
    def name(self) -> str:
        """What --allow takes."""
        return self.key if self.group == SCENARIO else self.group

    def values(self, a: str, b: str) -> str:
        """The first values of each side, which `a` and `b` name."""
        of_a, of_b = (" and ".join(of[:3]) + " and more" * (len(of) > 3) for of in (self.a, self.b))
        return f"{of_a} in {a}, {of_b} in {b}"


def differences(pairs: Sequence[tuple[Facts, Facts]], allow: Sequence[str]) -> list[Difference]:
    """Everything in which the runs differ; UsageError for an unknown name in `allow`."""
    keys = list(dict.fromkeys(key for pair in pairs for side in pair for key in side))
    _known(allow, [key for group, key in keys if group == SCENARIO])
    found = []
    for group, key in keys:
        a, b = ([pair[side].get((group, key), ABSENT) for pair in pairs] for side in (0, 1))
        within = any(x != y for x, y in zip(a, b, strict=True))
        if within or (group != SEED and len({*a, *b}) > 1):
            between = within and len(set(a)) == len(set(b)) == 1
            mixed = within and not between and group in {SCENARIO, TARGET}
            sides = tuple(dict.fromkeys(a)), tuple(dict.fromkeys(b))
            allowed = _allowed(group, key, allow) and not mixed
            found.append(Difference(group, key, *sides, between, mixed, allowed))
    return found


def facts_of(run: Json) -> Facts:
    """What must be equal, as text, by group and key."""
    scenario = {k: v for k, v in run["scenario"].items() if k not in {*LABELS, *TARGETS, "seed"}}
    hosts = Counter(f"{worker['host']} ({worker['stamps'] or 'no'} stamps)" for worker in run["workers"])
    machine = {key: run["master"].get(key) for key in ("host", "machine", "cpu_model", "cpu_count")}
    facts: dict[tuple[str, str], Any] = {
        (CLOCK, "dry_run"): run["dry_run"],
        (SCHEMA, "schema_version"): run["schema_version"],
        (HOSTS, "workers"): ", ".join(f"{n} on {host}" for host, n in sorted(hosts.items())),
        **{(HOSTS, f"master.{key}"): value for key, value in machine.items()},
        **{(VERSIONS, key): value for key, value in run["versions"].items()},
        (SEED, "seed"): run["seed"],
    }
    for name in TARGETS:
        seen = run[name]
        facts |= {(TARGET, key): value for key, value in _flat(run["scenario"].get(name), name)}
        if not seen.get("simulated"):  # a simulated endpoint takes any free port
            facts[TARGET, f"{name}.called"] = seen.get("url")
    facts |= {(SCENARIO, key): value for key, value in _flat(scenario, "")}
    return {key: _text(value) for key, value in facts.items()}


def _flat(tree: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and (tree or ".body." not in key):  # an empty table in a body is sent
        for name, value in tree.items():
            yield from _flat(value, f"{key}.{name}" if key else str(name))
    elif key:
        yield key, tree


def _text(value: Any) -> str:
    """1 and 1.0 are equal, and so are null and an absent key."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return ABSENT
    text = value if isinstance(value, str) else json.dumps(value)
    shown = plain(text, SHOWN)
    # Else texts that differ would look alike.
    return shown if shown == text else f"{shown} #{sha256(text.encode()).hexdigest()[:8]}"


def _allowed(group: str, key: str, allow: Sequence[str]) -> bool:
    if group == SCENARIO:
        return any(key == name or key.startswith(f"{name}.") for name in allow)
    return group in allow


def _known(allow: Sequence[str], keys: Sequence[str]) -> None:
    for name in allow:
        if name not in GROUPS and not any(_allowed(SCENARIO, key, [name]) for key in keys):
            key = "a key of these runs' scenario, as traffic.chat.hedge"
            raise UsageError(f"--allow {name}: expected {', '.join(GROUPS)}, or {key}")


def refusals(found: Sequence[Difference], a: str = "A", b: str = "B") -> list[str]:
    """Why the runs may not be compared; `a` and `b` name the sides."""
    reasons = []
    for one in found:
        if one.allowed:
            continue
        values, label = one.values(a, b), one.key if one.group == SCENARIO else f"{one.group}, {one.key}"
        if one.group == CLOCK:
            reasons.append("some runs are dry runs, others are real")
        elif one.mixed:
            reasons.append(f"a variant must be the same in all its runs; {label}: {values}")
        else:
            reasons.append(f"{label}: {values}. To allow this difference: --allow {one.name}")
    return reasons


def allowed(found: Sequence[Difference], a: str = "A", b: str = "B") -> list[str]:
    """What differs, though it may; `a` and `b` name the sides."""
    return [f"differs: {one.key}: {one.values(a, b)}" for one in found if one.allowed]
