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

CLOCK, SCHEMA, HOSTS, VERSIONS, TARGET, SEED = "clock", "schema", "hosts", "versions", "target", "seed"
SCENARIO = "scenario"
GROUPS = (SCHEMA, HOSTS, VERSIONS, TARGET, SEED)  # what --allow knows beside the scenario's keys
LABELS = ("name", "description", "slo")
TARGETS = ("target", "second_target")
MACHINE = ("host", "machine", "cpu_model", "cpu_count")
ABSENT = "-"
SHOWN = 80  # characters of a value

Facts = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference. `a` and `b`: the values of each side, in order of appearance. `between_variants`: one value throughout
    A, another throughout B; `mixed`: differs within pairs in another pattern.
    """

    group: str
    key: str
    a: tuple[str, ...]
    b: tuple[str, ...]
    between_variants: bool = True
    mixed: bool = False
    allowed: bool

    @property
    def name(self) -> str:
        """What --allow takes."""
        return self.key if self.group == SCENARIO else self.group

    def values(self, sides: tuple[str, str]) -> str:
        """The first values of each side, by its name."""
        texts = []
        for values, side in zip((self.a, self.b), sides, strict=True):
            more = " and more" if len(values) > 3 else ""
            texts.append(f"{' and '.join(values[:3])}{more} in {side}")
        return ", ".join(texts)

    def refusal(self, sides: tuple[str, str]) -> str:
        """Why runs that differ so may not be compared."""
        values = self.values(sides)
        label = self.key if self.group == SCENARIO else f"{self.group}, {self.key}"
        if self.group == CLOCK:
            return "some runs are dry runs, others are real"
        if self.mixed:
            return f"a variant must be the same in all its runs; {label}: {values}"
        return f"{label}: {values}. To allow this difference: --allow {self.name}"


def differences(pairs: Sequence[tuple[Facts, Facts]], allow: Sequence[str]) -> list[Difference]:
    """Return everything in which the runs differ; UsageError for an unknown name in `allow`."""
    keys = list(dict.fromkeys(key for pair in pairs for side in pair for key in side))
    _check_names(allow, [key for group, key in keys if group == SCENARIO])
    found = []
    for group, key in keys:
        a = [facts.get((group, key), ABSENT) for facts, _ in pairs]
        b = [facts.get((group, key), ABSENT) for _, facts in pairs]
        is_within = a != b
        if not is_within and (group == SEED or len({*a, *b}) == 1):
            continue
        is_between = is_within and len(set(a)) == len(set(b)) == 1
        is_mixed = is_within and not is_between and group in {SCENARIO, TARGET}
        difference = Difference(
            group=group,
            key=key,
            a=tuple(dict.fromkeys(a)),
            b=tuple(dict.fromkeys(b)),
            between_variants=is_between,
            mixed=is_mixed,
            allowed=not is_mixed and _is_allowed(group, key, allow),
        )
        found.append(difference)
    return found


def facts_of(run: Json) -> Facts:
    """Return what must be equal, as text, by group and key."""
    hosts = Counter(f"{worker['host']} ({worker['stamps'] or 'no'} stamps)" for worker in run["workers"])
    facts: dict[tuple[str, str], Any] = {
        (CLOCK, "dry_run"): run["dry_run"],
        (SCHEMA, "schema_version"): run["schema_version"],
        (HOSTS, "workers"): ", ".join(f"{n} on {host}" for host, n in sorted(hosts.items())),
    }
    for key in MACHINE:
        facts[HOSTS, f"master.{key}"] = run["master"].get(key)
    for key, value in run["versions"].items():
        facts[VERSIONS, key] = value
    facts[SEED, "seed"] = run["seed"]
    for name in TARGETS:
        for key, value in _flat(run["scenario"].get(name), name):
            facts[TARGET, key] = value
        if not run[name].get("simulated"):  # a simulated endpoint takes any free port
            facts[TARGET, f"{name}.called"] = run[name].get("url")
    scenario = {key: run["scenario"][key] for key in run["scenario"] if key not in {*LABELS, *TARGETS, SEED}}
    for key, value in _flat(scenario, ""):
        facts[SCENARIO, key] = value
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


def _is_allowed(group: str, key: str, allow: Sequence[str]) -> bool:
    if group == SCENARIO:
        return any(key == name or key.startswith(f"{name}.") for name in allow)
    return group in allow


def _check_names(allow: Sequence[str], keys: Sequence[str]) -> None:
    for name in allow:
        if name not in GROUPS and not any(_is_allowed(SCENARIO, key, [name]) for key in keys):
            key = "a key of these runs' scenario, as traffic.chat.hedge"
            raise UsageError(f"--allow {name}: expected {', '.join(GROUPS)}, or {key}")
