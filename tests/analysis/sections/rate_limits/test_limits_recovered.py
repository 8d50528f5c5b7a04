"""Dry runs: what the endpoint allows, and which calls it refused, is recovered from what its client saw."""

import json
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from run_folders.dry_runs import dry_run_frames, dry_run_report, limited
from run_folders.planted_frames import run_of

from tailgauge.scenario.simulated import HeaderFamily
from tailgauge_analysis.sections.rate_limits.section import compute, section, sentence
from tailgauge_analysis.text.quantile import plain_values

OPENAI = {"url": "simulated", "protocol": "openai"}
SCENARIOS = Path(__file__).parents[4] / "scenarios"
GROWING = {"rate_per_s": 12.0, "shape": {"kind": "ramp", "factor": 8}}
RAMP = {"ramp_growth": 1.3, "ramp_window_s": 5.0, "ramp_floor": 10}

# Limits, changes of the scenario, the limit that refuses, its rate per second and its burst.
LIMITS = {
    "requests": ({"rpm": 300, "burst": 3}, {}, "requests", 5, 3),
    "requests, OpenAI": ({"rpm": 300, "burst": 3}, {"target": OPENAI}, "requests", 5, 3),
    "input tokens": ({"itpm": 30_000, "itpm_burst": 1000}, {}, "input_tokens", 500, 1000),
    "input tokens, OpenAI": ({"itpm": 30_000, "itpm_burst": 1000}, {"target": OPENAI}, "input_tokens", 500, 1000),
    "output tokens": ({"otpm": 1200, "otpm_burst": 40}, {}, "output_tokens", 20, 40),
    "the tighter of two": ({"rpm": 300, "burst": 10, "itpm": 36_000, "itpm_burst": 2000}, {}, "requests", 5, 10),
}  # fmt: skip


def agreed(run, found):
    """429s by kind as the endpoint counts them, and as the report does, warm-up included."""
    values = json.loads(json.dumps(plain_values(found), allow_nan=False))
    by_kind = {kind: sum(counts) for kind, counts in values["bins"]["by_kind"].items()}
    assert by_kind == run.server_log["limit_kind"].value_counts().to_dict()
    return values


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_the_limit_its_rate_and_its_burst_are_recovered(name):
    limits, changes, kind, rate, burst = LIMITS[name]
    run = dry_run_frames(limited(limits, **changes))
    found = compute(run_of(run.frames))
    values = agreed(run, found)
    bucket = next(one for one in values["buckets"] if one["kind"] == values["binding"]["kind"])

    assert values["shares"]["refused"]["value"] == (run.server_log["status"] == 429).mean()
    assert values["binding"]["kind"] == bucket["kind"] == kind
    assert (bucket["rate"]["value"], bucket["rate"]["how"]) == (rate, "headers")
    assert bucket["burst"]["value"] == burst
    assert bucket["burst"]["low"] - 1e-6 <= burst <= bucket["burst"]["high"] + 1e-6


@pytest.mark.slow
def test_every_family_of_headers_gives_the_same_tables():
    """Of whoever the headers are: the same limits, 429s and retry times."""
    tables = {}
    for family in get_args(HeaderFamily):
        run = dry_run_frames(limited({"rpm": 300, "burst": 3, "headers": family}))
        found = compute(run_of(run.frames))
        tables[family] = section(found).tables
        assert found.buckets[0].rate.how == "headers"

    assert len(tables) >= 8
    assert all(of_family == tables["anthropic"] for of_family in tables.values())


@pytest.mark.parametrize("name", ["requests", "input tokens", "output tokens"])
def test_without_headers_the_intervals_hold_the_limit(name):
    limits, changes, kind, rate, burst = LIMITS[name]
    run = dry_run_frames(limited(limits, **changes), without_headers=True)
    values = agreed(run, compute(run_of(run.frames)))
    (bucket,) = values["buckets"]

    assert values["binding"]["kind"] == kind
    assert bucket["remaining"] is None
    assert bucket["rate"]["how"] == "429s"
    assert bucket["rate"]["low"] <= rate <= bucket["rate"]["high"]
    assert bucket["rate"]["value"] == pytest.approx(rate, rel=0.01)
    assert bucket["burst"]["low"] <= burst + 0.02 * burst
    assert bucket["burst"]["high"] >= burst - 0.02 * burst
    assert bucket["burst"]["value"] == pytest.approx(burst, rel=0.02)


@pytest.mark.slow
def test_a_bucket_of_one_refuses_rho_over_one_plus_rho(full_size):
    """Poisson calls of one token on a bucket of one: M/D/1/1."""
    seconds = 20_000 if full_size else 400
    stages = {"duration_s": float(seconds), "warmup_s": 0.0}
    run = dry_run_frames(
        limited({"rpm": 300, "burst": 1}, arrival={"rate_per_s": 2.5}, stages=stages)
    )
    values = agreed(run, compute(run_of(run.frames)))

    assert values["shares"]["refused"]["low"] <= 1 / 3 <= values["shares"]["refused"]["high"]
    assert values["buckets"][0]["burst"]["value"] == 1
    assert values["growth"]["value"] < 1


def test_the_acceleration_limit_binds_by_its_code_alone():
    run = dry_run_frames(limited({"rpm": 6000, **RAMP}, arrival=GROWING))
    values = agreed(run, compute(run_of(run.frames)))
    run.frames.attempts[["error_body", "error_type"]] = None
    silent = plain_values(compute(run_of(run.frames)))
    (limit,) = values["shares"]["by_kind"]

    assert values["binding"]["kind"] == "ramp"
    assert (limit["kind"], limit["how"]) == ("ramp", ["error code"])
    assert limit["attempts"]["k"] > 50
    assert silent["binding"]["kind"] is None


def scenario(name, seconds, **tables):
    """A packaged scenario, shorter, with tables changed."""
    tree = tomllib.loads((SCENARIOS / f"{name}.toml").read_text(encoding="utf-8"))
    tree["stages"] = {"duration_s": float(seconds), "warmup_s": 0.0}
    for table, keys in tables.items():
        tree[table] = {**tree.get(table, {}), **keys}
    return tree


@pytest.mark.slow
def test_the_packaged_retry_storm_with_a_limit():
    tree = scenario("retry_storm", 30, simulated={"limits": {"rpm": 600, "burst": 20}})
    run = dry_run_frames(tree)
    found = compute(run_of(run.frames))
    values = agreed(run, found)
    (bucket,) = values["buckets"]

    assert values["binding"]["kind"] == "requests"
    assert (bucket["rate"]["value"], bucket["burst"]["value"]) == (10, 20)
    assert values["retry_after"]["violations"]["value"] > 0.9
    assert values["amplification"][0]["observed"] > 1.5
    assert f"made {values['amplification'][0]['observed']:.1f} attempts per call" in sentence(found)


def test_traffic_below_its_limits_reports_how_much_of_them_is_used():
    found = compute(run_of(dry_run_frames(limited({"rpm": 3000, "itpm": 600_000})).frames))
    values = plain_values(found)

    assert values["shares"]["refused"]["k"] == 0
    assert values["binding"]["kind"] == "requests"
    used = [bucket.utilisation for bucket in found.buckets]
    assert used == [pytest.approx(7 / 50, rel=0.15), pytest.approx(7 * 74 / 10_000, rel=0.5)]
    assert all("never seen empty" in bucket["burst"]["why"] for bucket in values["buckets"])
    assert values["growth"]["low"] >= 1  # this much was allowed
    assert (
        f"the most used limit is requests, at {100 * used[0]:.1f}% of its refill rate"
        in sentence(found)
    )


def test_tokens_that_headers_round_to_thousands_leave_an_interval():
    run = dry_run_frames(limited({"rpm": 300, "burst": 10, "itpm": 36_000, "itpm_burst": 2000}))
    rows = run.frames.attempts
    _, tokens = plain_values(compute(run_of(run.frames)))["buckets"]

    assert not (rows["header_input_tokens_remaining"] % 1000).any()
    assert (tokens["remaining"]["least"], tokens["remaining"]["low"]) == (35_000, 34_500)
    levels = [json.loads(text)["input_tokens"] for text in run.server_log["bucket_levels"]]
    assert tokens["remaining"]["low"] <= min(levels) <= tokens["remaining"]["high"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["none", "polite", "naive"])
def test_the_429s_of_the_run_are_attempts_warm_up_and_retries_included(policy, tmp_path):
    tree = limited(
        {"rpm": 240, "burst": 3}, stages={"duration_s": 20.0, "warmup_s": 8.0},
        traffic={"chat": {"prompt_tokens": 50, "output_tokens": 4, "retry": {"policy": policy}}},
    )  # fmt: skip
    run = dry_run_report(tree, tmp_path)
    refused = int((run.log["status"] == 429).sum())
    section = run.report["rate_limits"]

    assert (section["run_attempts"], section["run_refused"]) == (len(run.log), refused)
    assert refused > section["shares"]["refused"]["k"] > 0
    assert sum(one["attempts"] for one in run.report["errors"] if one["status"] == 429) == refused
    assert f"{refused:,} of {len(run.log):,} attempts, warm-up included" in run.page
