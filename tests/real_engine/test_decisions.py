"""The three decisions against a real engine: what they answer is what the engine's own counters and slots say.

Rule: the ground truth is the engine's log. Its tokens a second while it is busy make the rate that headroom has to find; its
`/metrics` pages hold as many calls and tokens as the rows of an experiment's runs; its slots make the cache that a
checkup has to find out about. A rate is compared as a ratio, with a wide margin; everything else is counts and order.
"""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

import pandas as pd
import pytest
from real_engine.relay import reading_to_the_end
from run_folders.run_data import RunData
from starting.command import Running
from starting.programs import TAILGAUGE

from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.hedging import section as hedging

pytestmark = pytest.mark.alone_at_full_size

SLOTS, TOKENS = 4, 100
ANSWER = 40  # tokens of a hedged call
TABLES = ("target", "second_target")

LEAVING = """
[target]
url = "{url}"
protocol = "openai"
[experiment]
kind = "checkup"
minutes = 1
[experiment.checkup]
skip = ["light", "cached", "fan_out", "loaded"]
[arrival]
rate_per_s = 4
[traffic.chat]
prompt_tokens = 30
output_tokens = 60
[traffic.chat.retry]
policy = "none"
[simulated]
profile = "tiny"
"""

SAME = f"""
[target]
url = "{{url}}"
protocol = "openai"
[traffic.chat]
prompt_tokens = 40
output_tokens = {TOKENS}
[traffic.chat.retry]
policy = "none"
[simulated]
profile = "tiny"
"""

CLOSED = f"""
[arrival]
process = "closed"
[arrival.closed]
users = {2 * SLOTS}
think_s = 0
[stages]
duration_s = 12
"""

HEADROOM = """
[experiment]
kind = "headroom"
minutes = 15
[experiment.headroom]
growth = 1.6
confirm = 2
rest_s = 0
step_s = 10
[arrival]
rate_per_s = 2
"""

HEDGING = """
[target]
url = "{url}"
protocol = "anthropic"
[second_target]
url = "{second}"
protocol = "anthropic"
[experiment]
kind = "hedging"
minutes = 10
[experiment.hedging]
loads = 2
pairs = 6
block_s = 4
[arrival]
rate_per_s = 3
[stages]
duration_s = 5
[traffic.chat]
pattern = "hedged"
prompt_tokens = 300
output_tokens = {tokens}
[traffic.chat.hedge]
policy = "fixed"
delay_ms = 30
budget_share = 1.0
target = "second"
[simulated]
profile = "tiny"
"""

CACHED = """
[target]
url = "{url}"
protocol = "anthropic"
[experiment]
kind = "checkup"
minutes = 1
[experiment.checkup]
skip = ["light", "cancelled", "loaded"]
[arrival]
rate_per_s = 2
[traffic.assistant]
pattern = "cached"
prompt_tokens = 20
output_tokens = 12
[traffic.assistant.cache]
prefixes = 2
system_tokens = 1000
[simulated]
profile = "tiny"
"""

CHECKUP = """
[target]
url = "{url}"
protocol = "anthropic"
[experiment]
kind = "checkup"
minutes = 3
[experiment.checkup]
skip = ["cached", "cancelled", "loaded"]
[arrival]
rate_per_s = 0.5
[traffic.assistant]
pattern = "fan_out"
prompt_tokens = 20
output_tokens = 12
[traffic.assistant.fan_out]
legs = 8
[traffic.assistant.cache]
prefixes = 60              # each warm in one slot, or kept aside; hardly any is asked for twice
system_tokens = 400
breakpoints = []
pre_warm = true
[traffic.assistant.retry]
policy = "none"
[simulated]
profile = "tiny"
[simulated.cache]
mode = "automatic"
"""


def answered(folder, name, text, *options, timeout_s):
    """`tailgauge run` on an experiment: the answer as it is printed."""
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    line = [TAILGAUGE, "run", str(path), *options, "--json", f"--out={folder}"]
    done = Running(line, folder, {}, folder).finish(timeout_s)
    assert done.stdout, done.stderr
    summary = json.loads(done.stdout)
    assert summary["exit_code"] == done.code
    return summary


def attempts(folder, summary):
    """The calls of all runs of an experiment, the preflights' among them."""
    names = (
        [one["run_id"] for one in summary["runs"]]
        if "runs" in summary
        else [Path(summary["run_dir"]).name]
    )
    tables = [RunData(folder / "runs" / name).table("attempts") for name in names]
    return pd.concat(tables, ignore_index=True)


def tokens_per_s(engine, folder):
    """Tokens a second that the engine counts while twice as many clients as it has slots read its streams.

    The clients are ours, because they share its two cores: what it makes for clients that read whole answers is more.
    """
    folder.mkdir()
    path = folder / "busy.toml"
    path.write_text(CLOSED + SAME.format(url=engine.url), encoding="utf-8")
    running = Running(
        [TAILGAUGE, "run", str(path), f"--out={folder}", "--json"], folder, {}, folder
    )
    seen: list[tuple[float, float]] = []
    while running.process.poll() is None:
        page = engine.counters()
        if page["requests_processing"] == SLOTS and page["requests_deferred"]:
            seen.append((time.monotonic(), page["tokens_predicted_total"]))
        time.sleep(0.1)
    assert running.finish(1).code in {0, 1, 3, 5}
    (began, before), (ended, after) = seen[len(seen) // 10], seen[-1]
    assert ended - began > 5
    return (after - before) / (ended - began)


@pytest.mark.parametrize(
    "engine", [{"parallel": SLOTS, "threads": 1, "shape": "large"}], indirect=True
)
def test_the_sustainable_rate_is_what_the_engines_own_tokens_a_second_make(
    engine, tmp_path, full_size
):
    """The engine leaves a core to the harness: what shares its cores lowers what it sustains."""
    if not full_size:
        pytest.skip("make verify: some four minutes of both cores")
    made = tokens_per_s(engine, tmp_path / "busy")
    summary = answered(tmp_path, "sustained", HEADROOM + SAME.format(url=engine.url), timeout_s=280)
    expected = made / TOKENS
    print(
        f"the engine: {made:.0f} tokens/s, {expected:.2f} requests/s; {summary['result']['sentence']}"
    )

    assert summary["facts"]["binding"] == "capacity"
    assert summary["facts"]["sustained_per_s"] == pytest.approx(expected, rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("is_experiment", [True, False])
@pytest.mark.parametrize("engine", [{"parallel": SLOTS}], indirect=True)
def test_hedges_reach_the_second_replica_and_both_count_what_the_rows_say(
    engine, fresh_engine, tmp_path, is_experiment
):
    with fresh_engine(tmp_path / "second.log", parallel=SLOTS) as second:
        engines = {"main": engine, "second": second}
        text = HEDGING.format(url=engine.url, second=second.url, tokens=ANSWER)
        if not is_experiment:  # a plain run of the same traffic
            text = text[: text.index("[experiment]")] + text[text.index("[arrival]") :]
        options = [
            f"--set={name}.url={json.dumps(one.url)}"
            for name, one in zip(TABLES, engines.values(), strict=True)
        ]
        summary = answered(tmp_path, "replicas", text, *options, timeout_s=300)
        rows = attempts(tmp_path, summary)
        assert all(one.seconds_until_idle(10) < 10 for one in engines.values())

        assert set(rows[rows.cause == "hedge"].target) == {"second"}
        assert set(rows[(rows.cause == "primary") & (rows.stage != "preflight")].target) == {"main"}
        for name, one in engines.items():
            sent = rows[(rows.target == name) & rows.sent_at_ns.notna()]
            whole, left = sent[sent.ended == "ok"], sent[sent.ended == "cancelled"]
            served, made = len(one.served(len(whole))), one.counters()["tokens_predicted_total"]
            print(
                f"{name}: {len(whole)} whole and {len(left)} left calls, {whole.output_tokens.sum():.0f} tokens; {served}, {made:.0f}"
            )

            assert set(sent.ended) <= {"ok", "cancelled"}
            # What was left may be over before the engine sees it, and is then counted like the others.
            assert 0 < len(whole) <= served <= len(sent)
            assert (
                whole.output_tokens.sum() <= made <= whole.output_tokens.sum() + ANSWER * len(left)
            )
        if not is_experiment:
            run = Run([Path(summary["run_dir"])])
            _check_the_cost(run, rows, [one.counters() for one in engines.values()])


def _check_the_cost(run, rows, pages):
    """The losers have no price and no usage: their cost is what the engines counted beyond the rows, the preflight left out."""
    (variant,) = run.result(hedging.compute)
    first = rows[(rows.stage == "preflight") & rows.input_tokens.notna()]
    sent = rows[rows.stage != "preflight"]
    preflight = first.input_tokens.sum() + first.cache_creation_input_tokens.fillna(0).sum()
    used = sent.input_tokens.sum() + sent.cache_creation_input_tokens.fillna(0).sum()
    processed = sum(page["prompt_tokens_total"] for page in pages) - preflight
    print(variant.cost)

    assert (
        f"{processed:,.0f} prompt tokens processed, {used:,.0f} in the rows"
        in variant.cost.by_engine
    )
    assert variant.cost.unit == "tokens, by the counters of llama.cpp"
    assert variant.cost.low == variant.cost.high
    assert variant.cost.low > 0


@pytest.mark.parametrize("engine", [{"parallel": 8, "ctx": 65536}], indirect=True)
def test_of_eight_calls_on_one_warm_prefix_most_miss_and_the_checkup_says_why(
    engine, tmp_path, full_size
):
    if not full_size:
        pytest.skip("make verify: two and a half minutes of a core")
    summary = answered(tmp_path, "per_slot", CHECKUP.format(url=engine.url), timeout_s=400)
    rows = attempts(tmp_path, summary)
    fans = rows[(rows.traffic == "assistant") & (rows.stage != "preflight") & (rows.ended == "ok")]
    prefix = fans.input_tokens + fans.cache_read_input_tokens
    missed = (fans.cache_read_input_tokens < prefix / 2).groupby(fans.request_id).sum()
    print(f"{missed.tolist()} of 8 missed; {summary['result']['sentence']}")

    assert missed.median() >= 5
    assert "per_slot" in summary["facts"]["findings"]
    assert "early_headers" not in summary["facts"]["findings"]
    assert summary["exit_code"] == 1
    problems = [one["name"] for one in summary["result"]["objectives"]]
    assert any("the cache is kept per slot" in text for text in problems)


@pytest.mark.parametrize(
    ("engine", "found"), [({"cache": False}, ["no_cache"]), ({}, [])], indirect=["engine"]
)
def test_an_engine_without_a_cache_is_found(engine, found, tmp_path, full_size):
    if not full_size:
        pytest.skip("make verify: half a minute of a core")
    summary = answered(tmp_path, "cached", CACHED.format(url=engine.url), timeout_s=200)
    rows = attempts(tmp_path, summary)
    print(f"{rows.cache_read_input_tokens.sum():.0f} tokens read; {summary['result']['sentence']}")

    assert (rows[rows.stage != "preflight"].cache_read_input_tokens > 0).any() is not bool(found)
    assert summary["facts"]["findings"] == found
    assert summary["exit_code"] == (1 if found else 0)


@pytest.mark.parametrize(
    "engine", [{"parallel": SLOTS, "threads": 2, "shape": "large"}], indirect=True
)
@pytest.mark.parametrize("passes_it_on", [True, False])
def test_a_gateway_that_keeps_to_itself_that_a_client_has_left_is_found(
    engine, tmp_path, full_size, passes_it_on
):
    if not full_size:
        pytest.skip("make verify: a minute of both cores")
    with contextlib.ExitStack() as stack:
        url = engine.url
        if not passes_it_on:
            url = stack.enter_context(reading_to_the_end(url))
        summary = answered(tmp_path, "leaving", LEAVING.format(url=url), timeout_s=200)
        rows = attempts(tmp_path, summary)
        made = engine.counters()["tokens_predicted_total"]
    left, whole = rows[rows.ended == "cancelled"], rows[rows.ended == "ok"]
    (check,) = (one for one in summary["facts"]["checks"] if one["name"] == "cancel_ignored")
    print(
        f"{made:.0f} tokens, {whole.output_tokens.sum():.0f} in {len(whole)} whole answers, {len(left)} left: {check}"
    )

    assert "llama.cpp counts" in check["number"]["evidence"]
    if passes_it_on:
        assert made < whole.output_tokens.sum() + 40 * len(left)
        assert (summary["facts"]["findings"], summary["exit_code"]) == ([], 0)
    else:
        assert made == whole.output_tokens.sum() + 60 * len(left)
        assert (summary["facts"]["findings"], summary["exit_code"]) == (["cancel_ignored"], 1)
