"""The page /metrics of an engine: what is taken from it, and that nothing a stranger sends does harm."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tailgauge.master.engine_metrics import (
    MAX_BYTES,
    EngineMetrics,
    TokenCount,
    parse_count,
    read,
)
from tailgauge.protocols.table import Target, is_self_hosted
from tailgauge.scenario.model import Scenario
from tailgauge.simulator.core.metrics import Meters, render

USAGE_HAS_IT = [{"cached_tokens": 0}]
LLAMA = """# HELP llamacpp:tokens_predicted_total Number of generation tokens processed.
# TYPE llamacpp:tokens_predicted_total counter
llamacpp:tokens_predicted_total 585
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing {calls}
llamacpp:requests_deferred 0
"""
VLLM = """vllm:num_requests_running{engine="0",model_name="a b } c"} 1.0
vllm:num_requests_running{engine="1",model_name="a b } c"} 2.0
vllm:num_requests_waiting{engine="0",model_name="a b } c"} 0.0
vllm:generation_tokens_total{engine="0",model_name="a b } c"} 1.5e+03
vllm:generation_tokens_total{engine="1",model_name="a b } c"} 20.0 1700000000000
"""


def test_both_engines_pages_are_read_and_replicas_summed():
    assert parse_count(LLAMA.format(calls=3)) == TokenCount("llama.cpp", 585, 3)
    assert parse_count(VLLM) == TokenCount("vLLM", 1520, 3)


def test_the_simulated_endpoints_own_page_is_one():
    meters = Meters()
    call = meters.received()
    call.admitted()
    assert parse_count(render(meters, 'odd "name"')) == TokenCount("vLLM", 0, 1, 0, 0, 0)
    call.finished("stop", 7)
    assert parse_count(render(meters, "tiny")) == TokenCount("vLLM", 7, 0, 0, 0, 1)


@pytest.mark.parametrize("page", [
    "", "<html>", "vllm:generation_tokens_total", VLLM.replace("1.5e+03", "NaN"), VLLM.replace("1.5e+03", "-4e+9"),
    VLLM.replace("1.5e+03", "1e999"), VLLM.replace("1.5e+03", "--"), LLAMA.format(calls="+"), "{" * 100_000, "\x00" * 50,
])  # fmt: skip
def test_what_is_no_such_page_is_nothing(page):
    assert parse_count(page) is None


def test_a_provider_and_the_embedded_endpoint_are_not_asked():
    assert is_self_hosted("http://127.0.0.1:8000/v1")
    assert not is_self_hosted("simulated")
    assert not is_self_hosted("https://api.anthropic.com")
    assert not is_self_hosted("https://api.openai.com/v1")


@contextmanager
def serving(*pages: tuple[int, bytes]) -> Iterator[tuple[str, list[Any]]]:
    """Address of a real server that answers with each page in turn, then with the last; and what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, dict(self.headers)))
            status, body = pages[min(len(asked), len(pages)) - 1]
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("location", "/metrics")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def page_of(calls: int) -> tuple[int, bytes]:
    return 200, LLAMA.format(calls=calls).encode()


def test_it_is_asked_at_the_root_and_without_a_key(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    with serving(page_of(0)) as (url, asked):
        assert read(Target(url=f"{url}/v1")) == TokenCount("llama.cpp", 585, 0)
    ((path, headers),) = asked
    assert path == "/metrics"
    assert "sk-secret" not in str(headers)
    assert not {"authorization", "x-api-key"} & {name.lower() for name in headers}


@pytest.mark.parametrize("answer", [
    (404, LLAMA.encode()), (302, b""), (500, b""), (200, b"x" * (MAX_BYTES + 1)), (200, b"\xff\xfe"),
])  # fmt: skip
def test_a_target_without_the_page_is_nothing(answer):
    with serving(answer) as (url, asked):
        assert read(Target(url=url)) is None
    assert len(asked) == 1


def test_nobody_there_is_nothing():
    with serving(page_of(0)) as (url, _):
        pass
    assert read(Target(url=url)) is None


def leaving(url: str, **more: Any) -> Scenario:
    cancel = {"share": 0.5, "after_chunks": 2}
    return Scenario.model_validate({
        "name": "left", "target": {"url": url}, "traffic": {"chat": {"cancel": cancel}}, **more,
    })  # fmt: skip


def test_it_counts_when_nothing_runs_any_more():
    waits: list[float] = []
    with serving(page_of(0), page_of(2), page_of(1), page_of(0)) as (url, asked):
        page, notes = EngineMetrics(leaving(url), waits.append), []
        page.begin(notes.append, USAGE_HAS_IT)
        assert page.facts()["engine_tokens"] is None
        page.end(notes.append)
    assert (len(asked), len(waits), notes) == (4, 2, [])
    assert page.facts() == {"engine_tokens": {"engine": "llama.cpp", "before": 585, "after": 585}}


def test_an_engine_that_does_not_come_to_rest_is_reported_and_its_count_not_used():
    with serving(page_of(0), page_of(1)) as (url, _):
        page, notes = EngineMetrics(leaving(url), lambda _: page.hurry()), []
        page.begin(notes.append, USAGE_HAS_IT)
        page.end(notes.append)
    assert page.facts() == {"engine_tokens": None}
    assert len(notes) == 1
    assert "its token counters are not used" in notes[0]


def test_it_is_asked_only_where_users_leave_and_one_target_answers():
    with serving(page_of(0)) as (url, asked):
        for scenario in (
            leaving(url, traffic={"chat": {}}), leaving(url, second_target={"url": url}), leaving("simulated"),
        ):  # fmt: skip
            page, notes = EngineMetrics(scenario, lambda _: None), []
            page.begin(notes.append, USAGE_HAS_IT)
            page.end(notes.append)
            assert (page.facts(), notes) == ({"engine_tokens": None}, [])
    assert asked == []


CACHE = """llamacpp:tokens_predicted_total 1
llamacpp:requests_processing 1
llamacpp:requests_deferred 0
llamacpp:prompt_tokens_total {new}
llamacpp:prompt_tokens_cached_total {cached}
"""


def test_cached_tokens_are_asked_for_where_usage_does_not_tell_without_waiting():
    pages = [
        (200, CACHE.format(new=new, cached=cached).encode())
        for new, cached in ((100, 7), (150, 957))
    ]
    with serving(*pages) as (url, asked):
        page, notes = (
            EngineMetrics(leaving(url, traffic={"chat": {}}), lambda _: pytest.fail("waited")),
            [],
        )
        page.begin(notes.append, [{}])
        page.end(notes.append)
    assert (len(asked), notes) == (2, [])
    found = {"engine": "llama.cpp", "prompt": 1000, "cached": 950}
    assert page.facts() == {"engine_tokens": None, "engine_cache": found}


def test_an_engine_without_the_counters_or_restarted_in_between_says_nothing_of_its_cache():
    for before, after in (((100, 7), (5, 5)), ((100, "NaN"), (150, 957))):
        pages = [
            (200, CACHE.format(new=new, cached=cached).encode()) for new, cached in (before, after)
        ]
        with serving(*pages) as (url, _):
            page = EngineMetrics(leaving(url, traffic={"chat": {}}), lambda _: None)
            page.begin(lambda _: None, [{}])
            page.end(lambda _: None)
        assert page.facts() == {"engine_tokens": None}


IDLE = CACHE.replace("requests_processing 1", "requests_processing 0")
HEDGES = {"pattern": "hedged", "hedge": {"policy": "fixed", "delay_ms": 50}}


def hedging(url: str, second: str | None = None) -> Scenario:
    tree: dict[str, Any] = {"name": "hedged", "target": {"url": url}, "traffic": {"chat": HEDGES}}
    if second is not None:
        tree["second_target"] = {"url": second}
        tree["traffic"] = {"chat": {**HEDGES, "hedge": {**HEDGES["hedge"], "target": "second"}}}
    return Scenario.model_validate(tree)


def idle(new: int, cached: int) -> tuple[int, bytes]:
    return 200, IDLE.format(new=new, cached=cached).encode()


@pytest.mark.parametrize("has_second", [False, True])
def test_where_calls_are_hedged_every_engine_is_asked_although_usage_has_the_cached_tokens(
    has_second,
):
    with (
        serving(idle(100, 7), idle(150, 957)) as (url, _),
        serving(idle(10, 0), idle(40, 5)) as (second, _),
    ):
        page = EngineMetrics(
            hedging(url, second if has_second else None), lambda _: pytest.fail("waited")
        )
        page.begin(lambda _: None, USAGE_HAS_IT)
        page.end(lambda _: None)
    work = [
        {"engine": "llama.cpp", "output": 0, "prompt": 1000, "cached": 950},
        {"engine": "llama.cpp", "output": 0, "prompt": 35, "cached": 5},
    ]

    assert page.facts() == {"engine_tokens": None, "engine_work": work[: 1 + has_second]}


def test_two_names_of_one_engine_are_one_and_an_engine_without_a_page_leaves_nothing():
    with serving(idle(100, 7), idle(150, 957)) as (url, asked):
        page = EngineMetrics(hedging(url, f"{url}/v1"), lambda _: None)
        page.begin(lambda _: None, USAGE_HAS_IT)
        page.end(lambda _: None)
    assert len(asked) == 2
    assert len(page.facts()["engine_work"]) == 1
    with serving(idle(100, 7)) as (url, _), serving((404, b"")) as (second, _):
        page = EngineMetrics(hedging(url, second), lambda _: None)
        page.begin(lambda _: None, USAGE_HAS_IT)
        page.end(lambda _: None)
    assert page.facts() == {"engine_tokens": None}


COMPLETED = """vllm:num_requests_running 0
vllm:num_requests_waiting 0
vllm:generation_tokens_total 5
vllm:request_success_total{{engine="0",finished_reason="stop"}} {stop}
vllm:request_success_total{{engine="0",finished_reason="length"}} 2.0
vllm:request_success_total{{engine="0",finished_reason="abort"}} 9.0
"""


def test_behind_a_gateway_only_the_calls_that_the_engine_completed_are_taken():
    pages = [(200, COMPLETED.format(stop=stop).encode()) for stop in (3, 10)]
    with serving(*pages) as (url, _):
        cancel = {"cancel": {"share": 0.5, "after_chunks": 2}}
        page = EngineMetrics(
            leaving(
                url, second_target={"url": url}, crossover={"a": "chat", "b": "other", "gateway": True},
                traffic={"chat": cancel, "other": {"target": "second", **cancel}},
            ),
            lambda _: None,
        )  # fmt: skip
        page.begin(lambda _: None, USAGE_HAS_IT)
        page.end(lambda _: None)
    assert page.facts() == {"engine_tokens": None, "engine_completed": 7}
