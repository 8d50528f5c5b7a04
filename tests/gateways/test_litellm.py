"""`tailgauge` against LiteLLM's proxy in front of simulated endpoints. `make gateways` runs it.

Four combinations: chat completions and Messages, each in front of an OpenAI-compatible engine and of Anthropic's API;
where the two differ LiteLLM translates. The endpoint's log says what was done, and the official SDK, on the same answers,
what LiteLLM made of it. Draws of the endpoint depend on a call's id without the run, and LiteLLM passes ids on, so that an
answer can be had again.
"""

from __future__ import annotations

import io
import json
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
from gateways.litellm_proxy import KEY_VARIABLE, LiteLLM, program, serving
from run_folders.run_data import RunData, assert_conserved
from starting.command import run_command, variant
from starting.endpoint import endpoint
from starting.programs import TAILGAUGE

if TYPE_CHECKING:
    import anthropic
    import openai

CHAT_OPENAI = "openai-openai"  # route - backend
CHAT_ANTHROPIC = "openai-anthropic"
MESSAGES_OPENAI = "anthropic-openai"
MESSAGES_ANTHROPIC = "anthropic-anthropic"
COMBINATIONS = (CHAT_OPENAI, CHAT_ANTHROPIC, MESSAGES_OPENAI, MESSAGES_ANTHROPIC)

ANSWER = 12  # tokens
FAULTS = {
    "refused": "kind=refused at_chunk=4",
    "filtered": "kind=filtered at_chunk=4",
    "aborted": "kind=aborted at_chunk=4",
    "no_reason": "kind=no_finish_reason at_chunk=4",
    "short": "kind=short at_chunk=4",
    "cut": "kind=cut at_chunk=4",
    "busy": "kind=status status=529",
    "limited": "kind=status status=429 retry_after_s=3",
    "broken": "kind=status status=500",
    "busy_inside": "kind=error_event status=529",
    "limited_inside": "kind=error_event status=429",
    "busy_behind": "kind=error_event status=529 at_chunk=4",
    "wrapped": "kind=error_event status=502 shape=wrapped",
}
SHARE = 0.05  # of the calls, of each fault
LIMITS = {"rpm": 300, "itpm": 600_000, "otpm": 300_000}
BURST = 8  # requests
SEED = 6  # no fault meets a preflight
ENDPOINTS: dict[str, list[str]] = {
    "ends": [
        *("natural.share=0.3", "natural.tokens=5", "ttft_ms=20", "chunk_gap_ms=2"),
        *(f"faults.{name}.share={SHARE}" for name in FAULTS),
        *(f"faults.{name}.{text}" for name, texts in FAULTS.items() for text in texts.split()),
    ],
    "limits": [
        f"limits.burst={BURST}",
        *(f"limits.{name}={value}" for name, value in LIMITS.items()),
    ],
    "automatic": ["cache.mode=automatic"],
    "marked": ["cache.mode=marked"],
}
LIFETIMES = {"openai": "30m", "anthropic": "5m"}

# The class of what the endpoint did.
CLASSES = {
    "limit": "ok",  # the plan's output_tokens
    "itself": "ok",
    "refused": "refused",
    "filtered": "filtered",
    "aborted": "aborted",
    "no_finish_reason": "aborted",
    "short": "cut",
    "cut": "truncated",
    "status 429": "rate_limited",
    "status 500": "server_error",
    "status 529": "overloaded",
    "error 429": "rate_limited",
    "error 502": "server_error",
    "error 529": "overloaded",
    "error 529 behind content": "stream_error",
}
# What the official SDK reads of it behind LiteLLM, by combination.
READINGS = {
    "limit": ("length", "length", "max_tokens", "max_tokens"),
    "itself": ("stop", "stop", "end_turn", "end_turn"),
    "refused": ("stop, empty", "content_filter for refusal", "end_turn, empty", "refusal"),
    "filtered": ("content_filter", "content_filter", "refusal", "content_filter"),
    "aborted": ("stop", "stop", "end_turn", "abort"),
    "no_finish_reason": ("stop", "stop", "end_turn", "no reason"),
    "short": ("length early", "length early", "max_tokens early", "max_tokens early"),
    "cut": ("stop", "stop", "end_turn", "no end"),
    "status 429": ("HTTP 429",) * 4,
    "status 500": ("HTTP 500",) * 4,
    "status 529": ("HTTP 503", "HTTP 500", "HTTP 503", "HTTP 500"),
    "error 429": ("error 500", "HTTP 500", "error api_error", "error rate_limit_error"),
    "error 502": ("error 500", "stop, empty", "error api_error", "no end"),
    "error 529": ("error 500", "HTTP 500", "error api_error", "error overloaded_error"),
    "error 529 behind content": (
        *("error 500 behind content", "error internal_server_error behind content"),
        *("error api_error behind content", "error overloaded_error behind content"),
    ),
}
# The class of each reading.
MEANINGS = {
    **dict.fromkeys(("length", "stop", "end_turn", "max_tokens"), "ok"),
    **dict.fromkeys(("stop, empty", "end_turn, empty"), "empty"),
    **dict.fromkeys(("length early", "max_tokens early"), "cut"),
    **dict.fromkeys(("refusal", "content_filter for refusal"), "refused"),
    "content_filter": "filtered",
    **dict.fromkeys(("abort", "no reason"), "aborted"),
    "no end": "truncated",
    **dict.fromkeys(("HTTP 429", "error rate_limit_error"), "rate_limited"),
    **dict.fromkeys(("HTTP 503", "error overloaded_error"), "overloaded"),
    **dict.fromkeys(("HTTP 500", "error 500", "error api_error"), "server_error"),
}
# What we read and the SDK does not: it passes over events without a name.
BEYOND_SDK = ("error 502", MESSAGES_ANTHROPIC)
WITHOUT_MARKS = (CHAT_ANTHROPIC, MESSAGES_OPENAI)  # LiteLLM translates no marks of a cache
# Ends whose usage the endpoint sent. Of others LiteLLM counts itself, with another tokenizer.
COUNTED = ("limit", "itself", "refused", "filtered", "aborted", "no_finish_reason", "short")


@dataclass(frozen=True)
class Result:
    """A run through the proxy, and the endpoint's log of it."""

    run: RunData
    report: dict[str, Any]
    log: pd.DataFrame

    @cached_property
    def attempts(self) -> pd.DataFrame:
        """Attempts, those of the preflight too, each with what the endpoint did."""
        log = self.log.assign(deed=[_deed(row) for row in self.log.itertuples()])
        keys = ["request_id", "leg", "attempt"]
        rows = self.run.table("attempts")
        joined = rows.merge(
            log, on=keys, how="outer", suffixes=("", "_log"), validate="1:1", indicator=True
        )
        assert set(joined["_merge"]) == {"both"}
        return joined


def _deed(row):
    """Return what the endpoint did: an overload of chat completions has the status 503."""
    status = 529 if row.error_status == 503 else row.error_status
    if row.fault == "status" or row.status != 200:
        return f"status {status:.0f}"
    if row.fault == "error_event":
        return f"error {status:.0f}" + (" behind content" if len(row.chunk_sent_at_ns) else "")
    if pd.isna(row.fault):
        return "limit" if row.stop_reason in {"length", "max_tokens"} else "itself"
    return str(row.fault)


@dataclass(frozen=True)
class Reading:
    """What the official SDK reads of an answer."""

    text: str  # a value of READINGS
    content: str
    output_tokens: int | None = None


@pytest.fixture(scope="module")
def endpoints():
    """Simulated endpoints by name."""
    program()
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                endpoint(f"--seed={SEED}", *(f"--set={text}" for text in sets))
            ).url
            for name, sets in ENDPOINTS.items()
        }


@pytest.fixture(scope="module")
def proxy(endpoints, tmp_path_factory):
    """One proxy for all."""
    with serving(tmp_path_factory.mktemp("litellm"), endpoints) as running:
        yield running


@pytest.fixture(scope="module")
def runs(proxy, endpoints, tmp_path_factory):
    """`runs("ends")`: the run of each combination, made once."""
    made: dict[str, dict[str, Result] | None] = {}

    def results(name: str) -> dict[str, Result]:
        if name not in made:
            made[name] = None
            made[name] = _run(name, proxy, endpoints, tmp_path_factory.mktemp(name))
        found = made[name]
        assert found is not None, f"the runs of {name} failed, for an earlier test"
        return found

    return results


CACHED = [
    *("arrival.rate_per_s=5", "stages.duration_s=6", "traffic.assistant.prompt_tokens=40"),
    *("traffic.assistant.output_tokens=8", "traffic.assistant.cache.prefixes=2"),
    "traffic.assistant.cache.system_tokens=1500",
]
SCENARIOS: dict[str, tuple[str, list[str]]] = {
    "ends": (
        "streaming",
        [
            *("arrival.rate_per_s=10", "stages.duration_s=16", "stop.min_completed=0"),
            *("traffic.chat.prompt_tokens=60", f"traffic.chat.output_tokens={ANSWER}"),
        ],
    ),
    "limits": (
        "streaming",
        [
            *("arrival.rate_per_s=9", "stages.duration_s=8", "stop.min_completed=0"),
            *("traffic.chat.prompt_tokens=60", f"traffic.chat.output_tokens={ANSWER}"),
            *("traffic.chat.retry.policy=polite", "traffic.chat.retry.base_s=0.1"),
        ],
    ),
    "marked": ("cached", CACHED),
    "automatic": ("cached", [*CACHED, "traffic.assistant.cache.breakpoints=[]"]),
}


def _run(name: str, proxy: LiteLLM, endpoints: dict[str, str], folder: Path) -> dict[str, Result]:
    """Run a scenario in each combination, one after the other."""
    scenario, sets = SCENARIOS[name]
    files = []
    for combination in COMBINATIONS:
        route, backend = combination.split("-")
        target = {
            "url": proxy.url,
            "protocol": route,
            "model": f"{name}-{backend}",
            "api_key_env": KEY_VARIABLE,
        }
        changes = [f"target.{key}={value}" for key, value in target.items()]
        if scenario == "cached":
            changes.append(f"traffic.assistant.cache.ttl={LIFETIMES[route]}")
        files.append(variant(folder, scenario, *changes, *sets, name=combination))
    line = [TAILGAUGE, "run", *files, "--seed=7", "--json", f"--out={folder}"]
    done = run_command(line, 240, env={KEY_VARIABLE: proxy.key})
    summaries = [json.loads(text) for text in done.stdout.splitlines()]
    assert len(summaries) == len(COMBINATIONS), done.stderr
    results = {}
    for combination, summary in zip(COMBINATIONS, summaries, strict=True):
        run = RunData(Path(summary["run_dir"]))
        report = json.loads((folder / "reports" / summary["run_id"] / "report.json").read_text())
        results[combination] = Result(run, report, _server_log(endpoints[name], summary["run_id"]))
    return results


def _server_log(url: str, run_id: str) -> pd.DataFrame:
    with urllib.request.urlopen(
        f"{url}/tailgauge/server-log?run={run_id}&settled", timeout=30
    ) as response:
        return pq.read_table(io.BytesIO(response.read())).to_pandas(ignore_metadata=True)


# --- how answers end --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_each_class_is_that_of_what_the_endpoint_did_as_far_as_litellm_passes_it_on(
    runs, combination
):
    """Its answer may say something else, to the SDK as well: an unknown reason becomes `stop`, so does a stream that was cut."""
    attempts = runs("ends")[combination].attempts
    column = COMBINATIONS.index(combination)
    expected = {deed: _meaning(readings[column]) for deed, readings in READINGS.items()}
    if combination == BEYOND_SDK[1]:
        expected[BEYOND_SDK[0]] = CLASSES[BEYOND_SDK[0]]

    found = {deed: set(rows) for deed, rows in attempts.groupby("deed")["ended"]}
    assert found == {deed: {expected[deed]} for deed in CLASSES}


def _meaning(reading: str) -> str:
    return "stream_error" if reading.endswith("behind content") else MEANINGS[reading]


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_the_official_sdk_reads_the_same(runs, proxy, combination):
    """Two answers of each kind once more, by the ids of their calls."""
    rows = runs("ends")[combination].attempts.groupby("deed").head(2)
    route, backend = combination.split("-")
    read = READERS[route]
    names = [f"again/{row.request_id}/{row.leg}/{row.attempt}" for row in rows.itertuples()]
    with ThreadPoolExecutor(6) as pool:
        readings = list(pool.map(lambda name: read(proxy, f"ends-{backend}", name), names))

    column = COMBINATIONS.index(combination)
    for row, reading in zip(rows.itertuples(), readings, strict=True):
        assert (row.deed, reading.text) == (row.deed, READINGS[row.deed][column])
        if row.deed in COUNTED:
            assert (row.deed, row.output_tokens) == (row.deed, reading.output_tokens)
    with_text = [reading for reading in readings if reading.content]
    assert len(with_text) > len(readings) / 3


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_an_answer_has_the_stop_reason_that_arrived(runs, combination):
    attempts = runs("ends")[combination].attempts
    column = COMBINATIONS.index(combination)
    found = {deed: set(rows.dropna()) for deed, rows in attempts.groupby("deed")["stop_reason"]}

    for deed in COUNTED:
        reading = READINGS[deed][column]
        reason = (
            "refusal" if reading.endswith("for refusal") else reading.split(",")[0].split(" ")[0]
        )
        assert (deed, found[deed]) == (deed, {reason} if reading != "no reason" else set())


@pytest.mark.parametrize("combination", [CHAT_ANTHROPIC, MESSAGES_ANTHROPIC])
def test_a_refusal_has_the_category_that_the_endpoint_names(runs, combination):
    attempts = runs("ends")[combination].attempts
    refusals = attempts[attempts["deed"] == "refused"]

    assert set(refusals["stop_details"]) == {"general_harms"}


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_tokens_are_those_that_the_endpoint_counted(runs, combination):
    attempts = runs("ends")[combination].attempts
    rows = attempts[attempts["deed"].isin(COUNTED)]

    assert len(rows) > len(attempts) / 2
    assert list(rows["input_tokens"]) == list(rows["input_tokens_log"])
    assert list(rows["output_tokens"]) == list(rows["output_tokens_log"])
    assert rows["usage_marks"].isna().all()


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_request_is_accounted_for(runs, combination):
    assert_conserved(runs("ends")[combination].run)


# --- the preflight ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("name", ["limits", "marked", "automatic"])
def test_the_preflight_accepts_the_proxy(runs, name, combination):
    calls = runs(name)[combination].run.facts["preflight"]

    assert {call["ended"] for call in calls} == {"ok"}


# --- limits -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_calls_beyond_the_limit_are_rate_limited_as_the_endpoint_logs_them(runs, combination):
    attempts = runs("limits")[combination].attempts
    refused = attempts["limit_kind_log"].notna()

    assert refused.sum() >= 5
    assert list(attempts["ended"] == "rate_limited") == list(refused)


# The limits that reach the client, by kind and per minute: LiteLLM passes no headers on with Messages of an engine.
READABLE = {
    CHAT_OPENAI: {"requests": LIMITS["rpm"], "tokens": LIMITS["itpm"]},
    CHAT_ANTHROPIC: {
        "requests": LIMITS["rpm"],
        "input_tokens": LIMITS["itpm"],
        "output_tokens": LIMITS["otpm"],
    },
    MESSAGES_OPENAI: {},
}
READABLE[MESSAGES_ANTHROPIC] = READABLE[CHAT_ANTHROPIC]


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_the_report_has_the_limits_of_the_endpoint(runs, combination):
    rate_limits = runs("limits")[combination].report["rate_limits"]
    buckets = {bucket["kind"]: bucket for bucket in rate_limits["buckets"]}

    assert rate_limits["binding"]["kind"] == "requests"
    assert set(buckets) == {"requests", *READABLE[combination]}
    for kind, limit in READABLE[combination].items():
        remaining = buckets[kind]["remaining"]
        assert (kind, remaining["limit"], remaining["window_s"]) == (kind, limit, 60)
        assert buckets[kind]["rate"]["value"] * 60 == limit
    for estimate, actual in (
        (buckets["requests"]["burst"], BURST),
        (buckets["requests"]["rate"], LIMITS["rpm"] / 60),
    ):
        assert estimate["low"] / 1.25 <= actual <= estimate["high"] * 1.25  # more than its 95%


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_header_and_field_is_understood(runs, combination):
    for name in ("ends", "limits", "marked"):
        assert runs(name)[combination].attempts["not_understood"].isna().all()


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_retries_wait_as_long_as_litellm_says(runs, combination):
    """It says nothing with Messages: its 429s have no header of the provider's."""
    attempts = runs("limits")[combination].attempts
    refused = attempts[attempts["ended"] == "rate_limited"]
    waits = {} if combination.startswith("anthropic") else {1.0}
    sources = {"llm_provider-retry-after"} if waits else set()

    assert set(refused["retry_after_s"].dropna()) == set(waits)
    assert set(refused["retry_after_from"].dropna()) == sources
    retries = attempts[attempts["cause"] == "retry"]
    failed = refused.set_index(["request_id", "attempt"])["ended_at_ns"]
    paused_s = [
        (row.dispatched_at_ns - failed[row.request_id, row.of_attempt]) / 1e9
        for row in retries.itertuples()
    ]
    assert len(paused_s) >= 5
    assert min(paused_s) >= max(waits, default=0)


# --- caches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("name", ["marked", "automatic"])
def test_tokens_read_from_the_cache_and_written_to_it_are_those_of_the_endpoint(
    runs, name, combination
):
    attempts = runs(name)[combination].attempts
    read = attempts["cache_read_tokens"].astype("Int64")
    created = attempts["cache_created_tokens"].astype("Int64")

    assert set(attempts["ended"]) == {"ok"}
    assert (read.sum() > 0) == (name == "automatic" or combination not in WITHOUT_MARKS)
    assert list(attempts["cache_read_input_tokens"]) == list(read)
    assert list(attempts["cache_creation_input_tokens"]) == list(created)
    assert list(attempts["input_tokens"]) == list(attempts["input_tokens_log"])


# --- LiteLLM itself ---------------------------------------------------------------------------------------------


def test_it_called_nobody_but_the_endpoints(runs, proxy):
    runs("ends")

    assert proxy.strangers == []


def test_its_key_is_in_no_file_of_a_run(runs, proxy):
    folder = runs("ends")[CHAT_OPENAI].run.path.parents[1]
    files = [path for path in folder.rglob("*") if path.is_file()]

    assert len(files) > 20
    assert [path for path in files if proxy.key.encode() in path.read_bytes()] == []


# --- the official SDKs ------------------------------------------------------------------------------------------


QUESTION = [{"role": "user", "content": "river stone winter garden"}]


def _read_chat(proxy: LiteLLM, model: str, call_id: str) -> Reading:
    import openai

    with openai.OpenAI(
        base_url=f"{proxy.url}/v1", api_key=proxy.key, max_retries=0, timeout=30
    ) as client:
        return _completion(client, model, call_id)


def _completion(client: openai.OpenAI, model: str, call_id: str) -> Reading:
    import openai

    content = ""
    reason = None
    provider_reason = None
    tokens = None
    try:
        stream = client.chat.completions.create(
            model=model,
            max_tokens=ANSWER,
            messages=QUESTION,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-client-request-id": call_id},
        )
        for chunk in stream:
            if chunk.usage:
                tokens = chunk.usage.completion_tokens
            for choice in chunk.choices:
                content += choice.delta.content or ""
                reason = choice.finish_reason or reason
                fields = getattr(choice.delta, "provider_specific_fields", None) or {}
                provider_reason = fields.get("stop_reason") or provider_reason
    except openai.APIStatusError as error:
        return Reading(f"HTTP {error.status_code}", content)
    except openai.APIError as error:
        return Reading(_error(error.type or error.code, content), content)
    return Reading(_end(reason, provider_reason, content, tokens), content, tokens)


def _read_message(proxy: LiteLLM, model: str, call_id: str) -> Reading:
    import anthropic

    with anthropic.Anthropic(
        base_url=proxy.url, api_key=proxy.key, max_retries=0, timeout=30
    ) as client:
        return _message(client, model, call_id)


def _message(client: anthropic.Anthropic, model: str, call_id: str) -> Reading:
    import anthropic

    content = ""
    has_end = False
    try:
        with client.messages.stream(
            model=model,
            max_tokens=ANSWER,
            messages=QUESTION,
            extra_headers={"x-client-request-id": call_id},
        ) as stream:
            for event in stream:
                content += event.text if event.type == "text" else ""
                has_end = has_end or event.type == "message_stop"
            message = stream.get_final_message()
    except anthropic.APIStatusError as error:
        if error.status_code != 200:
            return Reading(f"HTTP {error.status_code}", content)
        return Reading(_error(error.body["error"]["type"], content), content)
    if not has_end:
        return Reading("no end", content)
    tokens = message.usage.output_tokens
    return Reading(_end(message.stop_reason, None, content, tokens), content, tokens)


READERS: dict[str, Callable[[LiteLLM, str, str], Reading]] = {
    "openai": _read_chat,
    "anthropic": _read_message,
}


def _error(name: str | None, content: str) -> str:
    return f"error {name}" + (" behind content" if content else "")


def _end(reason: str | None, provider_reason: str | None, content: str, tokens: int | None) -> str:
    if reason is None:
        return "no reason"
    if provider_reason is not None:
        return f"{reason} for {provider_reason}"
    if not content:
        return f"{reason}, empty"
    if reason in {"length", "max_tokens"} and tokens is not None and tokens < ANSWER:
        return f"{reason} early"
    return reason
