"""The server as a client meets it: connections, times, ends. Times are compared within one run's own truth."""

import json
import signal
import ssl
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPSConnection

import pytest
import trustme

BODY = {
    "model": "tiny",
    "max_tokens": 5,
    "messages": [{"role": "user", "content": "abcd"}],
}


def request_of(connection, name="", path="/v1/messages", **fields):
    headers = {"content-type": "application/json"} | ({"x-client-request-id": name} if name else {})
    connection.request("POST", path, json.dumps(BODY | fields), headers)
    return connection.getresponse()


@pytest.fixture
def connect():
    """Connections to an endpoint, closed after the test."""
    with ExitStack() as stack:
        yield lambda endpoint: stack.enter_context(
            closing(HTTPConnection("127.0.0.1", endpoint.port, timeout=10))
        )


def eventually(endpoint, run, *columns):
    """The run's only row, once it is there and has these columns."""
    for _ in range(200):
        rows = endpoint.server_log(run)
        if rows and all(rows[0][column] is not None for column in columns):
            break
        time.sleep(0.02)
    [row] = rows
    return row


@pytest.mark.parametrize("per_chunk", [1, 3])
def test_the_server_log_of_a_stream_joins_and_its_stamps_rise(start, connect, per_chunk):
    endpoint = start({"tokens_per_chunk": per_chunk})
    connection = connect(endpoint)
    for protocol, path in (("anthropic", "/v1/messages"), ("openai", "/v1/chat/completions")):
        before = time.monotonic_ns()
        request_of(connection, f"{protocol}/65537/2/1", path, stream=True, max_tokens=20).read()
        after = time.monotonic_ns()
        [row] = endpoint.server_log(protocol)
        assert (row["request_id"], row["leg"], row["attempt"], row["protocol"]) == (
            65537,
            2,
            1,
            protocol,
        )
        assert (row["status"], row["input_tokens"], row["output_tokens"]) == (200, 1, 20)
        sent = row["chunk_sent_at_ns"]
        assert len(sent) == -(-20 // per_chunk)
        marks = [
            before,
            row["received_at_ns"],
            row["headers_at_ns"],
            *sent,
            row["ended_at_ns"],
            after,
        ]
        assert marks == sorted(marks)
        assert row["cancelled_at_ns"] is None


@pytest.mark.slow
def test_no_chunk_leaves_before_it_is_due(start, connect):
    endpoint = start({"ttft_ms": 20.0, "chunk_gap_ms": 3.0})
    request_of(connect(endpoint), "r/1/0/0", stream=True, max_tokens=20).read()
    [row] = endpoint.server_log("r")
    assert row["planned_ttft_ns"] == 20_000_000
    due = [row["received_at_ns"] + 20_000_000 + i * 3_000_000 for i in range(20)]
    # The loop's timers are floats of seconds: a microsecond is more than their rounding.
    assert all(sent >= at - 1000 for sent, at in zip(row["chunk_sent_at_ns"], due, strict=True))


@pytest.mark.slow
def test_the_same_seed_plans_the_same_times_in_another_run_and_process(start, connect):
    planned = []
    for run in ("a", "b"):
        endpoint = start({"ttft_sigma": 0.5})
        connection = connect(endpoint)
        for call in range(3):
            request_of(connection, f"{run}/{call}/0/0").read()
        planned.append([row["planned_ttft_ns"] for row in endpoint.server_log(run)])
    assert planned[0] == planned[1]
    assert len(set(planned[0])) == 3


def test_a_whole_answer_has_one_stamp(endpoint, connect):
    answer = json.loads(request_of(connect(endpoint), "whole/1/0/0").read())
    assert answer["usage"]["output_tokens"] == 5
    [row] = endpoint.server_log("whole")
    assert len(row["chunk_sent_at_ns"]) == 1
    assert row["output_tokens"] == 5


@pytest.mark.parametrize("read_first", [False, True])
def test_a_client_that_leaves_ends_its_call(start, connect, read_first):
    endpoint = start({"ttft_ms": 2.0 if read_first else 10_000.0, "chunk_gap_ms": 5.0})
    connection = connect(endpoint)
    if read_first:
        response = request_of(connection, "r/1/0/0", stream=True, max_tokens=100_000)
        assert response.read(10)
        response.close()
    else:
        connection.request(
            "POST", "/v1/messages", json.dumps(BODY), {"x-client-request-id": "r/1/0/0"}
        )
        eventually(endpoint, "r", "received_at_ns")
    connection.close()
    row = eventually(endpoint, "r", "cancelled_at_ns")
    sent = row["chunk_sent_at_ns"]
    assert row["cancelled_at_ns"] > max(sent, default=row["received_at_ns"])
    assert row["ended_at_ns"] is None
    assert bool(sent) == read_first
    assert row["output_tokens"] == len(sent)
    time.sleep(0.05)
    [later] = endpoint.server_log("r")
    assert later == row


def test_one_connection_serves_many_calls(endpoint, connect):
    connection = connect(endpoint)
    request_of(connection, stream=True).read()
    local = connection.sock.getsockname()
    for i in range(6):
        path = ("/v1/messages", "/v1/chat/completions")[i % 2]
        response = request_of(
            connection, path=path, stream=i % 3 != 0, max_tokens=0 if i == 4 else 5
        )
        assert response.status == (400 if i == 4 else 200)
        assert response.read()
    assert connection.sock.getsockname() == local


def test_an_http_1_0_client_reads_the_stream_to_the_end_of_the_connection(endpoint, connect):
    connection = connect(endpoint)
    connection._http_vsn, connection._http_vsn_str = 10, "HTTP/1.0"
    body = request_of(connection, stream=True).read()
    assert body.startswith(b"event: message_start\n")
    assert body.endswith(b'data: {"type":"message_stop"}\n\n')


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("GET", "/nowhere", 404, "not_found_error"),
        ("PUT", "/v1/messages", 405, "invalid_request_error"),
        ("GET", "/v1/chat/completions", 405, "invalid_request_error"),
        ("POST", "/healthz", 405, "invalid_request_error"),
        ("DELETE", "/v1/jobs/1/result", 405, "invalid_request_error"),
    ],
)
def test_unknown_paths_and_methods_are_answered_in_the_providers_shape(
    endpoint, connect, method, path, status, kind
):
    connection = connect(endpoint)
    connection.request(method, path)
    response = connection.getresponse()
    assert response.status == status
    assert json.loads(response.read())["error"]["type"] == kind


def test_a_head_request_has_no_body(endpoint, connect):
    for path, status in (("/healthz", 200), ("/v1/messages", 405)):
        connection = connect(endpoint)
        connection.request("HEAD", path)
        response = connection.getresponse()
        assert (response.status, response.read()) == (status, b"")


@pytest.mark.slow
def test_tls_serves_the_same_stream(start, tmp_path):
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(key)
    endpoint = start(certfile=str(cert), keyfile=str(key))
    assert endpoint.url.startswith("https://")
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    connection = HTTPSConnection("127.0.0.1", endpoint.port, context=trusting, timeout=10)
    for _ in range(2):
        assert request_of(connection, stream=True).read().count(b"text_delta") == 5
    connection.close()


@pytest.mark.slow
def test_a_slow_reader_loses_nothing(start, connect):
    endpoint = start({"chunk_gap_ms": 0.0})
    response = request_of(connect(endpoint), "r/1/0/0", stream=True, max_tokens=100_000)
    time.sleep(0.3)  # the sockets' buffers fill up
    assert response.read().count(b"text_delta") == 100_000
    [row] = endpoint.server_log("r")
    assert len(row["chunk_sent_at_ns"]) == 100_000


@pytest.mark.parametrize("how", ["stdin", "sigterm", "sigint"])
def test_it_stops_with_open_streams_when_told_to(start, connect, how):
    endpoint = start({"chunk_gap_ms": 100.0})
    response = request_of(connect(endpoint), stream=True, max_tokens=10_000)
    assert response.read(10)
    if how == "stdin":
        assert endpoint.child.stdin is not None
        endpoint.child.stdin.close()
    else:
        endpoint.child.send_signal(signal.SIGTERM if how == "sigterm" else signal.SIGINT)
    assert endpoint.child.wait(5) == 0


def test_a_taken_port_is_one_sentence(endpoint):
    program = (
        "from tailgauge.errors import UsageError\n"
        "from tailgauge.scenario.simulated import Simulated\n"
        "from tailgauge.simulator.http.requests import ServerOptions\n"
        "from tailgauge.simulator.http.routes import application\n"
        "from tailgauge.simulator.http.server import serve\n"
        "options = ServerOptions()\n"
        "app = application(Simulated(), 1, options)\n"
        "try:\n"
        f"    serve(app, options, '127.0.0.1', {endpoint.port}, on_listening=print, lifeline=True)\n"
        "except UsageError as error:\n"
        "    print('said:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    assert done.stdout.startswith(f"said: cannot listen on 127.0.0.1 port {endpoint.port}: ")


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's stamps are Linux's")
def test_the_time_to_the_first_chunk_counts_from_the_requests_arrival(start, connect):
    endpoint = start({"ttft_ms": 400.0})
    connection = connect(endpoint)
    request_of(connection, "warm-up", stream=True).read()
    endpoint.process.suspend()
    before_ns = time.monotonic_ns()
    connection.request(
        "POST",
        "/v1/messages",
        json.dumps(BODY | {"stream": True}),
        {"x-client-request-id": "r/1/0/0"},
    )
    arrived_by_ns = time.monotonic_ns()
    time.sleep(0.3)
    resumed_at_ns = time.monotonic_ns()
    endpoint.process.resume()
    connection.getresponse().read()
    [row] = endpoint.server_log("r")
    assert before_ns < row["received_at_ns"] < arrived_by_ns
    assert (
        row["received_at_ns"] + 400_000_000 - 1000
        <= row["chunk_sent_at_ns"][0]
        < resumed_at_ns + 400_000_000
    )
