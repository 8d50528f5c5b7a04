"""The policy `sdk` retries what the official SDKs retry, and waits as they do.

The SDKs are the oracle: each case is answered by a real server, and their own sleep is recorded instead of slept.
"""

from __future__ import annotations

import http.server
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from tailgauge import limits, vendors
from tailgauge.patterns.events import Ended
from tailgauge.patterns.policies import Retrier
from tailgauge.patterns.settings import SDK_RETRIES, Retry
from tailgauge.protocols.table import PROTOCOLS

S = 10**9
LATER = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
RESET = {
    "anthropic-ratelimit-requests-remaining": "0",
    "anthropic-ratelimit-requests-reset": "2099-01-01T00:00:00Z",
}
CASES = {
    "400": (400, {}),
    "404": (404, {}),
    "408": (408, {}),
    "409": (409, {}),
    "429": (429, {}),
    "429 with seconds": (429, {"retry-after": "3"}),
    "429 with a fraction": (429, {"retry-after": "0.25"}),
    "429 with milliseconds": (429, {"retry-after-ms": "1500"}),
    "429 with both": (429, {"retry-after-ms": "1500", "retry-after": "3"}),
    "429 with milliseconds that are none": (429, {"retry-after-ms": "soon", "retry-after": "3"}),
    "429 with a date": (429, {"retry-after": LATER}),
    "429 with a date that is over": (429, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
    "429 with a list": (429, {"retry-after": "3, 3"}),
    "429 with fewer than no milliseconds": (429, {"retry-after-ms": "-5", "retry-after": "3"}),
    "429 with no milliseconds": (429, {"retry-after-ms": "0", "retry-after": "3"}),
    "429 with no number": (429, {"retry-after-ms": "nan", "retry-after": "3"}),
    "429 for ever": (429, {"retry-after": "1e300"}),
    "429 of what is behind a gateway": (429, {"llm_provider-retry-after": "9"}),
    "429 with zero": (429, {"retry-after": "0"}),
    "429 with nonsense": (429, {"retry-after": "soon"}),
    "429 for 100 s": (429, {"retry-after": "100"}),
    "429 for 500 s": (429, {"retry-after": "500"}),
    "429 for 500 s, to be retried": (429, {"retry-after": "500", "x-should-retry": "true"}),
    "429 with a reset alone": (429, RESET),
    "429 not to be retried": (429, {"x-should-retry": "false"}),
    "400 to be retried": (400, {"x-should-retry": "true"}),
    "500": (500, {}),
    "500 not to be retried": (500, {"x-should-retry": "false"}),
    "503 with seconds": (503, {"retry-after": "2"}),
    "529": (529, {}),
}


@dataclass
class Target:
    """A server that refuses every call alike."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None  # sent instead of a response, before the connection is closed
    calls: int = 0
    url: str = ""


@pytest.fixture(scope="module")
def target():
    target = Target()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            target.calls += 1
            self.rfile.read(int(self.headers["content-length"]))
            if target.raw is not None:
                self.wfile.write(target.raw)
                self.close_connection = True
                return
            self.send_response(target.status)
            for name, value in target.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            """Nothing is printed."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    target.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield target
    server.shutdown()
    server.server_close()


def by_the_sdk(
    protocol: str, target: Target, monkeypatch: pytest.MonkeyPatch, *, stream: bool = False
) -> tuple[int, list[float]]:
    """Calls that the SDK makes, and its waits between them."""
    waits: list[float] = []
    message = [{"role": "user", "content": "x"}]
    target.calls = 0
    if protocol == "anthropic":
        import anthropic

        monkeypatch.setattr("anthropic._base_client.time.sleep", waits.append)
        client = anthropic.Anthropic(api_key="x", base_url=target.url)
        with pytest.raises((anthropic.APIError, httpx2.TransportError)):
            list(client.messages.create(model="m", max_tokens=1, messages=message, stream=stream))
    else:
        import openai

        monkeypatch.setattr("openai._base_client.time.sleep", waits.append)
        client = openai.OpenAI(api_key="x", base_url=f"{target.url}/v1")
        with pytest.raises((openai.APIError, httpx2.TransportError)):
            list(client.chat.completions.create(model="m", messages=message, stream=stream))
    client.close()
    return target.calls, waits


def by_the_policy(protocol: str, target: Target, draw: float) -> list[float]:
    """The waits of the policy, as many as it makes retries."""
    found = limits.retry_after(list(target.headers.items()))
    should = {"true": True, "false": False}.get(target.headers.get("x-should-retry", ""))
    retrier = Retrier(Retry(policy="sdk", base_s=9.0, budget_share=0.0, deadline_s=0.001))
    waits: list[float] = []
    while len(waits) < 10:
        failed = Ended(
            0, 0, 0, vendors.class_of_status(target.status), found[0] if found else None, should,
            status=target.status,
            obeys_retry_after=found is not None and found[1] in {limits.RETRY_AFTER, limits.RETRY_AFTER_MS},
            longest_wait_s=PROTOCOLS[protocol].longest_wait_s,
        )  # fmt: skip
        begins = retrier.begins_at_ns(failed, retries=len(waits), scheduled_at_ns=0, draw=draw)
        if begins is None:
            break
        waits.append(begins / S)
    return waits


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
@pytest.mark.parametrize("case", CASES)
def test_it_makes_as_many_calls_as_the_sdk_and_waits_as_long(protocol, case, target, monkeypatch):
    target.status, target.headers = CASES[case]
    target.raw = None
    calls, sdk_waits = by_the_sdk(protocol, target, monkeypatch)
    shortest = by_the_policy(protocol, target, draw=1.0)
    longest = by_the_policy(protocol, target, draw=0.0)

    assert len(shortest) == len(longest) == calls - 1
    for low, wait, high in zip(shortest, sdk_waits, longest, strict=True):
        assert low - 0.001 <= wait <= high + 1.5, "the date is of whole seconds"
        assert wait == pytest.approx(high, abs=0.3 * high + 1.5)


JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 99\r\n\r\n: x\n\n"
)


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
@pytest.mark.parametrize(
    ("raw", "stream", "ended", "status"),
    [
        (b"", True, "connect_error", None),
        (b"", False, "connect_error", None),
        (b"hello\r\n\r\n", True, "client_error", None),
        (JSON_HEAD, False, "truncated", 200),
        (STREAM_HEAD, True, "truncated", 200),
    ],
    ids=["no response", "no response to a whole answer", "no HTTP", "a cut answer", "a cut stream"],
)
def test_it_retries_the_broken_connections_that_the_sdk_retries(
    protocol, raw, stream, ended, status, target, monkeypatch
):
    target.raw = raw
    calls, waits = by_the_sdk(protocol, target, monkeypatch, stream=stream)
    retrier = Retrier(Retry(policy="sdk"))
    failed = Ended(0, 0, 0, ended, None, status=status)
    longest = []
    for retries in range(5):
        begins = retrier.begins_at_ns(
            failed, retries=retries, scheduled_at_ns=0, draw=0.0, streams=stream
        )
        longest += [] if begins is None else [begins / S]

    assert len(longest) == len(waits) == calls - 1
    for wait, high in zip(waits, longest, strict=True):
        assert 0.75 * high <= wait <= high


def test_it_makes_two_retries_unless_the_scenario_sets_another_number():
    assert Retry(policy="sdk").max_retries == SDK_RETRIES
    assert Retry(policy="sdk", max_retries=7).max_retries == 7
    assert Retry(policy="polite").max_retries == 3


@pytest.mark.parametrize("ended", ["overloaded", "rate_limited", "server_error"])
def test_an_error_inside_a_200_is_retried_by_others_and_not_by_the_sdk(ended):
    failed = Ended(0, 0, 0, ended, None, status=200, error_class=ended)

    def retried(policy: str) -> bool:
        begins = Retrier(Retry(policy=policy)).begins_at_ns
        return begins(failed, retries=0, scheduled_at_ns=0, draw=0.5) is not None

    assert (retried("sdk"), retried("polite"), retried("naive")) == (False, True, True)


@pytest.mark.parametrize(
    ("ended", "may"), [("connect_error", True), ("timeout", True), ("cancelled", False)]
)
def test_without_a_response_it_retries_lost_connections_and_timeouts(ended, may):
    failed = Ended(0, 0, 0, ended, None)
    begins = Retrier(Retry(policy="sdk")).begins_at_ns(
        failed, retries=0, scheduled_at_ns=0, draw=0.0
    )

    assert begins == (S // 2 if may else None)
