"""The official SDKs accept what the endpoint says, streamed and whole, answers and errors."""

import anthropic
import openai
import pytest

from tailgauge.simulator.behaviours.tokens import text

HELLO = [{"role": "user", "content": "hello world"}]  # 11 bytes: 3 tokens


@pytest.fixture(scope="module")
def claude(endpoint):
    with endpoint.anthropic() as client:
        yield client


@pytest.fixture(scope="module")
def chat(endpoint):
    with endpoint.openai() as client:
        yield client


def test_anthropic_whole(claude):
    message = claude.messages.create(model="tiny", max_tokens=7, messages=HELLO, system="abcd")
    assert message.content[0].text == text(7).decode()
    assert (message.usage.input_tokens, message.usage.output_tokens) == (4, 7)
    assert message.stop_reason == "max_tokens"


def test_anthropic_streamed(claude):
    with claude.messages.create(model="tiny", max_tokens=7, messages=HELLO, stream=True) as stream:
        events = list(stream)
        assert stream.response.headers["request-id"].startswith("req_")
    deltas = [e.delta.text for e in events if e.type == "content_block_delta"]
    assert len(deltas) == 7
    assert "".join(deltas) == text(7).decode()
    assert [e.type for e in events if e.type != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


def test_openai_whole(chat):
    answer = chat.chat.completions.create(model="tiny", max_completion_tokens=7, messages=HELLO)
    assert answer.choices[0].message.content == text(7).decode()
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 7)


def test_openai_streamed_without_usage_sends_none(chat):
    with chat.chat.completions.create(model="tiny", messages=HELLO, stream=True) as stream:
        chunks = list(stream)
    assert all(c.usage is None for c in chunks)
    assert sum(bool(c.choices[0].delta.content) for c in chunks) == 16


def test_a_bad_body_is_a_bad_request_error(claude, chat):
    with pytest.raises(anthropic.BadRequestError, match="max_tokens") as caught:
        claude.messages.create(model="tiny", max_tokens=-1, messages=HELLO)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id
    with pytest.raises(openai.BadRequestError, match="messages") as refused:
        chat.chat.completions.create(model="tiny", messages=[])
    assert refused.value.param == "messages"
