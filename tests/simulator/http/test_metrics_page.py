"""The meters' numbers, and the page that shows them, read by a parser of the format."""

from __future__ import annotations

import re

import pytest

from tailgauge.simulator.core.metrics import ABORT, LENGTH, Meters, render

S = 1_000_000_000
LABEL = r'[a-zA-Z_]\w*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"([a-zA-Z_:][\w:]*)\{{((?:{LABEL},?)+)\}} (\S+)")


def samples(page: str) -> dict[str, float]:
    """Samples by name and labels other than model and engine; the rules of the format are checked on the way."""
    kinds: dict[str, str] = {}
    found: dict[str, float] = {}
    assert page.endswith("\n")
    for line in page.splitlines():
        if line.startswith("# "):
            _, word, name, page = line.split(" ", 3)
            assert word in {"HELP", "TYPE"}
            if word == "TYPE":
                assert name not in kinds
                assert page in {"counter", "gauge", "histogram"}
                kinds[name] = page
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        assert kinds.get(name) in {"counter", "gauge"} or kinds[family] == "histogram"
        rest = [label for label in re.findall(LABEL, labels) if not re.match("engine=|model_name=", label)]
        key = name.removeprefix("vllm:") + (f"{{{','.join(rest)}}}" if rest else "")
        assert key not in found
        found[key] = float(value)
    return found


def test_every_series_is_there_from_the_start() -> None:
    found = samples(render(Meters(), "tiny"))
    assert set(found.values()) == {0.0}
    names = {re.sub(r"\{.*", "", key) for key in found}
    assert names >= {
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total",
        "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_sum", "e2e_request_latency_seconds_count",
    }  # fmt: skip


def test_a_call_waits_runs_and_is_counted_when_it_ends() -> None:
    meters = Meters()
    call = meters.received(0, 30)
    assert (meters.waiting, meters.running) == (1, 0)
    call.admitted()
    assert (meters.waiting, meters.running) == (0, 1)
    call.first_token(S // 2)
    call.finished(2 * S, LENGTH, 5, [S // 2, S, 2 * S])
    found = samples(render(meters, "tiny"))
    assert (meters.waiting, meters.running) == (0, 0)
    assert found["prompt_tokens_total"] == 30
    assert found["generation_tokens_total"] == 5
    assert found['request_success_total{finished_reason="length"}'] == 1
    assert found["time_to_first_token_seconds_sum"] == 0.5
    assert found["e2e_request_latency_seconds_sum"] == 2
    assert found["inter_token_latency_seconds_count"] == 2
    assert found["inter_token_latency_seconds_sum"] == 1.5
    assert found['inter_token_latency_seconds_bucket{le="0.4"}'] == 0
    assert found['inter_token_latency_seconds_bucket{le="0.5"}'] == 1
    assert found['inter_token_latency_seconds_bucket{le="+Inf"}'] == 2


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_call_that_goes_at_any_stage_leaves_no_gauge_behind(stage: int) -> None:
    meters = Meters()
    call = meters.received(0, 30)
    if stage > 0:
        call.admitted()
    if stage > 1:
        call.first_token(1)
        call.first_token(2)
    call.finished(S, ABORT, 0)
    call.finished(S, LENGTH, 9)
    call.first_token(S)
    assert (meters.waiting, meters.running) == (0, 0)
    assert meters.finished == {"stop": 0, "length": 0, "abort": 1, "error": 0}
    assert sum(meters.ttft_s.counts) == (stage > 1)


def test_what_the_engine_says_is_shown_as_it_is() -> None:
    meters = Meters()
    meters.kv_cache_usage, meters.preemptions = 0.25, 3
    meters.prefix_cache(100, 60)
    found = samples(render(meters, "tiny"))
    assert (found["kv_cache_usage_perc"], found["num_preemptions_total"]) == (0.25, 3)
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (100, 60)


def test_a_model_of_any_name_leaves_the_page_well_formed() -> None:
    assert samples(render(Meters(), 'a"b\\c\nd é'))


def test_large_counts_keep_all_their_digits() -> None:
    meters = Meters()
    meters.prompt_tokens = 123_456_789_012_345
    assert "123456789012345" in render(meters, "tiny")
