"""`tailgauge endpoint --replay`: recorded bytes at their times, connections that end as they ended, and all that is no recorded answer."""

from __future__ import annotations

import socket
import struct
import subprocess
import time
from bisect import bisect_left
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import pytest
import trustme
from starting.command import run_command
from starting.core_waits import waited_for_a_core_ns
from starting.endpoint import Endpoint
from starting.endpoint import endpoint as started

from tailgauge.rows.answer_file import CLOSED, COMPLETE, LEFT, RESET, RawAnswer, Read, answer_text

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
COUNTED = b"HTTP/1.1 429 Too Many\r\nRetry-After: 3\r\ncontent-length: 2\r\n\r\nno"
LATE_NS = 60_000_000  # beside what both processes waited for a core


def answer(*pieces, end=COMPLETE, end_ms=None, **more):
    """An answer by times in ms and bytes."""
    reads = [Read(round(at_ms * 1e6), data) for at_ms, data in pieces]
    last_ms = pieces[-1][0] if pieces else 0.0
    end_at_ns = round((last_ms if end_ms is None else end_ms) * 1e6)
    values = {"facts": {"stage": "steady"}, "method": "POST", **more}
    return RawAnswer(end=end, end_at_ns=end_at_ns, reads=reads, **values)


STREAM = answer((50, CHUNKED + b"3\r\na: \r\n"), (120, b"1"), (150, b"\r\nb\r\n0\r\n\r\n"))
ANSWERS = (
    STREAM,
    answer((10, COUNTED)),
    answer((5, CHUNKED + b"3\r\n\xe2\x82"), end=CLOSED, end_ms=60),
    answer((5, CHUNKED + b"9\r\nab"), end=RESET),
    answer((5, CHUNKED + b"9\r\nab"), end=LEFT, end_ms=40),
    answer(end=CLOSED, end_ms=30),
    answer((5, CHUNKED + b"3\r\nabc\r\n"), end=COMPLETE, left_out_bytes=77),
    answer((5, b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")),
    answer((5, b"SSH-2.0-OpenSSH\r\n"), end=LEFT),
)


def written(path: Path, *answers: RawAnswer) -> Path:
    texts = [answer_text(number, each) for number, each in enumerate(answers, 1)]
    path.write_text("".join(texts), encoding="utf-8")
    return path


@pytest.fixture
def replay(tmp_path):
    """`replay(*answers)` starts an endpoint that serves them."""
    with ExitStack() as stack:

        def start(*answers: RawAnswer, options: tuple[str, ...] = ()) -> Endpoint:
            path = written(tmp_path / "answers.jsonl", *answers)
            return stack.enter_context(started(f"--replay={path}", *options))

        yield start


class Client:
    """A connection that notes what comes and when, since the request."""

    def __init__(self, endpoint):
        self._socket = socket.create_connection(
            ("127.0.0.1", int(endpoint.url.rpartition(":")[2])), timeout=5
        )
        self._sent_at_ns = 0

    def send(self, request=POST):
        self._sent_at_ns = time.monotonic_ns()
        self._socket.sendall(request)

    def read(self, size: int) -> list[tuple[int, bytes]]:
        """Pieces and their times in ns, until so many bytes have come."""
        pieces: list[tuple[int, bytes]] = []
        while sum(len(data) for _, data in pieces) < size:
            data = self._socket.recv(65_536)
            assert data, "closed early"
            pieces.append((time.monotonic_ns() - self._sent_at_ns, data))
        return pieces

    def end(self) -> str:
        """How the server ends the connection within half a second."""
        self._socket.settimeout(0.5)
        try:
            return "data" if self._socket.recv(1) else "closed"
        except ConnectionResetError:
            return "reset"
        except TimeoutError:
            return "open"

    def close(self):
        self._socket.close()

    def reset(self):
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


@pytest.fixture
def connect():
    """`connect(endpoint)` is a client that the end of the test closes."""
    with ExitStack() as stack:

        def client(endpoint: Endpoint) -> Client:
            made = Client(endpoint)
            stack.callback(made.close)
            return made

        yield client


def test_each_post_gets_the_next_answer_byte_for_byte_and_at_its_times(replay, connect):
    endpoint = replay(STREAM, answer((10, COUNTED)))
    client = connect(endpoint)

    def waited_ns() -> int:
        return waited_for_a_core_ns() + waited_for_a_core_ns(endpoint.pid)

    for expected in (STREAM, answer((10, COUNTED)), STREAM):
        waited_before_ns = waited_ns()
        client.send()
        pieces = client.read(len(expected.data))
        late_ns = LATE_NS + waited_ns() - waited_before_ns
        received = list(accumulate(len(data) for _, data in pieces))
        sent = list(accumulate(len(read.data) for read in expected.reads))

        assert b"".join(data for _, data in pieces) == expected.data
        assert set(received) <= set(sent), "no read is sent in parts"
        for size, read in zip(sent, expected.reads, strict=True):
            at_ns, _ = pieces[bisect_left(received, size)]
            assert read.at_ns <= at_ns < read.at_ns + late_ns
    client.close()


ENDS = ("open", "open", "closed", "reset", "open", "closed", "closed", "closed", "open")


@pytest.mark.slow
def test_connections_end_as_they_ended(replay, connect):
    endpoint = replay(*ANSWERS)
    ends = []
    for expected in ANSWERS:
        client = connect(endpoint)
        client.send()
        assert b"".join(data for _, data in client.read(len(expected.data))) == expected.data
        ends.append(client.end())
        client.close()

    assert tuple(ends) == ENDS


def test_the_preflights_answers_come_once(replay, connect):
    first = answer((1, COUNTED.replace(b"no", b"p1")), facts={"stage": "preflight"})
    second = answer((1, COUNTED.replace(b"no", b"r1")))
    third = answer((1, COUNTED.replace(b"no", b"r2")))
    client = connect(replay(first, second, third))
    bodies = []
    for _ in range(6):
        client.send()
        bodies.append(client.read(len(COUNTED))[0][1][-2:])

    assert bodies == [b"p1", b"r1", b"r2", b"r1", b"r2", b"r1"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (b"GET /anything HTTP/1.1\r\nhost: x\r\n\r\n", 404),
        (POST.replace(b"/v1/chat/completions", b"/tokenize"), 404),
        (b"PUT /v1 HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 405),
        (b"hello\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nno header\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST / HTTP/1.1\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nx: y\r\n\r\n",
            429,
        ),
        (POST, 429),
    ],
)
def test_what_is_no_recorded_answer_is_an_error_and_takes_no_turn(
    replay, connect, request_, status
):
    endpoint = replay(answer((1, COUNTED)), STREAM)
    client = connect(endpoint)
    client.send(request_)
    got = client.read(1)[0][1]
    follower = connect(endpoint)
    follower.send()

    assert got.split()[1] == str(status).encode()
    assert follower.read(1)[0][1].split()[1] == (b"200" if status == 429 else b"429")


def test_a_recorded_get_is_answered_and_one_of_a_post_is_not(replay, connect):
    endpoint = replay(
        answer((1, COUNTED)), answer((1, COUNTED.replace(b"429", b"202")), method="GET")
    )
    client = connect(endpoint)
    for request, status in ((b"GET /jobs/1 HTTP/1.1\r\nhost: x\r\n\r\n", b"202"), (POST, b"429")):
        client.send(request)
        assert client.read(len(COUNTED))[0][1].split()[1] == status


def test_a_client_that_leaves_leaves_the_others_alone(replay, connect):
    endpoint = replay(STREAM, answer((5, CHUNKED), end=LEFT))
    for leave in (Client.close, Client.reset, Client.close, Client.reset):
        client = connect(endpoint)
        client.send()
        client.read(1)
        leave(client)
    client = connect(endpoint)
    client.send()

    assert b"".join(data for _, data in client.read(len(STREAM.data))) == STREAM.data


def test_a_client_that_waits_before_it_sends_its_body_gets_a_100(replay, connect):
    client = connect(replay(answer((1, COUNTED))))
    client.send(b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
    interim = client.read(1)[0][1]
    client.send(b"{}")

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert client.read(len(COUNTED))[0][1] == COUNTED


def test_it_serves_tls(replay, connect, tmp_path):
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    pem = tmp_path / "server.pem"
    endpoint = replay(answer((1, COUNTED)), options=(f"--certfile={pem}", f"--keyfile={pem}"))
    line = ["curl", "-s", "--cacert", str(tmp_path / "ca.pem"), "-d", "{}", endpoint.url]
    done = subprocess.run(line, capture_output=True, timeout=20, check=True)

    assert endpoint.url.startswith("https:")
    assert done.stdout == b"no"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--seed=3",), "omit --seed"),
        (("--profile=haiku",), "omit --profile"),
        (("--set=ttft_ms=3",), "omit --set"),
        (("--api-key-env=X",), "omit --api-key-env"),
        (("--host=256.0.0.1",), "cannot listen on 256.0.0.1"),
        (("--certfile=nothing.pem",), "--certfile and --keyfile: give both or neither"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path, options, expected):
    path = written(tmp_path / "answers.jsonl", STREAM)
    done = run_command(["tailgauge", "endpoint", f"--replay={path}", "--port=0", *options], 30)

    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_is_refused_by_its_line(tmp_path):
    path = written(tmp_path / "answers.jsonl", STREAM, STREAM)
    lines = path.read_text().splitlines()
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_text("\n".join(lines[:-1]))
    for name, expected in (
        ("damaged.jsonl", ":6: the answer that begins on line 6"),
        ("missing", ": no such file"),
    ):
        done = run_command(["tailgauge", "endpoint", f"--replay={tmp_path / name}", "--port=0"], 30)

        assert done.returncode == 2
        assert f"tailgauge: {tmp_path / name}{expected}" in done.stderr
