"""The cache report against dry runs: every mistake is planted and found in each call; costs equal those of the server log."""

import json
import re
from collections import Counter
from fractions import Fraction
from pathlib import Path

import pandas as pd
import pytest
from run_folders.dry_runs import dry_run_folder

from tailgauge.scenario.simulated import BillingTable
from tailgauge.simulator.behaviours import billing
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.cache.calls import calls, settings
from tailgauge_analysis.sections.cache.misses import causes
from tailgauge_analysis.sections.cache.section import (
    CacheUse,
    _by_engine,
    _salted,
    compute,
    section,
)

KEYS = ["request_id", "leg", "attempt"]
TREE = {
    "name": "planted",
    "arrival": {"rate_per_s": 10},
    "target": {"url": "simulated", "protocol": "anthropic"},
    "stages": {"duration_s": 40, "warmup_s": 0},
    "limits": {"in_flight_per_worker": 60_000},
    "simulated": {
        "ttft_ms": 200.0,
        "cache": {
            "mode": "marked",
            "minimum_tokens": 300,
            "ttl_5m_s": 5.0,
            "ttl_1h_s": 1e6,
            "lookback": 2,
        },
    },
}
SYSTEM = {"system_tokens": 500, "breakpoints": ["system"], "ttl": "1h"}
BOTH = {"tools": 2, "tools_tokens": 400, "breakpoints": ["tools", "system"]}
# Traffic table -> pattern, its cache, other keys.
PLANTED = {
    "below": ("cached", {**SYSTEM, "system_tokens": 100}, {}),
    "front": ("cached", {**SYSTEM, "volatile": "front"}, {}),
    "marked": ("cached", {**SYSTEM, **BOTH, "volatile": "marked"}, {}),
    "salted": ("cached", {**SYSTEM, "cold": True}, {}),
    "sparse": ("cached", {**SYSTEM, "prefixes": 10, "ttl": "5m"}, {}),
    "race": ("fan_out", {**SYSTEM, "prefixes": 100_000}, {"fan_out": {"legs": 4}}),
    "far": (
        "cached",
        {**SYSTEM, "breakpoints": ["last"]},
        {"session": {"turns_mean": 4, "think_s": 1.0}},
    ),
    "models": (
        "cached",
        {**SYSTEM, "prefixes": 30},
        {"fallback": {"model": "other", "after_s": 0.1}},
    ),
}
# What each table's calls may be, by the endpoint's own reason.
CAUSE_OF_REASON = {
    "below": {"below_minimum": "below_minimum"},
    "front": {"cold": "unstable"},
    "marked": {"hit": "unstable"},
    "salted": {"cold": "salted"},
    "sparse": {"expired": "expired"},
    "race": {"race": "race"},
    "far": {"lookback": "lookback"},
    "models": {"cold": "parameter"},
}


def tables(planted: dict) -> dict:
    sizes = {"prompt_tokens": 30, "output_tokens": 4}
    return {
        name: {"pattern": pattern, **sizes, "cache": c, **more}
        for name, (pattern, c, more) in planted.items()
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return dry_run_folder({**TREE, "traffic": tables(PLANTED)}, tmp_path_factory.mktemp("planted"))


def log_of(folder: Path) -> pd.DataFrame:
    return pd.concat(map(pd.read_parquet, (folder / "target").glob("*.parquet")))


def judged(folder: Path) -> pd.DataFrame:
    """Every call with what was concluded and what the endpoint logged."""
    frames = load([folder])
    known = settings(frames.run)
    rows = calls(frames, known)
    rows["cause"] = causes(rows, known, _salted(frames.run))
    logged = log_of(folder)[[*KEYS, "cache_reason", "billed_output_tokens"]]
    return rows[rows["known"]].merge(logged, on=KEYS, validate="one_to_one")


@pytest.fixture(scope="module")
def logged(planted) -> pd.DataFrame:
    """The endpoint's log of the calls whose usage arrived, with their traffic."""
    attempts = load([planted]).attempts
    attempts = attempts[attempts["cache_read_input_tokens"].notna()]
    return log_of(planted).merge(attempts[[*KEYS, "traffic"]], on=KEYS, validate="one_to_one")


# What else the endpoint may say of a call; the first call of a text, or of a number, is nobody's mistake.
OTHERS = {"hit": {""}, "cold": {"first"}, "race": {"race"}}


def test_every_planted_miss_is_found_and_nothing_else(planted):
    found = judged(planted)

    for name, rows in found.groupby("traffic"):
        ((of_mistake, cause),) = CAUSE_OF_REASON[str(name)].items()
        seen = Counter(zip(rows["cache_reason"], rows["cause"], strict=True))
        assert (rows["cause"] == cause).sum() >= 5, (name, seen)
        for reason, found_cause in seen:
            allowed = OTHERS.get(reason, set())
            if reason == of_mistake:
                allowed = allowed | {cause}
            assert found_cause in allowed, (name, seen)


def test_what_may_be_first_is_so_once_for_a_text(planted):
    """Where the endpoint says `cold` two causes are possible: it is known from the plan which calls are which."""
    found = judged(planted)
    by = dict(iter(found.groupby("traffic")))
    races = by["race"].groupby("request_id")["cause"].apply(sorted)
    cold = by["models"][by["models"]["cache_reason"] == "cold"]

    assert by["front"]["cause"].tolist() == ["first"] + ["unstable"] * (len(by["front"]) - 1)
    assert (by["marked"]["cause"].iloc[1:] == "unstable").all()
    assert (by["salted"]["cause"] == "salted").all()
    assert (by["sparse"]["cause"] == "first").sum() == by["sparse"]["prefix"].nunique()
    assert all(causes == ["first"] + ["race"] * 3 for causes in races)
    assert all(causes == ["parameter"] for causes in cold.groupby("prefix")["cause"].apply(list))
    assert (by["front"]["first_difference"].dropna() <= 3).all()


def test_misses_that_nothing_explains_are_called_so(tmp_path):
    """A share of the calls meets a machine without the cache: the entry was there, as far as anybody could know."""
    tree = {**TREE, "traffic": tables({"main": ("cached", SYSTEM, {})})}
    away = {**TREE["simulated"]["cache"], "route_miss_prob": 0.2}
    run = dry_run_folder({**tree, "simulated": {**TREE["simulated"], "cache": away}}, tmp_path)
    found = judged(run)
    seen = Counter(zip(found["cache_reason"], found["cause"], strict=True))

    assert seen["route_miss", "unexplained"] > 50
    assert {cause_found for reason, cause_found in seen if reason == "route_miss"} == {
        "unexplained"
    }
    assert {cause_found for reason, cause_found in seen if reason in {"cold", "race"}} <= {
        "first",
        "race",
    }


@pytest.mark.slow
def test_row_29_the_cost_is_that_of_the_server_log_exactly(planted, logged):
    prices = billing.Billing(BillingTable())
    bill = dict.fromkeys(PLANTED, Fraction(0))
    for row in logged.itertuples():
        written = (row.cache_created_tokens, 0)  # for five minutes, for an hour
        if row.traffic != "sparse":
            written = (0, row.cache_created_tokens)
        used = (row.input_tokens, row.cache_read_tokens, *written)
        prompt = billing.PromptTokens(*map(int, used))
        bill[row.traffic] += prices.cost(prompt, int(row.billed_output_tokens))

    costs = {one.traffic: one.cost for one in compute(Run([planted])).cache}
    assert {name: cost.total for name, cost in costs.items()} == bill
    assert all(cost.unpriced == 0 for cost in costs.values())
    # These were closed before their answers.
    assert {name for name, cost in costs.items() if cost.without_usage} == {"models"}
    for cost in costs.values():
        assert cost.saved == cost.input_without_cache - cost.input
    assert costs["salted"].saved < 0 < costs["models"].saved


@pytest.mark.slow
def test_hit_rates_equal_those_of_the_server_log(planted, logged):
    found = {one.traffic: one for one in compute(Run([planted])).cache}

    for name, of in logged.groupby("traffic"):
        one = found[str(name)]
        read = of["cache_read_tokens"].sum()
        cacheable = read + of["cache_created_tokens"].sum()
        assert one.token_hit.value == read / (cacheable + of["input_tokens"].sum())
        assert one.request_hit.value == (of["cache_read_tokens"] > 0).mean()
        assert not cacheable or one.cacheable_hit.value == read / cacheable
    assert found["race"].write_amplification.value == pytest.approx(4)
    assert found["below"].write_amplification.value is None
    expiry = found["sparse"].expiry
    assert expiry.by_gaps == pytest.approx(expiry.observed.value, abs=0.05)


@pytest.fixture(scope="module")
def report(planted, tmp_path_factory):
    return make([planted], tmp_path_factory.mktemp("report"))


# By traffic table the reasons of the endpoint, each with its cause; the first call of a text is nobody's mistake.
CAUSES_OF_REASONS = {
    "below": {"below_minimum": "below_minimum"},
    "front": {"cold": "unstable"},
    "marked": {"hit": "unstable", "race": "race"},
    "salted": {"cold": "salted"},
    "sparse": {"cold": "first", "expired": "expired"},
    "race": {"cold": "first", "race": "race"},
    "far": {"cold": "first", "lookback": "lookback", "race": "race"},
    "models": {"cold": "parameter", "race": "race"},
}


@pytest.mark.slow
def test_report_json_has_every_miss_by_its_cause_and_the_cost_to_the_cent(planted, report):
    """What the endpoint decided, call by call, against the counts of the report."""
    entries = {one["traffic"]: one for one in json.loads(report.json.read_text())["cache"]}
    exact = {one.traffic: one.cost for one in compute(Run([planted])).cache}

    for name, rows in judged(planted).groupby("traffic"):
        seen = Counter(rows["cache_reason"])
        expected = Counter()
        for reason, cause in CAUSES_OF_REASONS[name].items():
            expected[cause] += seen[reason]
        if name in {"front", "marked"}:
            expected["first"] = 1
        if name == "front":
            expected["unstable"] -= 1
        entry = entries.pop(name)
        assert {miss["cause"]: miss["calls"] for miss in entry["misses"]} == +expected, name
        assert entry["cost"]["total"] == float(exact[name].total)
        assert entry["cost"]["saved"] == float(exact[name].saved)
    assert entries == {}


@pytest.mark.slow
def test_the_report_has_the_section(report):
    page, text = report.html.read_text(), report.markdown.read_text()
    entries = {one["traffic"]: one for one in report.data["cache"]}

    assert set(entries) == set(PLANTED)
    assert "race: 0% of input tokens were read from the cache" in page
    assert '<h2 id="cache">Prompt cache</h2>' in page
    assert "## Prompt cache" in text
    assert "| below minimum |" in text
    assert entries["front"]["first_bytes"][0][0] <= 3
    for name, entry in entries.items():
        most = max(entry["misses"], key=lambda miss: miss["calls"])
        total = sum(miss["calls"] for miss in entry["misses"])
        sentence = re.search(rf"\b{name}: [^;]*of input tokens.*?\.(?= |<)", page)[0]
        assert f"; {total:,} misses" in sentence
        cause = most["cause"].replace("_", " ")
        # A single cause stands without its number, which is that of all misses.
        causes = cause if len(entry["misses"]) == 1 else f"{most['calls']:,} {cause}"
        assert f": {causes}" in sentence
        assert (entry["expiry"] is None) == bool(entry["no_expiry"])


@pytest.mark.parametrize(
    ("counted", "shared", "text"),
    [
        (
            {"engine": "vLLM", "cached": 222_464, "prompt": 338_022},
            {},
            "vLLM counts 65.8% of 338,022",
        ),
        ({"engine": "llama.cpp", "cached": 0, "prompt": 900}, SYSTEM, "llama.cpp counts 0% of 900"),
        ({"engine": "vLLM", "cached": 0, "prompt": 900}, {}, None),
        ({"engine": "vLLM", "cached": 0, "prompt": 0}, SYSTEM, None),
        ({}, SYSTEM, None),
    ],
)
def test_where_the_usage_has_no_cached_tokens_the_engines_own_counters_tell(counted, shared, text):
    run = {
        "engine_cache": counted,
        "scenario": {"traffic": {"chat": {"cache": shared} if shared else {}}},
    }
    found = section(CacheUse(cache=[], by_engine=_by_engine(run)))

    assert (found is None) == (text is None)
    if found is not None:
        assert found.title == "Prompt cache"
        assert found.answer.startswith(text)
        assert ("--enable-prompt-tokens-details" in found.answer) == (counted["engine"] == "vLLM")
        assert "own counters" in found.card.detail
