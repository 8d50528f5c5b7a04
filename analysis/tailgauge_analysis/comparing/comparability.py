"""What runs must share to be compared: schema, hosts, versions, target, seed and scenario.

A difference is refused unless its name is allowed. A name is a group (`hosts`) or a key of the scenario with all keys
below it (`traffic.chat.hedge`). Name, description and objectives of a scenario change no traffic and may differ. The seed
is compared within a pair only: each pair should have a different one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.suggestions import nearest
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json

CLOCK = "clock"
SCHEMA = "schema"
HOSTS = "hosts"
VERSIONS = "versions"
TARGET = "target"
SEED = "seed"
SCENARIO = "scenario"
GROUPS = (SCHEMA, HOSTS, VERSIONS, TARGET, SEED)  # what --allow knows beside the scenario's keys
LABELS = ("name", "description", "slo")
TARGETS = ("target", "second_target")
MASTERS = "the master's"  # host
MACHINE = ("host", "machine", "cpu_model", "cpu_count")
ABSENT = "-"
SHOWN = 80  # characters of a value

Facts = dict[str, dict[str, str]]
"""What must be equal, as text, by group and key."""


TO_ALLOW = ". To allow this difference: "


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

    def text(self, sides: tuple[str, str]) -> str:
        """Return the first values of each side, by its name."""
        a, b = map(_first_values, (self.a, self.b))
        return f"{self.key}: {a} in {sides[0]}, {b} in {sides[1]}"

    def refusal(self, sides: tuple[str, str]) -> str:
        """Return why runs that differ so may not be compared."""
        if self.group == CLOCK:
            return "some runs are dry runs, others are real"
        text = self.text(sides)
        if self.group != SCENARIO:
            text = f"{self.group}, {text}"
        if self.mixed:
            return f"a variant must be the same in all its runs; {text}"
        return f"{text}{TO_ALLOW}--allow {self.option}"

    @property
    def option(self) -> str:
        """The name with which `--allow` allows it."""
        return self.key if self.group == SCENARIO else self.group


def _first_values(values: Sequence[str]) -> str:
    text = " and ".join(values[:3])
    if len(values) > 3:
        text += " and more"
    return text


def refusals(differs: Iterable[Difference], sides: tuple[str, str]) -> list[str]:
    """Return why runs that differ so may not be compared; empty where each difference is allowed."""
    reasons = []
    for difference in differs:
        if not difference.allowed:
            reasons.append(difference.refusal(sides))
    return reasons


def permission(differs: Iterable[Difference]) -> str:
    """Return the options with which runs are compared that differ so; empty where no option allows it."""
    options: dict[str, None] = {}
    for difference in differs:
        if difference.allowed:
            continue
        if difference.mixed or difference.group == CLOCK:
            return ""
        options[f"--allow {difference.option}"] = None
    if not options:
        return ""
    return f"to compare them nevertheless, add {' '.join(options)}"


def differences(
    a_facts: Sequence[Facts], b_facts: Sequence[Facts], allow: Sequence[str]
) -> list[Difference]:
    """Return everything in which the runs A1 A2 ... and B1 B2 ... differ; UsageError for an unknown name in `allow`.

    Facts are those of one run each, in order of the pairs. `allow`: groups, or keys of the scenario, that may differ. A scenario or
    target that varies within a variant, and not from pair to pair alike in both, is never allowed.
    """
    keys: dict[tuple[str, str], None] = {}
    for facts in (*a_facts, *b_facts):
        for group, values in facts.items():
            for key in values:
                keys[group, key] = None
    _check_names(allow, [key for group, key in keys if group == SCENARIO])
    differing = []
    for group, key in keys:
        a = [facts.get(group, {}).get(key, ABSENT) for facts in a_facts]
        b = [facts.get(group, {}).get(key, ABSENT) for facts in b_facts]
        # The seed may differ between pairs, all else must be one value.
        if a == b and (group == SEED or len(set(a)) == 1):
            continue
        is_between = len(set(a)) == len(set(b)) == 1
        is_mixed = a != b and not is_between and group in {SCENARIO, TARGET}
        difference = Difference(
            group=group,
            key=key,
            a=tuple(dict.fromkeys(a)),
            b=tuple(dict.fromkeys(b)),
            between_variants=is_between,
            mixed=is_mixed,
            allowed=not is_mixed and _is_allowed(group, key, allow),
        )
        differing.append(difference)
    return differing


def facts_of(run: Json, model: str = "") -> Facts:
    """Return what must be equal for a comparison, as text by group and key; `model`: which most answers name.

    `run` is a complete run.json. Name, description and objectives of the scenario are left out; the targets are a group of
    their own.
    """
    host = run["master"].get("host")
    workers: Counter[str] = Counter()
    for worker in run["workers"]:
        name = MASTERS if worker["host"] == host else worker["host"]
        workers[f"{name} ({worker['stamps'] or 'no'} stamps)"] += 1
    scenario = dict(run["scenario"])
    targets = {name: scenario.get(name) for name in TARGETS}
    for key in (*LABELS, *TARGETS, SEED):
        scenario.pop(key, None)
    facts: dict[str, dict[str, Any]] = {
        CLOCK: {"dry_run": run["dry_run"]},
        SCHEMA: {"schema_version": run["schema_version"]},
        HOSTS: {f"master.{key}": run["master"].get(key) for key in MACHINE},
        VERSIONS: run["versions"],
        SEED: {"seed": run["seed"]},
        TARGET: dict(_flat(targets, "")),
        SCENARIO: dict(_flat(scenario, "")),
    }
    facts[HOSTS]["workers"] = ", ".join(f"{n} on {name}" for name, n in sorted(workers.items()))
    facts[TARGET]["answering model"] = plain(model, SHOWN)
    for name in TARGETS:
        if not run[name].get("simulated"):  # a simulated endpoint takes any free port
            facts[TARGET][f"{name}.called"] = run[name].get("url")
    texts: Facts = {}
    for group, values in facts.items():
        texts[group] = {key: _text(value) for key, value in values.items()}
    return texts


def _flat(tree: Any, key: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict) and (tree or ".body." not in key):  # an empty table in a body is sent
        prefix = ""
        if key:
            prefix = f"{key}."
        for name, value in tree.items():
            yield from _flat(value, f"{prefix}{name}")
    elif key:
        yield key, tree


def _text(value: Any) -> str:
    """1 and 1.0 are equal, and so are null and an absent key."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return ABSENT
    text = value
    if not isinstance(value, str):
        text = json.dumps(value)
    shortened = plain(text, SHOWN)
    if shortened == text:
        return shortened
    # Texts that differ would look alike without it.
    digest = sha256(text.encode()).hexdigest()[:8]
    return f"{shortened} #{digest}"


def _is_allowed(group: str, key: str, allow: Sequence[str]) -> bool:
    if group == SCENARIO:
        return any(key == name or key.startswith(f"{name}.") for name in allow)
    return group in allow


def _check_names(allow: Sequence[str], keys: Sequence[str]) -> None:
    for name in allow:
        if name not in GROUPS and not any(_is_allowed(SCENARIO, key, [name]) for key in keys):
            key = "a key of these runs' scenario, as traffic.chat.hedge"
            near = nearest(name, [*GROUPS, *keys])
            raise UsageError(f"--allow {name}: expected {', '.join(GROUPS)}, or {key}{near}")
