"""Rate limits over HTTP: who is refused, what the refusal says, and headers on every response."""

import time
from datetime import UTC, datetime

import anthropic
import openai
import pytest
from simulator.http.conftest import HELLO, REQUEST


def test_a_burst_admits_as_many_as_it_holds_and_says_when_to_come_back(serve):
    endpoint = serve("limits.rpm=60", "limits.burst=3")
    refused = []
    for call in range(6):
        try:
            endpoint.message("r", call)
        except anthropic.RateLimitError as error:
            refused.append(error)
    assert len(refused) == 3
    assert refused[0].type == "rate_limit_error"
    assert "requests per minute" in refused[0].message
    headers = refused[0].response.headers
    assert headers["anthropic-ratelimit-requests-limit"] == "60"
    rows = endpoint.server_log("r")
    assert [row["status"] for row in rows] == [200] * 3 + [429] * 3
    assert {row["limit_kind"] for row in rows} == {None, "requests"}
    assert all(row["bucket_levels"] for row in rows)
    time.sleep(int(headers["retry-after"]) + 0.05)
    endpoint.message()


def test_every_response_tells_what_is_left(serve):
    endpoint = serve("limits.rpm=6000", "limits.itpm=60000", "limits.otpm=60000")
    before = time.time()
    raw = endpoint.claude.messages.with_raw_response.create(**REQUEST)
    with endpoint.message(stream=True) as stream:
        list(stream)
        streamed = stream.response.headers
    with pytest.raises(anthropic.BadRequestError) as bad:
        endpoint.message(max_tokens=-1)
    for headers in (raw.headers, streamed, bad.value.response.headers):
        for kind, limit in (("requests", 6000), ("tokens", 60000), ("input-tokens", 60000), ("output-tokens", 60000)):  # fmt: skip
            prefix = f"anthropic-ratelimit-{kind}"
            assert int(headers[f"{prefix}-limit"]) == limit
            assert limit - 2000 <= int(headers[f"{prefix}-remaining"]) <= limit
            reset = (
                datetime.fromisoformat(headers[f"{prefix}-reset"]).replace(tzinfo=UTC).timestamp()
            )
            assert before - 1 <= reset <= time.time() + 60


def test_openai_callers_get_their_own_headers_and_error(serve):
    endpoint = serve("limits.rpm=60", "limits.burst=1", "limits.itpm=1000")
    raw = endpoint.chat.chat.completions.with_raw_response.create(model="m", messages=HELLO)
    assert raw.headers["x-ratelimit-limit-requests"] == "60"
    assert raw.headers["x-ratelimit-remaining-tokens"] == str(1000 - 3)
    with pytest.raises(openai.RateLimitError) as caught:
        endpoint.chat.chat.completions.create(model="m", messages=HELLO)
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) >= 1


def test_output_counts_as_it_is_made(serve):
    endpoint = serve("limits.otpm=60")
    endpoint.message(max_tokens=70)
    with pytest.raises(anthropic.RateLimitError, match="output tokens") as caught:
        endpoint.message("o")
    assert endpoint.row("o")["limit_kind"] == "output_tokens"
    assert 5 <= int(caught.value.response.headers["retry-after"]) <= 15


@pytest.mark.parametrize("times", [(), ("profile=tiny", "limits.otpm_burst=1000")])
def test_reserved_output_is_given_back(serve, times):
    endpoint = serve("limits.otpm=1000", "limits.otpm_mode=reserve", *times)
    stream = endpoint.message("r", max_tokens=900, stream=True)
    with pytest.raises(anthropic.RateLimitError, match="output tokens"):
        endpoint.message(max_tokens=900)
    stream.close()
    endpoint.row("r", "billed_output_tokens")
    endpoint.message(max_tokens=200)


def test_growth_has_a_limit_and_its_own_code(serve):
    endpoint = serve("limits.ramp_growth=2.0", "limits.ramp_floor=2", "limits.ramp_window_s=1.0")
    for _ in range(2):
        endpoint.message()
    with pytest.raises(anthropic.RateLimitError) as caught:
        endpoint.message()
    assert caught.value.body["error"]["details"] == {"error_code": "ramp_limit_exceeded"}
    assert "retry-after" in caught.value.response.headers


def test_an_empty_purse_gives_no_time_to_come_back(serve):
    endpoint = serve("limits.spend=20.0")
    endpoint.message()  # 3 + 4 * 5
    with pytest.raises(anthropic.RateLimitError) as caught:
        endpoint.message()
    assert caught.value.body["error"]["details"] == {"error_code": "enforced_spend_limit_reached"}
    assert "retry-after" not in caught.value.response.headers
