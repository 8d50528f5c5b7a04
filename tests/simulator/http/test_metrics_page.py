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
        rest = [
            label
            for label in re.findall(LABEL, labels)
            if not re.match("engine=|model_name=", label)
        ]
        key = name.removeprefix("vllm:") + (f"{{{','.join(rest)}}}" if rest else "")
        assert key not in found
        found[key] = float(value)
    return found


def test_every_series_is_there_from_the_start():
    found = samples(render(Meters(), "tiny"))
    assert set(found.values()) == {0.0}
    assert {re.sub(r"\{.*", "", key) for key in found} == {
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "generation_tokens_total",
        "request_success_total", "prefix_cache_queries_total", "prefix_cache_hits_total",
    }  # fmt: skip


@pytest.mark.parametrize("is_admitted", [False, True])
def test_a_call_waits_runs_and_is_counted_once(is_admitted):
    meters = Meters()
    call = meters.received()
    assert (meters.waiting, meters.running) == (1, 0)
    if is_admitted:
        call.admitted()
        call.admitted()
        assert (meters.waiting, meters.running) == (0, 1)
    call.finished(LENGTH, 5)
    call.finished(ABORT, 9)
    call.admitted()
    found = samples(render(meters, "tiny"))
    assert (meters.waiting, meters.running) == (0, 0)
    assert found["generation_tokens_total"] == 5
    assert found['request_success_total{finished_reason="length"}'] == 1
    assert found['request_success_total{finished_reason="abort"}'] == 0


def test_what_the_engine_says_is_shown_as_it_is():
    meters = Meters()
    meters.kv_cache_usage = 0.25
    meters.prefix_cache(100, 123_456_789_012_345)
    page = render(meters, "tiny")
    found = samples(page)
    assert (found["kv_cache_usage_perc"], found["prefix_cache_queries_total"]) == (0.25, 100)
    assert "123456789012345" in page


def test_a_model_of_any_name_leaves_the_page_well_formed():
    assert samples(render(Meters(), 'a"b\\c\nd é'))
