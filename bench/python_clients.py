"""Plain Python clients to compare with, one greenlet per stream:

    reading  Tailgauge's reading path alone: its transport and its exchange, without SDK, prompts, rows and writer;
             the CPU time of decoding, which it does later, is not in its samples, but in its whole run
    sdk      the official OpenAI SDK's typed stream over its own transport: what an application sees
    by_hand  geventhttpclient, the client of Locust's FastHttpUser, read event by event

Each records the monotonic clock as soon as it receives a chunk; nothing is written before the end of the load. Called by
clients.py: NAME URL LOG STREAMS SECONDS SPACING_MS CHUNKS.
"""

from gevent import monkey

monkey.patch_all()

import gc  # noqa: E402 - after patching, all of them
import json  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from array import array  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402
import numpy as np  # noqa: E402

now_ns = time.monotonic_ns
STREAMS_A_CLIENT = 25  # the SDK's pool looks at all its connections at every request


class _Decoding:
    """CPU time of what our own client does with chunks once they are read."""

    cpu_ns = 0
    holder: Any = None


decoding = _Decoding()
# stream, request -> the time before its sending, then that of each chunk
Send = Callable[[int, int], Iterator[int]]


def sdk(url: str, chunks: int) -> Send:
    """The official SDK, as its documentation streams."""
    import httpx2
    import openai

    made: dict[int, Any] = {}

    def send(stream: int, request: int) -> Iterator[int]:
        shard = stream // STREAMS_A_CLIENT
        if shard not in made:
            http = httpx2.Client(
                trust_env=False, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None)
            )
            made[shard] = openai.OpenAI(
                api_key="unused", base_url=f"{url}/v1", max_retries=0, http_client=http, timeout=None
            )
        create: Any = made[shard].chat.completions.create
        yield now_ns()
        with create(
            model="tiny", messages=[{"role": "user", "content": "tell me about the sea"}], max_tokens=chunks, stream=True,
            stream_options={"include_usage": True}, extra_headers={"x-client-request-id": f"sdk/{request}/0/0"},
        ) as stream_of:  # fmt: skip
            for event in stream_of:
                if event.choices and event.choices[0].delta.content:
                    yield now_ns()

    return send


def by_hand(url: str, chunks: int) -> Send:
    """geventhttpclient; an event with content is a chunk, its JSON is not read."""
    from geventhttpclient import HTTPClient

    clients: dict[int, Any] = {}
    body = json.dumps(_body(chunks)).encode()

    def send(stream: int, request: int) -> Iterator[int]:
        client = clients.get(stream)
        if client is None:
            client = clients[stream] = HTTPClient.from_url(url, concurrency=1, network_timeout=120)
        headers = {"content-type": "application/json", "x-client-request-id": f"by-hand/{request}/0/0"}
        yield now_ns()
        response = client.post("/v1/chat/completions", body=body, headers=headers)
        while line := response.readline(b"\n\n"):
            if b'"content":"' in line and b'"content":""' not in line:
                yield now_ns()
            if line.startswith(b"data: [DONE]"):
                response.read()  # to the end, so that the connection is used again
                return

    return send


def reading(url: str, chunks: int) -> Send:
    """Our own transport."""
    import httpx2

    from tailgauge.call import Call, Prompt
    from tailgauge.protocols.table import Target
    from tailgauge.protocols.target import Endpoint
    from tailgauge.transport.connection import hold_kernel_stamps
    from tailgauge.transport.exchange import Exchange
    from tailgauge.transport.stopwatch import Stopwatch, origin_of, watched_by

    class Timed(Exchange):
        """Knows what decoding took."""

        def advance(self) -> int:
            began_ns = time.thread_time_ns()
            done = super().advance()
            decoding.cpu_ns += time.thread_time_ns() - began_ns
            return done

    decoding.holder = hold_kernel_stamps()
    gc.disable()
    transport = Stopwatch(idle_connections=10_000, connect_timeout_s=10, send_timeout_s=60, ca_file=None)
    origin = origin_of(httpx2.URL(url))
    endpoint = Endpoint(url, Target(url=url, protocol="openai"), transport)
    call = Call(Prompt.of("tell me about the sea"), chunks)
    body = json.dumps(_body(chunks)).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: rig\r\ncontent-type: application/json\r\n"

    def send(_: int, request: int) -> Iterator[int]:
        decoder = endpoint.decoder(call)
        exchange = Timed(decoder)
        id_and_size = f"x-client-request-id: reading/{request}/0/0\r\ncontent-length: {len(body)}\r\n\r\n"
        with watched_by(exchange), transport.sent(origin, (head + id_and_size).encode() + body):
            exchange.wait_end()
        yield exchange.sent_at_ns or 0
        yield from decoder.take()[1].arrived

    return send


def _body(chunks: int) -> dict[str, Any]:
    return {
        "model": "tiny", "max_tokens": chunks, "stream": True, "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "tell me about the sea"}],
    }  # fmt: skip


def load(send: Send, streams: int, seconds: float, spacing_s: float) -> tuple[list[Any], list[list[float]]]:
    """Run the closed loop; returns what was seen, and the CPU time second by second."""
    seen: list[Any] = []
    began, samples = now_ns(), [[now_ns(), _reading_s(), 0]]
    stop = began + int(seconds * 1e9)

    def user(stream: int) -> None:
        gevent.sleep(max(0.0, stream * spacing_s - (now_ns() - began) / 1e9))
        while now_ns() < stop:
            stamps = array("q")
            seen.append(stamps)
            for at in send(stream, len(seen) - 1):
                stamps.append(at)

    def watch() -> None:
        while True:
            gevent.sleep(1.0)
            samples.append([now_ns(), _reading_s(), 0])

    gc.collect()
    gc.freeze()
    watcher = gevent.spawn(watch)
    gevent.joinall([gevent.spawn(user, stream) for stream in range(streams)], raise_error=True)
    watcher.kill()
    samples.append([now_ns(), _reading_s(), 0])
    return seen, samples


def write(path: str, seen: list[Any]) -> None:
    """The log, as the native programs write it."""
    kind = np.dtype([("request", "<i8"), ("leg", "<i4"), ("attempt", "<i4"), ("status", "<i4"), ("chunks", "<i4"),
                     ("began", "<i8"), ("ended", "<i8")])  # fmt: skip
    entries = np.zeros(len(seen), kind)
    entries["request"] = np.arange(len(seen))
    entries["status"] = 200
    entries["chunks"] = [len(stamps) - 1 for stamps in seen]
    entries["began"], entries["ended"] = [stamps[0] for stamps in seen], [stamps[-1] for stamps in seen]
    at_ns = np.concatenate([np.frombuffer(stamps, np.int64)[1:] for stamps in seen])
    sizes = np.array([len(seen), len(at_ns)], "<i8")
    Path(path).write_bytes(b"RIGLOG01" + sizes.tobytes() + entries.tobytes() + at_ns.tobytes())


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _reading_s() -> float:
    return _cpu_s() - decoding.cpu_ns / 1e9


def main() -> None:
    """Run one load and tell of it."""
    name, url, log, *sizes = sys.argv[1:]
    streams, seconds, spacing_ms, chunks = map(float, sizes)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    send = {"sdk": sdk, "by_hand": by_hand, "reading": reading}[name](url, int(chunks))
    for _ in send(
        -1, -1
    ):  # imports and first times, outside of the load; its number keeps it out of the figures
        pass
    began_s = _cpu_s()
    seen, samples = load(send, int(streams), seconds, spacing_ms / 1e3)
    whole_s = _cpu_s() - began_s
    write(log, seen)
    print(json.dumps({"seconds": samples, "whole_s": whole_s, "tree_s": _cpu_s()}))


if __name__ == "__main__":
    main()
