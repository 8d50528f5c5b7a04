"""A run that cannot be is refused before anything starts: targets, files, prices, limits; and its estimate."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tailgauge.errors import Exit, TailgaugeError
from tailgauge.plan.estimate import short_prefixes
from tailgauge.plan.resolve import Settings, resolve
from tailgauge.scenario.model import override

PRICED = """
[[price]]
models = ["tiny"]
since = 2026-01-01
input = 1
write_5m = 2
write_1h = 4
read = 0.1
output = 10
"""


def settled(tmp_path: Path, text: str, *sets: str, **options: Any) -> Settings:
    file = tmp_path / "mine.toml"
    file.write_text(text if "[traffic" in text else f"{text}\n[traffic.chat]\n")
    return resolve(str(file), [override(pair) for pair in sets], tmp_path / "out", **options)


def refusal(tmp_path: Path, text: str, *sets: str, **options: Any) -> str:
    with pytest.raises(TailgaugeError) as raised:
        settled(tmp_path, text, *sets, **options)
    assert raised.value.exit_code == Exit.USAGE
    assert not (tmp_path / "out").exists(), "nothing was made"
    return str(raised.value)


@pytest.mark.parametrize(("rate_per_s", "seconds"), [(0.01, 5), (0.002, 60), (0.02, 0.4)])
def test_a_plan_without_a_request_is_refused(tmp_path, rate_per_s, seconds):
    text = f"[arrival]\nrate_per_s = {rate_per_s}\n[stages]\nduration_s = {seconds}\n"

    assert f"stages.duration_s: no request arrives within {seconds} s" in refusal(tmp_path, text)


# --- where load may go ------------------------------------------------------------------------------------------

REMOTE = '[target]\nurl = "https://llm.example"\n'
SECOND = '[second_target]\nurl = "http://10.0.0.7:8000"\n'


def test_a_file_alone_cannot_send_load_to_another_machine(tmp_path):
    error_text = refusal(tmp_path, REMOTE)

    assert error_text.startswith(
        f"{tmp_path / 'mine.toml'}: target.url: https://llm.example is not on this machine"
    )
    assert "--target URL" in error_text


def test_the_second_target_has_to_be_named_as_well(tmp_path):
    error_text = refusal(tmp_path, SECOND, "target.url=https://llm.example")

    assert ": second_target.url: http://10.0.0.7:8000 is not on this machine" in error_text
    assert "--set second_target.url=URL" in error_text


@pytest.mark.parametrize(
    "url", ["http://localhost:8000", "http://127.0.0.9", "http://[::1]:1", "simulated"]
)
def test_a_file_may_name_this_machine(tmp_path, url):
    assert settled(tmp_path, f'[target]\nurl = "{url}"\n').scenario.target.url == url


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1.example", "http://localhost.example", "http://0.0.0.0:80", "http://[::]"],
)
def test_what_only_looks_like_this_machine_is_another(tmp_path, url):
    assert "is not on this machine" in refusal(tmp_path, f'[target]\nurl = "{url}"\n')


@pytest.mark.parametrize(
    "pair", ["target.url=https://llm.example", 'target={url="https://llm.example"}']
)
def test_a_target_that_is_typed_is_taken(tmp_path, pair):
    assert settled(tmp_path, REMOTE, pair).scenario.target.url == "https://llm.example"


def test_nothing_is_sent_in_a_dry_run_so_its_target_may_be_anywhere(tmp_path):
    assert settled(tmp_path, REMOTE, sends=False).scenario.target.url == "https://llm.example"


# --- rate and duration ------------------------------------------------------------------------------------------


def test_a_duration_scales_every_stage_and_the_shape_with_them(tmp_path):
    text = "[arrival]\nprocess = 'constant'\nrate_per_s = 100.0\n[arrival.shape]\nkind = 'step'\nfactor = 3.0\n"
    text += "[stages]\nduration_s = 40\nwarmup_s = 8\ncooldown_s = 4\n"

    made = settled(tmp_path, text, duration_s=10.0)

    stages = made.scenario.stages
    assert (stages.duration_s, stages.warmup_s, stages.cooldown_s) == (10, 2, 1)
    first = int((made.schedule.at_ns < 5e9).sum())
    assert len(made.schedule) == pytest.approx(1000, abs=2), "the mean rate stays"
    assert first == pytest.approx(250, abs=2), "the step stays in the middle"


@pytest.mark.parametrize("process", ["poisson", "constant", "gamma", "on_off"])
@pytest.mark.parametrize("requests", [40, 1200])
def test_a_number_of_requests_sets_the_length(tmp_path, process, requests):
    text = f"[arrival]\nprocess = '{process}'\n[stages]\nduration_s = 30\nwarmup_s = 6\n"

    made = settled(tmp_path, text, requests=requests)

    stages = made.scenario.stages
    assert made.schedule.requests == pytest.approx(requests, abs=1)
    assert requests / 30 < stages.duration_s < requests / 3, "10 requests/s, bursts of 5 s"
    assert stages.warmup_s == pytest.approx(stages.duration_s / 5), "every stage is scaled"


def test_every_turn_of_a_session_counts_as_a_request(tmp_path):
    made = settled(tmp_path, "[traffic.chat.session]\nturns_mean = 4.0\n", requests=500)

    assert made.schedule.requests == pytest.approx(500, rel=0.05)
    assert len(made.schedule) < 250


def test_more_requests_than_a_trace_has_are_refused(tmp_path):
    assert resolve("trace", (), tmp_path, requests=100).schedule.requests == pytest.approx(
        100, abs=4
    )
    with pytest.raises(TailgaugeError) as raised:
        resolve("trace", (), tmp_path, requests=1000)
    assert str(raised.value) == "--requests 1,000: the trace has only 297 requests"


CLOSED = "[arrival]\nprocess = 'closed'\n"


def test_a_closed_loop_sends_a_number_of_requests_without_a_length(tmp_path):
    made = settled(tmp_path, f"{CLOSED}[stages]\nduration_s = 20\nwarmup_s = 3\n", requests=5)
    stages = made.scenario.stages

    assert (
        made.scenario.arrival.closed.requests
        == made.schedule.requests
        == made.estimate.requests
        == 5
    )
    assert (stages.is_endless, stages.warmup) == (True, 0.0)


def test_a_length_beside_a_number_is_its_longest_and_a_chosen_warm_up_stays(tmp_path):
    made = settled(tmp_path, CLOSED, "stages.warmup_s=2", requests=50, duration_s=9.0)

    assert made.scenario.arrival.closed.requests == 50
    assert made.scenario.stages.model_dump() == {
        "duration_s": 9.0,
        "warmup_s": 2.0,
        "cooldown_s": 0.0,
    }


@pytest.mark.parametrize(
    "stages", ["", "[stages]\nduration_s = 40\n", "[stages]\nwarmup_s = 1.5\n"]
)
def test_a_number_in_the_file_is_the_same(tmp_path, stages):
    made = settled(tmp_path, f"{CLOSED}closed = {{requests = 12}}\n{stages}").scenario.stages

    assert made.duration_s == (40 if "40" in stages else 30 * 86400)
    assert made.warmup == (1.5 if "1.5" in stages else 0)
    assert (
        settled(
            tmp_path, f"{CLOSED}closed = {{requests = 12}}\n", duration_s=7.0
        ).scenario.stages.duration_s
        == 7
    )


def test_a_length_and_a_number_are_refused_at_a_rate(tmp_path):
    assert "choose one" in refusal(tmp_path, "", requests=5, duration_s=9.0)


@pytest.mark.parametrize(
    ("text", "workers", "message"),
    [
        ("[arrival]\nmax_concurrency = 2\n", 3, "arrival.max_concurrency: expected at least 3, a slot for each"),
        (f"{CLOSED}closed = {{users = 30, requests = 90}}\n[limits]\nin_flight_per_worker = 10\n", 2,
         "arrival.closed.users: expected at most 20, got 30: limits.in_flight_per_worker is 10: raise it, or add workers"),
        (f"{CLOSED}closed = {{users = 30}}\n[limits]\nin_flight_per_worker = 10\n", 2,
         "mine.toml: arrival.closed.users: expected at most 20, got 30: limits.in_flight_per_worker is 10"),
        (f"{CLOSED}closed = {{users = 70_000}}\n", 1,
         "arrival.closed.users: expected at most 60,000, got 70,000: limits.in_flight_per_worker is 60,000: add workers"),
        ("[arrival]\nmax_concurrency = 30\n[limits]\nin_flight_per_worker = 10\n", 2,
         "arrival.max_concurrency: expected at most 20, got 30: limits.in_flight_per_worker is 10"),
        (f"{CLOSED}max_concurrency = 2\n", 1, "arrival.max_concurrency: does not apply with process = 'closed'"),
        ("[arrival]\nclosed = {requests = 5}\n", 1, "arrival.closed: does not apply with process = 'poisson'"),
        (f"{CLOSED}closed = {{requests = 0}}\n", 1, "arrival.closed.requests: expected a number >= 1, got 0"),
    ],
)  # fmt: skip
def test_slots_that_cannot_be_are_refused(tmp_path, text, workers, message):
    assert message in refusal(tmp_path, text, workers=workers)


@pytest.mark.parametrize(
    ("text", "workers", "cap"),
    [
        (f"{CLOSED}closed = {{users = 5000}}\n", 1, 5000),
        (f"{CLOSED}closed = {{users = 5000}}\n", 3, 1667),
        (f"{CLOSED}closed = {{users = 5000, requests = 9000}}\n", 1, 5000),
        (f"{CLOSED}closed = {{users = 50}}\n", 1, 1000),
        ("[arrival]\nmax_concurrency = 2500\n", 2, 1250),
        ("[arrival]\nrate_per_s = 9\n", 1, 1000),
        (f"{CLOSED}closed = {{users = 50}}\n[limits]\nin_flight_per_worker = 60\n", 1, 60),
    ],
)
def test_the_cap_of_a_worker_follows_its_users_where_it_is_not_set(tmp_path, text, workers, cap):
    limits = settled(tmp_path, text, workers=workers).scenario.limits

    assert limits.in_flight_per_worker == cap
    assert ("in_flight_per_worker" in limits.model_fields_set) == ("in_flight" in text), (
        "another load may follow"
    )


def test_an_objective_says_how_many_requests_it_needs_of_a_number(tmp_path):
    made = settled(tmp_path, f"{CLOSED}[slo]\nchat = 'ttft p95 < 800 ms'\n", requests=100)

    assert made.objectives[:3] == [
        "objective: ttft p95 < 800 ms: needs 400 requests, this plan has 100",
        "  may end INCONCLUSIVE: --requests 400, or use p50",
        "  59 requests are enough if all of them meet the objective",
    ]


# --- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("[traffic.chat]\nprompts.file = 'none.jsonl'\n", "none.jsonl: no such file"),
        (
            "[arrival]\nprocess = 'trace'\n[arrival.trace]\nfile = 'none.csv'\n",
            "none.csv: no such file",
        ),
        ("[guard]\nprices = 'none.toml'\n", "none.toml: no such file"),
        ("[target]\nca_file = 'none.pem'\n", "target.ca_file: none.pem: no such file"),
        (
            "[second_target]\nca_file = 'none.pem'\n",
            "second_target.ca_file: none.pem: no such file",
        ),
    ],
)
def test_a_file_that_is_missing_is_reported_before_anything_starts(tmp_path, text, error_text):
    assert error_text in refusal(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "error_text"),
    [
        ("[guard]\nmax_requests = 1\n", "guard.max_requests: expected at least"),
        ("[guard]\nmax_tokens = 1\n", "guard.max_tokens: expected at least"),
        ("[arrival]\nprocess = 'on_off'\n[arrival.on_off]\non_s = 1e-9\noff_s = 1e-9\n", "arrival.on_off: over 20 million"),
    ],
)  # fmt: skip
def test_what_the_plan_refuses_is_named_with_the_file(tmp_path, text, error_text):
    assert re.match(rf"{tmp_path}/\w+\.toml: {re.escape(error_text)}", refusal(tmp_path, text))


def test_a_price_file_with_a_bad_date_is_refused_by_file_and_entry(tmp_path):
    (tmp_path / "prices.toml").write_text(PRICED.replace("2026-01-01", '"soon"'))

    error_text = refusal(tmp_path, "[guard]\nprices = 'prices.toml'\n")

    assert error_text.startswith(
        f"{tmp_path / 'prices.toml'}: price 1 (tiny): since: expected a date as 2026-11-01"
    )


# --- guards -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sets", "error_text"),
    [
        ("", ["guard.max_cost=5"], "--set guard.max_cost: no price is known for model 'tiny'"),
        ("", ["guard.max_requests=3"], "guard.max_requests: expected at least 4, got 3: 2 calls of the preflight"),
        ("", ["guard.max_tokens=100"], "guard.max_tokens: expected at least "),
        (
            "[traffic.a]\npattern = 'cached'\n[traffic.a.cache]\nsystem_tokens = 9\npre_warm = true\nprefixes = 1001\n",
            [], "traffic.a.cache.pre_warm: expected at most 1,000 prefixes, got 1,001",
        ),
        (
            "[target]\nprotocol = 'sse'\n[traffic.a]\npattern = 'cached'\n[traffic.a.cache]\nsystem_tokens = 9\npre_warm = true\n",
            [], "traffic.a.cache.pre_warm: expected target.protocol 'anthropic' or 'openai', got 'sse'",
        ),
    ],
)  # fmt: skip
def test_a_limit_that_leaves_no_run_is_refused(tmp_path, text, sets, error_text):
    assert error_text in refusal(tmp_path, text, *sets, workers=2)


def test_a_cost_may_be_limited_where_every_model_has_a_price(tmp_path):
    (tmp_path / "prices.toml").write_text(PRICED)

    made = settled(tmp_path, "[guard]\nprices = 'prices.toml'\nmax_cost = 0.1\n")

    assert str(made.limit.cost) == "1/10", "as it was written, not as a float has it"
    assert list(made.priced()) == ["tiny"]


# --- the estimate -----------------------------------------------------------------------------------------------

TEN = (
    "[arrival]\nprocess = 'constant'\nrate_per_s = 10.0\n[stages]\nduration_s = 1\n[traffic.chat]\n"
)


@pytest.mark.parametrize(
    ("table", "calls", "tokens_in", "tokens_out", "at_most"),
    [
        ("", 10, 1000, 200, 10),
        ("stream = false\nthinking = 'enabled'\nthinking_tokens = 10\n", 10, 1000, 200, 10),
        ("pattern = 'fan_out'\nfan_out.legs = 4\n", 40, 4000, 800, 40),
        ("pattern = 'fan_out'\nfan_out.kinds = [{prompt_tokens = 5, output_tokens = 1, count = 2}]\n", 20, 100, 20, 20),
        ("pattern = 'hedged'\nhedge = {policy = 'fixed', budget_share = 0.1, budget_burst = 1}\n", 10, 1000, 200, 13),
        ("pattern = 'hedged'\nhedge = {policy = 'immediate', budget_share = 1}\n", 10, 1000, 200, 20),
        ("retry = {policy = 'naive', max_retries = 3}\n", 10, 1000, 200, 40),
        ("retry = {policy = 'polite', budget_share = 0.5, budget_burst = 2}\n", 10, 1000, 200, 19),
        ("fallback = {after_s = 1.0}\n", 10, 1000, 200, 20),
        ("pattern = 'structured'\nstructured = {mode = 'two_calls', field_tokens = 7}\n", 20, 1200, 270, 20),
        ("pattern = 'progressive'\nprogressive = {fast_tokens = 3}\n", 20, 2000, 230, 20),
        ("pattern = 'batch'\nbatch.requests = 5\n", 30, 5000, 1000, None),
        ("pattern = 'cached'\ncache = {system_tokens = 900}\n", 10, 10_000, 200, 10),
    ],
)  # fmt: skip
def test_the_estimate_counts_calls_and_tokens_of_every_pattern(
    tmp_path, table, calls, tokens_in, tokens_out, at_most
):
    estimated = settled(
        tmp_path, f"{TEN}prompt_tokens = 100\noutput_tokens = 20\n{table}", workers=2
    ).estimate

    assert (estimated.requests, estimated.calls, estimated.calls_at_most) == (10, calls, at_most)
    assert (estimated.input_tokens, estimated.output_tokens) == (tokens_in, tokens_out)
    assert estimated.cost is None
    assert "no price known for model tiny" in estimated.lines()[-1]


def test_a_growing_session_sends_its_turns_again(tmp_path):
    table = "prompt_tokens = 100\noutput_tokens = 20\nsession = {turns_mean = 3.0}\n"
    made = settled(tmp_path, TEN + table)

    turns = [int(n) for n in made.schedule.turns]
    assert max(turns) > 1
    assert made.estimate.requests == sum(turns)
    assert made.estimate.input_tokens == sum(
        100 * (k + 1) + 20 * k for n in turns for k in range(n)
    )


def test_the_estimate_has_a_cost_where_the_price_is_known(tmp_path):
    (tmp_path / "prices.toml").write_text(PRICED)
    table = "pattern = 'cached'\nprompt_tokens = 100\noutput_tokens = 20\ncache = {system_tokens = 900}\n"

    estimated = settled(tmp_path, f"{TEN}{table}[guard]\nprices = 'prices.toml'\n").estimate

    assert estimated.cost == pytest.approx((1000 * 1 + 9000 * 2 + 200 * 10) / 1e6)
    assert estimated.lines()[0].endswith(" output tokens, up to 0.021 USD")
    assert estimated.facts()["prices"] == "prices.toml", "no path of this machine"


def test_a_closed_loop_is_not_estimated(tmp_path):
    estimated = settled(tmp_path, "[arrival]\nprocess = 'closed'\n").estimate

    assert estimated.requests is None
    assert estimated.lines() == [
        "expected: 10 users of a closed loop: the target decides how many requests they send"
    ]


# --- prefixes that are not cached ---------------------------------------------------------------------------------

CACHED = '[traffic.chat]\npattern = "cached"\nprompt_tokens = 3000\n[traffic.chat.cache]\nsystem_tokens = 1600\n'


@pytest.mark.parametrize(
    ("model", "sets", "expected"),
    [
        ("claude-haiku-4-5-20251001", (), "1,600 marked tokens are not cached: claude-haiku-4-5-20251001 caches from 4,096"),
        ("claude-haiku-4-5", ("traffic.chat.cache.system_tokens=4096",), ""),
        ("claude-haiku-4-5", ('traffic.chat.cache.breakpoints=["system","last"]',), ""),
        ("claude-haiku-4-5", ("traffic.chat.cache.breakpoints=[]",), ""),
        ("claude-sonnet-4-5", (), ""),
        ("somebody-elses", (), ""),
    ],
)  # fmt: skip
def test_a_marked_prefix_below_the_models_minimum_is_named_before_the_run(
    tmp_path, model, sets, expected
):
    settings = settled(tmp_path, CACHED, f"target.model={model}", *sets)
    found = list(short_prefixes(settings.scenario))

    assert len(found) == bool(expected)
    assert expected in "".join(found)
