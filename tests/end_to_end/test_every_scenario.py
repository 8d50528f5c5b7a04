"""Every packaged scenario as a user runs it: it has successes, its books balance, and it shows what it is about.

Each has a dry run in tests/project/test_report_texts.py; in real time, `make test` runs those of `SHORT`, one of a kind and
none whose pattern has runs of its own in this folder, and `make verify` all.

Rule: the runs share the two cores, several at a time, so nothing here asserts a latency: marks are counts, causes and
usage fields. A scenario without a mark in this table fails.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from project.words import in_report
from run_folders.dry_runs import NOT_DRY
from run_folders.run_data import RunData, RunRows, assert_conserved
from scenario.variants import variant_file
from starting.command import run_scenarios, variant

from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import packaged

pytestmark = pytest.mark.slow

AT_ONCE = 3
SHORT_S = "2"
TOOK_PLACE = {0, 1, 3, 5}  # the verdict and the SLOs depend on the machine
SHORT = (
    "batch",
    "fan_out_cache_race",
    "custom_stream",
    "nonstreaming",
    "slow_reader",
    "thinking",
    "tools",
)
IN_FULL = {"gateway": ("stages.duration_s=90",)}
# Variants whose part in the worker a dry run does not have; tests/scenario/test_variants.py has all, as dry runs.
VARIANTS = {
    "structured_two_calls": ("structured", "two_calls"),
    "fan_out_bounded": ("fan_out", "bounded"),
    "hedged_fixed": ("hedged", "fixed"),
    "cached_prewarmed": ("cached", "prewarmed"),
    "cached_automatic": ("cached", "automatic"),
    "fan_out_cache_race": ("fan_out", "cache_race"),
}


@dataclass(frozen=True)
class Result(RunRows):
    """What a run left, without its preflight."""

    @cached_property
    def chunks(self) -> pd.DataFrame:
        rows = self.run.table("chunks")
        return rows[rows.request_id >= 0]

    @cached_property
    def ok(self) -> pd.DataFrame:
        return self.attempts[self.attempts.ended == "ok"]

    def causes(self, cause: str) -> pd.DataFrame:
        return self.attempts[self.attempts.cause == cause]

    def sum(self, column: str) -> float:
        return float(self.attempts[column].sum())

    @property
    def legs(self) -> set[int]:
        done = self.requests[self.requests.ended == "ok"]
        return set(done.legs)


def plain(seen: Result) -> bool:
    """One call a request, and nothing besides."""
    return set(seen.attempts.cause) == {"primary"} and seen.legs == {1}


def most_at_once(seen: Result) -> int:
    """Calls of one request in flight at the same time, by when they were dispatched and had ended."""
    most = 0
    for _, calls in seen.attempts.groupby("request_id"):
        starts = calls.assign(at=calls.dispatched_at_ns, step=1)
        ends = calls.assign(at=calls.ended_at_ns, step=-1)
        most = max(
            most,
            int(pd.concat([ends, starts]).sort_values("at", kind="stable").step.cumsum().max()),
        )
    return most


MARKS: dict[str, Callable[[Result], bool]] = {
    # arrivals
    "quickstart": plain,
    "streaming": plain,
    "arrivals": plain,
    "trace": lambda s: plain(s) and s.run.facts["trace"]["emitted"] >= len(s.requests),
    "steps": plain,
    "closed": lambda s: s.run.facts["arrival"] == "closed",
    "sessions": lambda s: bool((s.requests.request_id % 65536 > 0).any()) and s.requests.session_id.notna().all(),
    # streaming and its variants
    "thinking": lambda s: (s.chunks.kind == "thinking").any() and s.sum("thinking_tokens") > 0,
    "tools": lambda s: (s.chunks.kind == "tool_json").any() and s.attempts.tool_ready_at_ns.notna().any(),
    "nonstreaming": lambda s: not s.attempts.streamed.any(),
    "structured": lambda s: s.ok.first_field_at_ns.notna().any(),
    "structured_two_calls": lambda s: s.legs == {2},
    "progressive": lambda s: s.legs == {2} and s.requests.joined_at_ns.notna().any(),
    "fallback": lambda s: len(s.causes("fallback")) > 0,
    "cancel": lambda s: (s.requests.ended == "cancelled").any(),
    "gateway": lambda s: set(zip(s.attempts.traffic, s.attempts.target, strict=True)) == {("direct", "main"), ("gateway", "second")},
    "resubmit": lambda s: len(s.causes("resubmit")) > 0 and (s.requests.ended == "ok").any(),
    "slow_reader": lambda s: s.attempts.reader_paused_ns.max() > 0,
    "custom_stream": lambda s: set(s.attempts.protocol) == {"sse"},
    "batch": lambda s: len(s.causes("poll")) > 0,
    "job": lambda s: len(s.causes("poll")) > len(s.causes("primary")) and s.attempts.stop_reason.eq("succeeded").any(),
    "resume": lambda s: len(s.causes("resume")) > len(s.requests) / 2 and s.requests.ended.eq("ok").all(),
    "mix": lambda s: s.requests.pattern.nunique() > 1,
    # fan-out
    "fan_out": lambda s: s.legs == {5} and s.requests.joined_at_ns.notna().any(),
    "fan_out_bounded": lambda s: s.legs == {5} and 1 < most_at_once(s) <= 3,
    # hedging and retries
    "hedged": lambda s: len(s.causes("hedge")) > 0 and (s.attempts.ended == "cancelled").any(),
    "hedged_fixed": lambda s: len(s.causes("hedge")) > 0,
    "retries": lambda s: len(s.causes("retry")) > 0 and (s.attempts.ended == "rate_limited").any(),
    "retry_storm": lambda s: len(s.causes("retry")) > len(s.causes("primary")) / 2,
    # caching
    "cached": lambda s: s.sum("cache_read_input_tokens") > 0,
    "cached_multi_turn": lambda s: s.sum("cache_read_input_tokens") > 0,
    "cached_prewarmed": lambda s: s.sum("cache_read_input_tokens") > 0 and s.sum("cache_creation_input_tokens") == 0,
    "cached_automatic": lambda s: s.sum("cache_read_input_tokens") > 0,
    "fan_out_cache_race": lambda s: (s.ok.groupby("request_id").cache_creation_input_tokens.apply(lambda w: (w > 0).sum()) > 1).any(),
}  # fmt: skip
PLAIN = [  # an experiment starts runs of its own, and takes minutes
    path.stem for path in packaged("scenarios").glob("*.toml") if load(str(path)).experiment is None
]
NAMES = sorted([*PLAIN, *VARIANTS])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, full_size: bool) -> Iterator[dict[str, Any]]:
    """A command for each group of scenarios, some at a time; a test waits for its own."""
    folder = tmp_path_factory.mktemp("scenarios")
    names = NAMES if full_size else SHORT
    groups = [tuple(names[number::AT_ONCE]) for number in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        begun = [
            (names, pool.submit(_run, names, folder / names[0], full_size)) for names in groups
        ]
        yield {
            name: (future, number) for names, future in begun for number, name in enumerate(names)
        }


def _run(names: Sequence[str], out: Path, full_size: bool) -> list[Any]:
    """What `tailgauge run` says of each scenario, one after the other by the same worker."""
    out.mkdir()
    settings = IN_FULL if full_size else {}
    changed = {name: variant(out, name, *sets) for name, sets in settings.items()}
    for name, (scenario, uncommented) in VARIANTS.items():
        changed[name] = str(variant_file(out, scenario, [uncommented]))
    files, shorter = (
        [changed.get(name, name) for name in names],
        [] if full_size else [f"--duration={SHORT_S}"],
    )
    reports, stderr = run_scenarios(files, *shorter, out=out, timeout_s=900)
    return [(report, stderr) for report in reports]


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_shows_what_it_is_about(runs, name):
    if name not in runs:
        pytest.skip("make verify: in real time; its dry run is in tests/project")
    future, number = runs[name]
    facts, output = future.result()[number]
    assert facts["exit_code"] in TOOK_PLACE, output
    seen = Result(RunData(Path(facts["run_dir"])))

    assert seen.run.facts["scenario"]["name"] == name
    assert_conserved(seen.run)
    assert (seen.requests.ended == "ok").any()
    assert MARKS[name](seen), seen.attempts.describe(include="all").T.to_string()


@pytest.mark.parametrize("name", NOT_DRY)
def test_no_report_uses_a_word_of_the_table(runs, name):
    """The others are read as dry runs, in tests/project/test_report_texts.py."""
    future, number = runs[name]
    facts, _ = future.result()[number]
    folder = Path(facts["run_dir"])

    assert in_report(folder.parents[1] / "reports" / folder.name, json.dumps(facts)) == []
