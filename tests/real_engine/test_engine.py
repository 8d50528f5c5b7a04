"""The engine is a usable witness: it answers both protocols through the official SDKs and counts what it sends."""

import json

import pytest

CHAT = {
    "messages": [{"role": "user", "content": "river stone winter garden"}],
    "max_tokens": 24,
    "stream": True,
}

ANTHROPIC = """
import sys, anthropic
client = anthropic.Anthropic(base_url=sys.argv[1], api_key="unused", max_retries=0)
with client.messages.stream(model="tiny", max_tokens=24, messages=[{"role": "user", "content": "river stone"}]) as stream:
    text = "".join(stream.text_stream)
    print(stream.get_final_message().usage.output_tokens, len(text) > 0)
"""

OPENAI = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="unused", max_retries=0)
stream = client.chat.completions.create(
    model="tiny", max_tokens=24, messages=[{"role": "user", "content": "river stone"}],
    stream=True, stream_options={"include_usage": True},
)
chunks = list(stream)
text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
print(chunks[-1].usage.completion_tokens, len(text) > 0)
"""


@pytest.mark.parametrize("script", [ANTHROPIC, OPENAI], ids=["anthropic", "openai"])
def test_the_official_sdk_streams_from_it_and_both_count_the_same_tokens(engine, command, script):
    result = command(["python", "-c", script, engine.url], timeout_s=60)

    assert result.stdout.split() == ["24", "True"], result.stderr
    assert engine.counters()["tokens_predicted_total"] == 24


def test_its_log_times_each_request_as_the_last_chunk_does(engine):
    """So the log can stand for the `timings` object, which the harness does not keep."""
    timings = []
    for _ in range(3):
        body = engine.post(
            "/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}}
        )
        last = [line for line in body.splitlines() if line.startswith("data: {")][-1]
        timings.append(json.loads(last.removeprefix("data: "))["timings"])

    served = engine.served(3)
    assert [(s.prompt_tokens, s.predicted_tokens) for s in served] == [
        (t["prompt_n"], t["predicted_n"]) for t in timings
    ]
    assert [s.prompt_ms for s in served] == pytest.approx(
        [t["prompt_ms"] for t in timings], abs=0.01
    )
    assert [s.predicted_ms for s in served] == pytest.approx(
        [t["predicted_ms"] for t in timings], abs=0.01
    )


def test_its_log_and_its_counters_agree(engine):
    for _ in range(3):
        engine.post("/v1/messages", {**CHAT, "model": "tiny"})

    counters, served = engine.counters(), engine.served(3)
    assert counters["tokens_predicted_total"] == sum(s.predicted_tokens for s in served) == 72
    generating_ms = sum(s.predicted_ms for s in served)
    assert counters["tokens_predicted_seconds_total"] * 1e3 == pytest.approx(
        generating_ms, abs=0.05
    )


@pytest.mark.parametrize("engine", [{"parallel": 2, "ctx": 8192}], indirect=True)
def test_it_has_as_many_slots_as_a_test_asks_for(engine):
    assert len(json.loads(engine.get("/slots"))) == 2
