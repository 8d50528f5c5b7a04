"""Keys come from the environment and reach no file, message or command line, and no target that is not theirs."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from end_to_end.running import QUICK, Finished, Start

CANARY = "sk-ant-canary-0123456789abcdef"
KEYS = {
    "ANTHROPIC_API_KEY": CANARY,
    "OPENAI_API_KEY": CANARY,
    "ANTHROPIC_AUTH_TOKEN": CANARY,
    "ANTHROPIC_CUSTOM_HEADERS": f"x-extra: {CANARY}",
    "OPENAI_ADMIN_KEY": CANARY,
    "OPENAI_ORG_ID": CANARY,
    "OPENAI_PROJECT_ID": CANARY,
}


def everything_written(done: Finished) -> str:
    """Text of every file and every cell of every table, and of what the command printed."""
    texts = [done.stdout, done.stderr]
    texts += [path.read_bytes().decode("latin-1") for path in done.out.rglob("*") if path.is_file()]
    kept = [
        name
        for name in ("requests", "attempts", "health", "target")
        if any((done.run.path / name).glob("part-*"))
    ]
    texts += [done.run.table(name).astype(str).to_csv() for name in kept]
    return "\n".join(texts)


@contextmanager
def tap(url: str) -> Iterator[tuple[str, list[bytes]]]:
    """A relay before `url` that keeps what clients send."""
    seen: list[bytes] = []
    goal = (urlsplit(url).hostname, urlsplit(url).port)
    listener = socket.create_server(("127.0.0.1", 0))
    stopping = threading.Event()

    def copy(source: socket.socket, sink: socket.socket, *, keep: bool) -> None:
        while data := source.recv(65536):
            if keep:
                seen.append(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while not stopping.is_set():
            client, _ = listener.accept()
            if stopping.is_set():
                client.close()
                return
            server = socket.create_connection(goal)
            opened.extend([client, server])
            for pair, keep in (((client, server), True), ((server, client), False)):
                threading.Thread(target=quietly, args=(copy, pair, keep), daemon=True).start()

    def quietly(work: Callable[..., None], pair: tuple[socket.socket, socket.socket], keep: bool) -> None:
        try:
            work(*pair, keep=keep)
        except OSError as error:
            lost.append(error)  # the other side closed: the end of this copy

    opened: list[socket.socket] = []
    lost: list[OSError] = []
    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    stopping.set()
    socket.create_connection(listener.getsockname()).close()
    thread.join()
    listener.close()
    for each in opened:
        each.close()


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_the_providers_keys_do_not_reach_another_target_nor_any_file(
    start: Start, endpoint: Callable[..., str], protocol: str
) -> None:
    command_lines: list[str] = []
    with tap(endpoint(*QUICK[:2])) as (url, seen):
        running = start(
            "run",
            "streaming",
            "--duration=3",
            f"--target={url}",
            f"--set=target.protocol={protocol}",
            env=KEYS,
        )
        running.wait_for_start(1)
        command_lines += [
            p.read_bytes().decode("latin-1") for p in Path("/proc").glob("[0-9]*/cmdline") if _alive(p)
        ]
        done = running.finish()

    sent = b"".join(seen)
    assert done.run.requests().ended.eq("ok").all(), done.stderr
    assert sent.lower().count(b"authorization: bearer unused") >= len(done.run.requests())
    assert CANARY.encode() not in sent
    assert any("tailgauge" in line and "worker" in line for line in command_lines)
    assert CANARY not in "\n".join(command_lines)
    assert CANARY not in everything_written(done)


def _alive(path: Path) -> bool:
    try:
        return bool(path.read_bytes())
    except OSError:
        return False


class _Echo(http.server.BaseHTTPRequestHandler):
    """Refuses every request and says its key aloud; after the first, so that the run begins."""

    served = 0
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        type(self).served += 1
        self.rfile.read(int(self.headers["content-length"]))
        words = f"key {self.headers['authorization']} is not welcome"
        kind = "rate_limit_error" if self.served == 1 else "authentication_error"
        body = json.dumps({"type": "error", "error": {"type": kind, "message": words}}).encode()
        self.send_response(429 if self.served == 1 else 401)
        self.send_header("content-length", str(len(body)))
        self.send_header("request-id", "req_1")
        self.send_header("anthropic-ratelimit-requests-remaining", "0")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        time.sleep(0)


def test_a_key_that_the_target_says_aloud_is_not_recorded(start: Start) -> None:
    _Echo.served = 0
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        args = ("--duration=2", f"--target={url}", "--set=target.api_key_env=ANTHROPIC_API_KEY")
        done = start("run", "streaming", *args, env=KEYS).finish()
        server.shutdown()
        thread.join()

    attempts = done.run.table("attempts")
    refused = attempts[attempts.stage != "preflight"]
    assert (refused.ended == "client_error").all()
    assert (refused.error_type == "authentication_error").all()
    assert refused.error_body.str.contains("[redacted]", regex=False).all()
    assert attempts[attempts.request_id == -1].limit_kind.eq("requests").all()
    assert done.code == 3, "nothing succeeded: INVALID"
    assert CANARY not in everything_written(done)
