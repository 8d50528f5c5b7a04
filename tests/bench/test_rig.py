"""The reference server follows its load, its log agrees, and the native client receives it."""

import dataclasses
import json
import os
import subprocess
import time

import numpy as np
import pytest

MS = 1_000_000


@pytest.fixture(scope="module")
def run(cc, tmp_path_factory):
    """A load of half a second: the server, what the client received, and its output."""
    import reference_server

    load = reference_server.Load(4, 0.5, chunks=20, ttft_ms=60.0, gap_ms=5.0)
    load_of = {"openai": load, "anthropic": dataclasses.replace(load, protocol="anthropic")}
    done = {}
    for protocol, one in load_of.items():
        folder = tmp_path_factory.mktemp(protocol)
        with reference_server.serving(one, 0, folder) as server:
            line = [reference_server.compiled("client"), f"--port={server.port}", "--streams=4", "--seconds=0.5", "--spacing=7.3",
                    f"--protocol={protocol}", f"--log={folder / 'seen.bin'}"]  # fmt: skip
            output = subprocess.run(
                line, capture_output=True, text=True, timeout=30, check=True
            ).stdout
        done[protocol] = server, reference_server.read_log(folder / "seen.bin"), output
    return done


@pytest.mark.parametrize("program", ["server", "client"])
def test_the_sources_compile_without_a_warning(cc, checkout, tmp_path, program):
    source = checkout / "bench" / "rig" / f"{program}.c"
    line = [
        cc,
        "-O2",
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-o",
        tmp_path / program,
        source,
        "-ldl",
    ]

    done = subprocess.run(line, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_client_and_server_log_the_same_chunks(run, protocol):
    server, seen, _ = run[protocol]

    assert list(seen.request) == list(server.log.request)
    assert set(seen.chunks) == set(server.log.chunks) == {20}
    assert (seen.at_ns > server.log.at_ns - MS).all()  # two readings of the wall clock's offset


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_nothing_is_sent_before_its_time_and_most_of_it_at_its_time(run, protocol):
    server, *_ = run[protocol]
    log = server.log
    first = log.at_ns[log.starts] - log.began_ns
    planned = log.began_ns[:, None] + 60 * MS + np.arange(20) * 5 * MS
    late = log.at_ns.reshape(-1, 20) - planned

    assert first.min() >= 60 * MS
    assert late.min() >= 0
    assert np.median(late) < 3 * MS + server.waited_ns  # on a quiet machine it is 0.05


def test_every_user_asks_again_at_once_until_the_time_is_up(run):
    server, seen, _ = run["openai"]
    answers_ns = seen.at_ns[seen.starts + seen.chunks - 1] - seen.began_ns

    assert 4 < len(server.log.request) <= 4 * 4  # 0.5 s of answers that take 0.155 s
    assert answers_ns.sum() > 4 * 400 * MS
    assert seen.began_ns.max() - seen.began_ns.min() < 500 * MS


def test_a_client_that_leaves_is_no_request_of_the_server_log(cc, tmp_path):
    import socket

    import reference_server

    with reference_server.serving(reference_server.Load(1, 1, chunks=50), 0, tmp_path) as server:
        client = socket.create_connection(("127.0.0.1", server.port))
        client.sendall(b"POST /v1/messages HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}")
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()

    assert (server.summary["requests"], len(server.log.request)) == (1, 0)


def test_tls_serves_the_same(cc, tmp_path):
    import http.client
    import ssl

    import reference_server

    with reference_server.serving(
        reference_server.Load(1, 1, chunks=3, ttft_ms=5, gap_ms=1, tls=True, seed=0), 0, tmp_path
    ) as server:
        context = ssl.create_default_context(cafile=str(server.authority))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", server.port, context=context, timeout=10
        )
        connection.request(
            "POST",
            "/v1/chat/completions",
            '{"stream": true}',
            {"x-client-request-id": "run/77/0/0"},
        )
        body = connection.getresponse().read()
        connection.close()

    assert body.count(b'"content":" the"') == 3
    assert body.endswith(b"data: [DONE]\n\n")
    assert list(server.log.request) == [77]


def answer(server, protocol="openai", prompt="tell me"):
    """The events of one request, parsed."""
    import http.client

    path = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages"}[protocol]
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(
        "POST", path, json.dumps({"stream_options": {"include_usage": True}, "prompt": prompt})
    )
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def deltas(events):
    """Those with content."""
    return [
        event
        for event in events
        if event.get("choices") and event["choices"][0]["delta"].get("content")
    ]


SHORT = {"streams": 1, "seconds": 1.0, "chunks": 40, "ttft_ms": 2.0, "gap_ms": 0.2}


@pytest.fixture
def serve(cc, tmp_path):
    """A server of short answers with more settings, which ends with the block."""
    import reference_server

    return lambda **more: reference_server.serving(
        reference_server.Load(**{**SHORT, **more}), min(os.sched_getaffinity(0)), tmp_path
    )


def test_texts_vary_in_length_and_content_and_come_from_the_seed(serve):
    texts = []
    for seed in (1, 1, 2, 0):
        with serve(seed=seed) as server:
            texts.append([one["choices"][0]["delta"]["content"] for one in deltas(answer(server))])
    first, again, other, alike = texts

    assert first == again
    assert len(set(first)) > 35
    assert len({len(text) for text in first}) > 5
    assert len(first) == len(other) == 40
    assert len(set(first) & set(other)) < 5
    assert set(alike) == {" the"}


def test_every_field_that_real_endpoints_change_changes(serve):
    with serve(changing=True) as server:
        events = answer(server, prompt="one two three")
    chunks = deltas(events)
    logprobs = [event["choices"][0]["logprobs"]["content"][0] for event in chunks]

    assert [event["usage"]["completion_tokens"] for event in chunks] == list(range(1, 41))
    assert events[-1]["usage"] == chunks[-1]["usage"]
    assert len({len(event["obfuscation"]) for event in chunks}) > 8
    assert len({one["logprob"] for one in logprobs}) > 35
    assert all(bytes(one["bytes"]).decode() == one["token"] for one in logprobs)
    assert [one["token"] for one in logprobs] == [
        event["choices"][0]["delta"]["content"] for event in chunks
    ]
    assert all(abs(event["created"] - time.time()) < 60 for event in chunks)


def test_a_body_of_megabytes_is_read_and_counted(serve):
    with serve() as server:
        events = answer(server, prompt="word " * 1_000_000)

    assert len(deltas(events)) == 40
    assert events[-1]["usage"]["prompt_tokens"] > 1_000_000


@pytest.fixture
def herd(cc, tmp_path):
    """A herd of 30 through the native client: what the server sent, what the client received, and when a gap began."""
    import reference_server

    load = reference_server.Load(
        30, 0.6, chunks=20, ttft_ms=43.0, gap_ms=20.0, at_once=True, batch=True
    )
    with reference_server.serving(load, min(os.sched_getaffinity(0)), tmp_path) as server:
        line = [reference_server.compiled("client"), f"--port={server.port}", "--streams=30", "--seconds=0.6",
                f"--spacing={load.spacing_ms}", f"--log={tmp_path / 'seen.bin'}"]  # fmt: skip
        subprocess.run(line, capture_output=True, timeout=30, check=True)
    return server.log, reference_server.read_log(tmp_path / "seen.bin")


@pytest.mark.alone
def test_the_chunks_of_a_herd_are_sent_at_the_same_instants_in_the_same_order(herd):
    log, seen = herd
    at_ns = log.at_ns.reshape(-1, 20)
    step = at_ns // (20 * MS)
    joined = -(-(log.began_ns + 43 * MS) // (20 * MS))
    late = at_ns % (20 * MS)

    assert len(log.request) == len(seen.request) == 60
    assert log.began_ns[:30].max() - log.began_ns[:30].min() < 500 * MS
    assert (step >= joined[:, None]).all()
    assert np.median(step[:, 0] - joined) == 0
    assert np.median(late) < 5 * MS  # a busy machine; alone it is 0.1
    whole = [at_ns[step == one] for one in np.unique(step) if np.count_nonzero(step == one) == 30]
    assert len(whole) > 10
    # A stalled server takes what has arrived in the order of its sockets, so not by the times of arrival.
    first_thirty = at_ns[np.argsort(log.began_ns)[:30]]
    order = np.argsort(first_thirty[:, 5])
    assert all((np.diff(first_thirty[order, column]) > 0).all() for column in (10, 15))


def open_loop(server, arrivals_s, folder):
    """Start the native client with requests that are due then."""
    import clients
    import reference_server

    file = clients.write_arrivals(np.asarray(arrivals_s), folder)
    line = [reference_server.compiled("client"), f"--port={server.port}", f"--arrivals={file}",
            f"--log={folder / 'seen.bin'}"]  # fmt: skip
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


def test_an_open_loop_sends_when_requests_are_due_however_long_answers_take(serve, tmp_path):
    import reference_server

    with serve(ttft_ms=150.0, chunks=2) as server:
        output, _ = open_loop(server, np.arange(100) * 0.005, tmp_path).communicate(timeout=30)
    seen = reference_server.read_log(tmp_path / "seen.bin")
    late_ns = seen.began_ns - json.loads(output)["begin_ns"] - np.arange(100) * 5 * MS

    assert len(seen.request) == len(server.log.request) == 100
    assert late_ns.min() >= 0
    assert np.median(np.diff(seen.began_ns)) / (5 * MS) == pytest.approx(1, abs=0.2)
    assert 25 < server.summary["most_running"] <= 100


def test_what_comes_while_the_client_sleeps_has_the_time_of_its_arrival(serve, tmp_path):
    import signal

    import reference_server

    with serve(ttft_ms=300.0, chunks=1) as server:
        client = open_loop(server, np.zeros(8), tmp_path)
        time.sleep(0.15)
        client.send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        client.send_signal(signal.SIGCONT)
        client.communicate(timeout=30)
    seen = reference_server.read_log(tmp_path / "seen.bin")

    assert np.median(seen.at_ns - server.log.at_ns) < 100 * MS
