"""The unmodified SDKs on the routes beside the calls: counting, models, batches; and the meters after calls."""

from __future__ import annotations

import http.client
import json
import time
import urllib.request

import anthropic
import openai
import pytest

HELLO = [{"role": "user", "content": "hello world"}]  # 11 bytes: 3 tokens
TOOL = {"name": "look", "input_schema": {"type": "object"}}


def params(**fields):
    return {"model": "tiny", "max_tokens": 3, "messages": HELLO} | fields


def until(true):
    """The first value that is true."""
    for _ in range(400):
        if value := true():
            return value
        time.sleep(0.02)
    raise AssertionError("never became true")


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = response.read().decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{")
    )


def test_counting_says_what_a_call_would_use(quick):
    with quick.anthropic() as claude:
        for fields in ({}, {"system": "abcde"}, {"tools": [TOOL]}):
            counted = claude.messages.count_tokens(model="tiny", messages=HELLO, **fields)
            answered = claude.messages.create(**params(**fields))
            assert counted.input_tokens == answered.usage.input_tokens
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            claude.messages.count_tokens(model="tiny", messages=[])
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            claude.messages.count_tokens(
                model="tiny", messages=HELLO, extra_body={"temperature": 0}
            )


def test_both_sdks_read_a_model_and_miss_one_that_is_not_there(quick):
    with quick.anthropic() as claude, quick.openai() as chat:
        info = claude.models.retrieve("tiny")
        assert (info.id, info.type, info.display_name) == ("tiny", "model", "tiny")
        assert info.created_at.year == 1970
        model = chat.models.retrieve("tiny")
        assert (model.id, model.object, model.owned_by, model.created) == (
            "tiny",
            "model",
            "tailgauge",
            0,
        )
        with pytest.raises(anthropic.NotFoundError) as missed:
            claude.models.retrieve("other")
        assert missed.value.type == "not_found_error"
        with pytest.raises(openai.NotFoundError) as unknown:
            chat.models.retrieve("other")
        assert (unknown.value.code, unknown.value.param) == ("model_not_found", "model")


def test_both_sdks_list_the_model_and_call_any(quick):
    with quick.anthropic() as claude, quick.openai() as chat:
        assert (
            [m.id for m in claude.models.list()] == [m.id for m in chat.models.list()] == ["tiny"]
        )
        for model in ("any/name", "tiny-é-漢字-🦊|\u2028\u0085-\u00a0"):
            with claude.messages.stream(**params(model=model)) as stream:
                assert stream.get_final_message().model == model
            chunks = chat.chat.completions.create(**params(model=model), stream=True)
            assert {chunk.model for chunk in chunks} == {model}


def test_a_call_of_zero_tokens_answers_nothing(quick):
    with quick.anthropic() as claude:
        message = claude.messages.create(**params(max_tokens=0))
        assert message.content == []
        assert message.stop_reason == "max_tokens"
        assert (message.usage.input_tokens, message.usage.output_tokens) == (3, 0)
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            claude.messages.create(**params(max_tokens=0), stream=True)


def test_the_version_of_the_api_decides_on_sampling(quick):
    with quick.anthropic() as claude:
        with pytest.raises(anthropic.BadRequestError, match="temperature") as caught:
            claude.messages.create(**params(), extra_body={"temperature": 0.5})
        assert caught.value.type == "invalid_request_error"
        older = {"anthropic-version": "2023-06-01"}
        answer = claude.messages.create(
            **params(), extra_body={"temperature": 0.5}, extra_headers=older
        )
        assert answer.usage.output_tokens == 3


def test_a_batch_runs_to_its_end(quick):
    requests = [{"custom_id": f"r-{i}", "params": params(max_tokens=i + 1)} for i in range(20)]
    requests.append({"custom_id": "streamed", "params": params(stream=True)})
    requests.append({"custom_id": "empty", "params": params(max_tokens=0)})
    with quick.anthropic() as claude:
        batch = claude.messages.batches.create(requests=requests)
        assert batch.processing_status == "in_progress"
        assert batch.request_counts.processing == 22
        assert batch.results_url is None
        ended = until(lambda: (b := claude.messages.batches.retrieve(batch.id)).ended_at and b)
        assert (ended.request_counts.succeeded, ended.request_counts.errored) == (20, 2)
        assert ended.request_counts.processing == 0
        results = {
            line.custom_id: line.result for line in claude.messages.batches.results(batch.id)
        }
        assert len(results) == 22
        for i in range(20):
            message = results[f"r-{i}"].message
            assert (message.usage.output_tokens, message.usage.service_tier) == (i + 1, "batch")
            assert len(message.content[0].text) == 4 * (i + 1)
        assert results["streamed"].error.error.type == "invalid_request_error"
        assert "stream" in results["streamed"].error.error.message
        with pytest.raises(anthropic.NotFoundError):
            claude.messages.batches.retrieve("other")


@pytest.mark.slow
def test_a_large_batch_is_taken_in_and_given_back_whole(quick):
    requests = [
        {"custom_id": str(i), "params": params(messages=[{"role": "user", "content": "x" * 80}])}
        for i in range(20_000)
    ]
    with quick.anthropic() as claude:
        batch = claude.messages.batches.create(requests=requests)
        until(lambda: claude.messages.batches.retrieve(batch.id).processing_status == "ended")
        assert (
            sum(
                line.result.type == "succeeded"
                for line in claude.messages.batches.results(batch.id)
            )
            == 20_000
        )


@pytest.mark.slow
def test_every_route_wants_the_key_but_the_meters(serve):
    endpoint = serve(api_key="secret")
    with endpoint.anthropic(api_key="wrong") as claude, endpoint.openai(api_key="wrong") as chat:
        for call in (
            lambda: claude.messages.create(**params()),
            lambda: claude.models.retrieve("tiny"),
            lambda: claude.messages.count_tokens(model="tiny", messages=HELLO),
            lambda: claude.messages.batches.create(requests=[]),
            lambda: claude.messages.batches.retrieve("x"),
        ):
            with pytest.raises(anthropic.AuthenticationError) as refused:
                call()
            assert refused.value.type == "authentication_error"
        for call in (chat.models.list, lambda: chat.chat.completions.create(**params())):
            with pytest.raises(openai.AuthenticationError):
                call()
    with endpoint.anthropic(api_key="secret") as claude, endpoint.openai(api_key="secret") as chat:
        assert claude.messages.create(**params()).usage.output_tokens == 3
        assert chat.models.list().data
    assert metric(endpoint.url, "num_requests_running") == 0


@pytest.mark.slow
def test_the_meters_follow_the_calls(serve):
    endpoint = serve({"ttft_ms": 1.0, "chunk_gap_ms": 5.0})
    with endpoint.anthropic() as claude:
        for stream in (False, True, True):
            answer = claude.messages.create(**params(max_tokens=4), stream=stream)
            if stream:
                list(answer)
        with pytest.raises(anthropic.BadRequestError):
            claude.messages.create(**params(max_tokens=-1))
    url = endpoint.url
    until(lambda: metric(url, "request_success_total") == 3)
    assert metric(url, "generation_tokens_total") == 12
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request("POST", "/v1/messages", json.dumps(params(max_tokens=10_000, stream=True)))
    response = connection.getresponse()
    assert response.read(10)
    assert metric(url, "num_requests_running") == 1
    response.close()
    connection.close()
    until(lambda: metric(url, "request_success_total") == 4)
    assert metric(url, "num_requests_running") == metric(url, "num_requests_waiting") == 0
