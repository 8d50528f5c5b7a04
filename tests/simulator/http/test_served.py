"""What an answer says of how it was served, and a search before its text, as the official SDKs read it."""

import json

import httpx2
import pytest
from simulator.http.conftest import HELLO, named
from simulator.http.test_ends import message

ASKED = {"model": "m", "max_tokens": 60, "messages": HELLO}


def chat_chunks(endpoint):
    """The chunks of a streamed completion."""
    body = {**ASKED, "stream": True}
    text = httpx2.post(f"{endpoint.url}/v1/chat/completions", json=body, timeout=10).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]


def test_an_answer_says_how_it_was_served(serve):
    endpoint = serve(
        'served.model="behind-the-alias"', 'served.service_tier="priority"', 'served.speed="fast"',
        'served.inference_geo="eu"',
    )  # fmt: skip
    for stream in (True, False):
        answer = message(endpoint, stream=stream)
        usage = answer.usage
        assert answer.model == "behind-the-alias"
        assert (usage.service_tier, usage.speed, usage.inference_geo) == ("priority", "fast", "eu")
    chunks = chat_chunks(endpoint)
    assert {(chunk["model"], chunk["service_tier"]) for chunk in chunks} == {
        ("behind-the-alias", "priority")
    }


def test_another_model_takes_over(serve):
    endpoint = serve("served.fallback=1.0", 'served.fallback_model="smaller"')
    for stream in (True, False):
        answer = endpoint.claude.beta.messages.create(**ASKED) if not stream else beta(endpoint)
        mark, text = answer.content
        assert (mark.type, mark.from_.model, mark.to.model) == ("fallback", "m", "smaller")
        assert text.text.startswith("sea sky")
        assert [(one.type, one.model) for one in answer.usage.iterations] == [
            ("message", "m"),
            ("fallback_message", "smaller"),
        ]
    chunks = chat_chunks(endpoint)
    assert {chunk["model"] for chunk in chunks} == {"smaller"}


def beta(endpoint):
    with endpoint.claude.beta.messages.stream(**ASKED) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("more", [(), ("served.fallback=1.0",)])
def test_a_search_comes_before_the_text(serve, more):
    endpoint = serve("search.share=1.0", "search.seconds=0.4", "search.result_tokens=100", *more)
    answer = message(endpoint, stream=True, **named("r"))
    found = {block.type: block for block in answer.content}
    row = endpoint.row("r")

    assert found["server_tool_use"].input == {"query": "sea sky sun fog "}
    assert found["web_search_tool_result"].tool_use_id == found["server_tool_use"].id
    assert [block.type for block in answer.content][:2] == [
        "server_tool_use",
        "web_search_tool_result",
    ]
    assert found["text"].text.startswith("sea sky")
    assert answer.usage.server_tool_use.web_search_requests == 1
    assert answer.usage.input_tokens == row["input_tokens"] == 103
    assert row["chunk_sent_at_ns"][0] - row["received_at_ns"] >= 400_000_000


def test_a_search_in_one_piece(serve):
    answer = message(serve("search.share=1.0", "search.seconds=0.1"), stream=False)

    assert [block.type for block in answer.content] == [
        "server_tool_use",
        "web_search_tool_result",
        "text",
    ]
    assert answer.content[0].input == {"query": "sea sky sun fog "}
