"""The reference server follows its load, its log agrees, and the native client receives it."""

import dataclasses
import subprocess

import numpy as np
import pytest

MS = 1_000_000


@pytest.fixture(scope="module")
def run(cc, tmp_path_factory):
    """A load of half a second: what the server sent, what the client received, and its output."""
    import reference_server

    load = reference_server.Load(4, 0.5, chunks=20, ttft_ms=60.0, gap_ms=5.0)
    load_of = {"openai": load, "anthropic": dataclasses.replace(load, protocol="anthropic")}
    done = {}
    for protocol, one in load_of.items():
        folder = tmp_path_factory.mktemp(protocol)
        with reference_server.serving(one, 0, folder) as server:
            line = [reference_server.compiled("client"), f"--port={server.port}", "--streams=4", "--seconds=0.5", "--spacing=7.3",
                    f"--protocol={protocol}", f"--log={folder / 'seen.bin'}"]  # fmt: skip
            output = subprocess.run(line, capture_output=True, text=True, timeout=30, check=True).stdout
        done[protocol] = server.log, reference_server.read_log(folder / "seen.bin"), output
    return done


@pytest.mark.parametrize("program", ["server", "client"])
def test_the_sources_compile_without_a_warning(cc, checkout, tmp_path, program):
    source = checkout / "bench" / "rig" / f"{program}.c"
    line = [cc, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", tmp_path / program, source, "-ldl"]

    done = subprocess.run(line, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_client_and_server_log_the_same_chunks(run, protocol):
    server_log, seen, _ = run[protocol]

    assert list(seen.request) == list(server_log.request)
    assert set(seen.chunks) == set(server_log.chunks) == {20}
    assert (seen.at_ns > server_log.at_ns).all()


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_nothing_is_sent_before_its_time_and_most_of_it_at_its_time(run, protocol):
    server_log, *_ = run[protocol]
    first = server_log.at_ns[server_log.starts] - server_log.began_ns
    planned = server_log.began_ns[:, None] + 60 * MS + np.arange(20) * 5 * MS
    late = server_log.at_ns.reshape(-1, 20) - planned

    assert first.min() >= 60 * MS
    assert late.min() >= 0
    assert np.median(late) < 3 * MS  # a busy machine; alone it is 0.05


def test_every_user_asks_again_at_once_until_the_time_is_up(run):
    server_log, seen, _ = run["openai"]

    assert 4 * 2 < len(server_log.request) <= 4 * 4  # 0.5 s of answers that take 0.155 s
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
        reference_server.Load(1, 1, chunks=3, ttft_ms=5, gap_ms=1, tls=True), 0, tmp_path
    ) as server:
        context = ssl.create_default_context(cafile=str(server.authority))
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=10)
        connection.request(
            "POST", "/v1/chat/completions", '{"stream": true}', {"x-client-request-id": "run/77/0/0"}
        )
        body = connection.getresponse().read()
        connection.close()

    assert body.count(b'"content":" the"') == 3
    assert body.endswith(b"data: [DONE]\n\n")
    assert list(server.log.request) == [77]
