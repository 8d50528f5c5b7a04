"""How an attempt ended, told from what was seen."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailgauge import redaction
from tailgauge.call import MESSAGE
from tailgauge.protocols.decoder import StreamError, ToolCalls
from tailgauge.protocols.errors import error_of
from tailgauge.protocols.usage import Usage
from tailgauge.rows.schema import CHECK_FAILED, ENDED_CLASSES, PLUGIN_ERROR
from tailgauge.worker.outcome import (
    MAX_ERROR_TEXT,
    Outcome,
    limit_headers,
    outcome,
    rate_limit_headers,
    retry_after,
    should_retry,
)

JSON = [(b"content-type", b"application/json")]
SSE = [(b"Content-Type", b"text/event-stream; charset=utf-8")]


@dataclass
class Result:
    """What an outcome looks at of an exchange."""

    status: int | None = 200
    headers: list[tuple[bytes, bytes]] = field(default_factory=lambda: list(SSE))
    plain_body: bytes = b""
    aborted: str | None = None
    failure: tuple[str, str] | None = None
    cut: str | None = None
    cut_text: str | None = None

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key.lower() == name), b"")


@dataclass
class Decoded:
    """What an outcome looks at of a decoder."""

    error: StreamError | None = None
    finished: bool = True
    has_content: bool = True
    streams: bool = True
    statuses: frozenset[int] = frozenset({200})  # that an answer has
    answer: str | None = None
    kind: str = MESSAGE
    protocol: str = "openai"
    stop_reason: str | None = "stop"
    stopped: bool = True
    is_refusal: bool = False
    characters: int = 40
    last_thinking: object = None
    max_tokens: int = 8
    ends_naturally: bool = False
    output: int | None = 8
    tolerated: list[str] = field(default_factory=list)
    events: int = 1
    ends_at_mark: bool = False  # its SDK reads no further

    @property
    def usage(self):
        usage = Usage(self.protocol)
        usage.count("output_tokens", self.output)
        return usage

    tools: ToolCalls = field(default_factory=ToolCalls)

    def end_of_body(self):
        """It has come whole."""

    def tolerate(self, name):
        self.tolerated.append(name)


def error(kind="x", message="y"):
    return json.dumps({"error": {"type": kind, "message": message}}).encode()


def refused(status, ended, body=None, kind="x", **limit):
    body = error() if body is None else body
    return (
        Result(status, [], body),
        Decoded(finished=False),
        Outcome(ended, kind, body.decode(), **limit),
    )


CASES = {
    "a whole stream": (Result(), Decoded(), Outcome("ok")),
    "a whole stream without content": (Result(), Decoded(has_content=False), Outcome("empty")),
    "as many tokens as its limit": (Result(), Decoded(stop_reason="length"), Outcome("ok")),
    "fewer tokens than its limit": (Result(), Decoded(stop_reason="length", output=2), Outcome("cut")),
    "a limit without a count": (Result(), Decoded(stop_reason="length", output=None), Outcome("ok")),
    "a limit without a count and too little text": (Result(), Decoded(stop_reason="length", output=None, characters=7), Outcome("cut")),
    "a limit where answers end by themselves": (Result(), Decoded(stop_reason="length", ends_naturally=True), Outcome("cut")),
    "a refusal": (Result(), Decoded(protocol="anthropic", stop_reason="refusal", has_content=False), Outcome("refused")),
    "a refusal in words": (Result(), Decoded(is_refusal=True), Outcome("refused")),
    "a filter": (Result(), Decoded(stop_reason="content_filter"), Outcome("filtered")),
    "an abort": (Result(), Decoded(stop_reason="abort"), Outcome("aborted", "abort")),
    "a reason that nobody knows": (Result(), Decoded(stop_reason="tired"), Outcome("aborted", "unknown_finish_reason")),
    "no reason": (Result(), Decoded(stop_reason=None), Outcome("aborted", "no_finish_reason")),
    "a protocol that names no reason": (Result(), Decoded(protocol="sse", stop_reason=None), Outcome("ok")),
    "no end mark": (Result(), Decoded(finished=False), Outcome("truncated", "no_end_mark")),
    "cut before the end mark": (Result(cut="connection_closed"), Decoded(finished=False), Outcome("truncated", "connection_closed")),
    "cut behind the end mark": (Result(cut="connection_reset"), Decoded(), Outcome("truncated", "connection_reset")),
    "an error in the stream": (Result(), Decoded(StreamError("server_error", "full", "stream_error", "server_error")),
                               Outcome("stream_error", "server_error", "full", None, "server_error")),
    "an error that nobody knows": (Result(), Decoded(StreamError("e", "m")), Outcome("stream_error", "e", "m")),
    "a stream that refuses the call": (Result(), Decoded(StreamError("busy", "m", "overloaded", "overloaded")), Outcome("overloaded", "busy", "m", None, "overloaded")),
    "a stream that limits the rate": (Result(), Decoded(StreamError("e", "m", "rate_limited", "rate_limited")), Outcome("rate_limited", "e", "m", "unknown", "rate_limited")),
    "an overload as JSON with status 200": (Result(headers=JSON, plain_body=error("overloaded_error")), Decoded(finished=False, events=0),
                                            Outcome("overloaded", "overloaded_error", "y", None, "overloaded")),
    "an error in a stream that was cut": (Result(cut="x"), Decoded(StreamError("e", "m"), finished=False), Outcome("stream_error", "e", "m")),
    "a page instead of a stream": (Result(headers=[(b"content-type", b"text/html")], plain_body=b"<p>hi"), Decoded(finished=False, events=0),
                                   Outcome("client_error", "not_an_event_stream", "<p>hi")),
    "nothing instead of a stream": (Result(headers=[]), Decoded(finished=False, events=0), Outcome("client_error", "not_an_event_stream", "content-type ''")),
    "a page under the name of a stream": (Result(plain_body=b"<p>hi"), Decoded(finished=False, events=0),
                                          Outcome("client_error", "not_an_event_stream", "<p>hi")),
    "an error under the name of a stream": (Result(plain_body=error("overloaded_error")), Decoded(finished=False, events=0),
                                            Outcome("overloaded", "overloaded_error", "y", None, "overloaded")),
    "a first line under the name of a stream that was cut": (Result(plain_body=b"dat", cut="connection_reset"), Decoded(finished=False, events=0),
                                                             Outcome("truncated", "connection_reset")),
    "a field of llama.cpp under the name of JSON that was cut": (Result(headers=JSON, plain_body=b"err", cut="connection_reset"),
                                                                 Decoded(finished=False, events=0), Outcome("truncated", "connection_reset")),
    "its text was cut": (Result(headers=JSON, plain_body=b'error: {"co', cut="connection_reset"), Decoded(finished=False, events=0),
                         Outcome("truncated", "connection_reset")),
    "its name alone, until the connection closed": (Result(plain_body=b"e"), Decoded(finished=False, events=0), Outcome("truncated", "no_end_mark")),
    "a line of text that begins so": (Result(headers=JSON, plain_body=b"error: busy"), Decoded(finished=False, events=0),
                                      Outcome("client_error", "not_an_event_stream", "error: busy")),
    "a connection that closes behind [DONE]": (Result(cut="connection_closed"), Decoded(ends_at_mark=True), Outcome("ok")),
    "a connection that is reset behind [DONE]": (Result(cut="connection_reset"), Decoded(ends_at_mark=True), Outcome("ok")),
    "a connection that closes without [DONE]": (Result(cut="connection_closed"), Decoded(ends_at_mark=True, stopped=None), Outcome("truncated", "connection_closed")),
    "comments alone": (Result(plain_body=b": ping\n\n"), Decoded(finished=False, events=0), Outcome("truncated", "no_end_mark")),
    "a stream under another name": (Result(headers=JSON), Decoded(), Outcome("ok")),
    "a stream without a name": (Result(headers=[]), Decoded(), Outcome("ok")),
    "a whole answer": (Result(headers=JSON), Decoded(streams=False), Outcome("ok")),
    "a whole answer without content": (Result(headers=JSON), Decoded(has_content=False, streams=False), Outcome("empty")),
    "what came back about a batch": (Result(headers=JSON), Decoded(has_content=False, streams=False, answer="{}"), Outcome("ok")),
    "JSON that is not the protocol": (Result(headers=JSON, plain_body=b"{}"), Decoded(StreamError("malformed_answer", "m"), streams=False),
                                      Outcome("client_error", "malformed_answer", "{}")),
    "a whole answer that was cut": (Result(headers=JSON, cut="connection_closed"), Decoded(finished=False, streams=False),
                                    Outcome("truncated", "connection_closed")),
    "JSON where a stream was asked for": (Result(headers=JSON, plain_body=b"{}"), Decoded(finished=False, events=0),
                                          Outcome("client_error", "not_an_event_stream", "{}")),
    "a compressed stream": (Result(headers=[*SSE, (b"Content-Encoding", b"gzip")], cut="compressed", cut_text="content-encoding gzip"),
                            Decoded(finished=False), Outcome("stream_error", "compressed", "content-encoding gzip")),
    "a compressed answer": (Result(headers=[*JSON, (b"Content-Encoding", b"br")], cut="compressed", cut_text="content-encoding br"),
                            Decoded(finished=False, streams=False), Outcome("stream_error", "compressed", "content-encoding br")),
    "a compressed error": (Result(400, [*JSON, (b"Content-Encoding", b"gzip")], b"x\x9c"), Decoded(),
                           Outcome("client_error", "compressed", "x\ufffd")),
    "an error without an end": (Result(500, JSON, b"xx", cut="too_large", cut_text="over 1 MiB"), Decoded(),
                                Outcome("server_error", "too_large", "xx")),
    "a stream with broken chunks": (Result(cut="framing", cut_text="not a chunk size"), Decoded(finished=False),
                                    Outcome("stream_error", "framing", "not a chunk size")),
    "a stream that is too large": (Result(cut="too_large", cut_text="over 256 MiB"), Decoded(finished=False),
                                   Outcome("stream_error", "too_large", "over 256 MiB")),
    "identity is no compression": (Result(headers=[*SSE, (b"content-encoding", b"Identity")]), Decoded(), Outcome("ok")),
    "cancelled": (Result(aborted="cancelled"), Decoded(), Outcome("cancelled")),
    "the deadline before any response": (Result(None, aborted="timeout"), Decoded(finished=False), Outcome("timeout")),
    "the deadline in an error body": (Result(500, aborted="timeout"), Decoded(finished=False), Outcome("timeout")),
    "censored": (Result(aborted="censored"), Decoded(finished=False), Outcome("censored")),
    "refused": (Result(None, failure=("tcp", "Connection refused")), Decoded(), Outcome("connect_error", "tcp", "Connection refused")),
    "no name": (Result(None, failure=("dns", "no address")), Decoded(), Outcome("connect_error", "dns", "no address")),
    "stale": (Result(None, failure=("stale_connection", "closed")), Decoded(), Outcome("connect_error", "stale_connection", "closed")),
    "a head too large": (Result(None, failure=("head_too_large", "over 65536 bytes")), Decoded(),
                         Outcome("client_error", "head_too_large", "over 65536 bytes")),
    "a target that says one of our words": refused(500, "server_error", error("malformed_usage"), "target: malformed_usage"),
    "no HTTP": (Result(None, failure=("not_http", "SSH-2.0")), Decoded(), Outcome("client_error", "not_http", "SSH-2.0")),
    "400": refused(400, "client_error"),
    "401": refused(401, "client_error"),
    "404 with a page": refused(404, "client_error", b"<html>", "not_json"),
    "307": refused(307, "client_error", b"", "not_json"),
    "204": refused(204, "client_error", b"", "not_json"),
    "429": refused(429, "rate_limited", limit_kind="unknown"),
    "500": refused(500, "server_error"),
    "502 with nothing": refused(502, "server_error", b"", "not_json"),
    "503": refused(503, "overloaded"),
    "529": refused(529, "overloaded"),
    "JSON that is no object": refused(500, "server_error", b"[1]", "error"),
    "JSON that is too deep": refused(500, "server_error", b"[" * 1999, "not_json"),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "decoded", "expected"), CASES.values(), ids=CASES)
def test_an_attempt_ended_as(seen, decoded, expected):
    assert outcome(seen, decoded) == expected


def test_every_class_but_four_of_the_record_can_come_about_by_itself():
    """client_drop, censored and check_failed are the dispatcher's, plugin_error the driver's; the rest the outcome's."""
    assert set(ENDED_CLASSES) - {PLUGIN_ERROR, CHECK_FAILED} <= {
        expected.ended for _, _, expected in CASES.values()
    }


@pytest.fixture
def secret(monkeypatch):
    """What the environment holds, in this test alone."""
    monkeypatch.setenv("MY_API_KEY", "open sesame 99")
    redaction.forget()
    yield
    redaction.forget()


@pytest.mark.usefixtures("secret")
def test_an_error_text_is_cut_and_has_no_secrets():
    body = b"you sent open sesame 99 and sk-" + b"abcdefgh12345678; \xff " + b"x" * 9000
    found = outcome(Result(401, [], body), Decoded())

    assert found.error_body.startswith("you sent [redacted] and [redacted]; \ufffd xx")
    assert len(found.error_body) == MAX_ERROR_TEXT


@pytest.mark.usefixtures("secret")
@pytest.mark.parametrize("length", range(1960, 2010))
def test_a_secret_at_the_end_of_what_is_kept_leaves_nothing_of_itself(length):
    for seen, decoded in (
        (Result(401, [], b"x" * length + b"open sesame 99" * 900), Decoded()),
        (
            Result(),
            Decoded(
                StreamError(*error_of({"error": {"message": "x" * length + "open sesame 99"}}))
            ),
        ),
    ):
        assert "open s" not in outcome(seen, decoded).error_body


@pytest.mark.usefixtures("secret")
def test_the_type_of_an_error_has_no_secrets():
    assert outcome(Result(400, [], error("open sesame 99")), Decoded()).error_type == "[redacted]"


@pytest.mark.usefixtures("secret")
def test_the_message_of_a_stream_error_has_no_secrets():
    assert outcome(Result(), Decoded(StreamError("e", "open sesame 99"))).error_body == "[redacted]"


def kept(seen):
    return rate_limit_headers(limit_headers(seen))


def wait_s(seen):
    return retry_after(seen, "rate_limited")[0]


# --- rate limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "kind"),
    [
        ([], "unknown"),
        ([(b"anthropic-ratelimit-requests-remaining", b"0")], "requests"),
        ([(b"Anthropic-RateLimit-Requests-Remaining", b"0")], "requests"),
        ([(b"anthropic-ratelimit-requests-remaining", b"3"), (b"anthropic-ratelimit-input-tokens-remaining", b"0")], "input_tokens"),
        ([(b"anthropic-ratelimit-output-tokens-remaining", b"0")], "output_tokens"),
        ([(b"anthropic-ratelimit-tokens-remaining", b"0")], "tokens"),
        ([(b"x-ratelimit-remaining-requests", b"0")], "requests"),
        ([(b"x-ratelimit-remaining-tokens", b"0")], "tokens"),
        ([(b"x-ratelimit-remaining-tokens", b"17")], "unknown"),
    ],
)  # fmt: skip
def test_the_limit_that_a_429_met_is_reported_from_its_headers(headers, kind):
    assert outcome(Result(429, headers, b"{}"), Decoded()).limit_kind == kind


def test_rate_limit_headers_are_kept_as_json_and_nothing_else_is():
    headers = [
        (b"Anthropic-RateLimit-Requests-Limit", b"50"), (b"x-ratelimit-reset-tokens", b"6m0s"), (b"ratelimit", b'"a";r=\xe9'),
        (b"retry-after", b"3"), (b"set-cookie", b"secret"),
    ]  # fmt: skip

    assert json.loads(kept(Result(429, headers))) == {
        "anthropic-ratelimit-requests-limit": "50",
        "x-ratelimit-reset-tokens": "6m0s",
        "ratelimit": '"a";r=é',
    }
    assert kept(Result(429, [])) is None


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (b"", None), (b"0", 0.0), (b"17", 17.0), (b"1.5", 1.5), (b" 2 ", 2.0), (b"-1", None), (b"nan", None), (b"inf", None),
        (b"1e300", 4_294_967.0), (b"soon", None), (b"3 seconds", None), (b"Wed, 21 Oct 2015 07:28:00 GMT", None),  # in the past
        (b"Wed, 21 Oct", None), (b"Wed, 99 Oct 9999 99:99:99 GMT", None), (b"\xff", None), (b"Wed, 21 Oct 2099 07:28:00 -0000", 4_294_967.0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_nothing(value, seconds):
    assert wait_s(Result(429, [(b"Retry-After", value)])) == seconds


def test_of_rate_limit_headers_no_more_is_kept_than_anybody_can_mean():
    headers = [(b"x-ratelimit-%d" % n + b"n" * 9000, b"v" * 9000) for n in range(200)]
    facts = json.loads(kept(Result(429, headers)))

    assert len(facts) == 40
    assert {(len(name), len(value)) for name, value in facts.items()} == {(200, 200)}


@pytest.mark.usefixtures("secret")
def test_rate_limit_headers_have_no_secrets(monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "Open-Sesame-99")
    redaction.forget()
    headers = [(b"X-RateLimit-Open-Sesame-99", b"1"), (b"x-ratelimit-limit", b'"Open-Sesame-99"')]

    assert json.loads(kept(Result(429, headers))) == {
        "x-ratelimit-[redacted]": "1",
        "x-ratelimit-limit": '"[redacted]"',
    }


def test_retry_after_may_be_a_date():
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True).encode()

    assert 3500 < wait_s(Result(429, [(b"retry-after", later)])) < 3700


@given(st.binary(max_size=60) | st.text("0123456789:, GMTWedOct+-.eE", max_size=40).map(str.encode))
def test_no_retry_after_raises(value):
    seconds = wait_s(Result(429, [(b"retry-after", value)]))

    assert seconds is None or 0 <= seconds < 1e9


@given(
    st.integers(100, 999),
    st.binary(max_size=80),
    st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=3),
)
def test_no_response_is_without_a_class(status, body, headers):
    seen = Result(status, headers, body)

    assert outcome(seen, Decoded(finished=False)).ended in ENDED_CLASSES
    kept(seen)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (b"true", True),
        (b"false", False),
        (b"FALSE ", False),
        (b"", None),
        (b"maybe", None),
        (None, None),
    ],
)
def test_a_target_may_say_whether_to_try_again(printed, expected):
    headers = [] if printed is None else [(b"X-Should-Retry", printed)]

    assert should_retry(Result(429, headers)) is expected


@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        ("2s", (2.0, "retryDelay")),
        ("0.5s", (0.5, "retryDelay")),
        ("soon", (None, None)),
        (7, (None, None)),
    ],
)
def test_google_names_the_wait_in_the_body(delay, expected):
    details = [
        {"@type": "type.googleapis.com/google.rpc.QuotaFailure"},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay},
    ]
    body = json.dumps([{"error": {"code": 429, "details": details}}]).encode()

    assert retry_after(Result(429, list(JSON), body), "rate_limited") == expected
    assert retry_after(Result(429, [(b"retry-after", b"9")], body), "rate_limited") == (
        9.0,
        "retry-after",
    )
