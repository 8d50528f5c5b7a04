"""Locust with geventhttpclient (the client of its FastHttpUser), as one writes it by hand for streams.

A user reads its answer event by event and fires Locust's request event; an event with content is a chunk, its JSON is not
read. Called by clients.py: URL LOG USERS SECONDS SPACING_MS CHUNKS RATE; with a rate, each user sends once per second.
Chunks are timed by the monotonic clock as they are received; the log is written after the load.
"""

from locust import User, task  # isort: skip - first: it patches the process
import json
import resource
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import gevent
import numpy as np
from geventhttpclient import HTTPClient
from locust.env import Environment
from locust.exception import StopUser

now_ns = time.monotonic_ns


def user_class(
    url: str, chunks: int, spacing_s: float, seconds: float, rate: float, seen: list[Any]
) -> Any:
    """The user of one load. `seen` has a list of times for each request: before its sending, then of each chunk."""
    body = json.dumps({
        "model": "tiny", "max_tokens": chunks, "stream": True, "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "tell me about the sea"}],
    }).encode()  # fmt: skip
    began_ns, users = now_ns(), iter(range(1_000_000))

    class ByHand(User):
        def on_start(self) -> None:
            self.client = HTTPClient.from_url(url, concurrency=1, network_timeout=120)
            self.due_s = began_ns / 1e9 + next(users) * spacing_s
            gevent.sleep(max(0.0, self.due_s - time.monotonic()))

        def wait_time(self) -> float:
            self.due_s += 1  # constant_throughput(1) would bring the users of a rate together
            return max(0.0, self.due_s - time.monotonic()) if rate else 0.0

        @task
        def request(self) -> None:
            if now_ns() - began_ns > seconds * 1e9:
                raise StopUser
            at_ns = array("q")
            headers = {
                "content-type": "application/json",
                "x-client-request-id": f"locust/{len(seen)}/0/0",
            }
            seen.append(at_ns)
            at_ns.append(now_ns())
            response = self.client.post("/v1/chat/completions", body=body, headers=headers)
            size = 0
            while line := response.readline(b"\n\n"):
                if b'"content":"' in line and b'"content":""' not in line:
                    at_ns.append(now_ns())
                size += len(line)
                if line.startswith(b"data: [DONE]"):
                    response.read()  # to the end, so that the connection is used again
                    break
            self.environment.events.request.fire(
                request_type="POST", name="chat", response_time=(at_ns[-1] - at_ns[0]) / 1e6, response_length=size,
                exception=None, context={},
            )  # fmt: skip

    return ByHand


def run(kind: Any, users: int) -> list[list[float]]:
    """Run the load to its end; the CPU time second by second."""
    samples = [[now_ns(), _cpu_s()]]
    runner = Environment(user_classes=[kind]).create_local_runner()
    runner.start(users, spawn_rate=users)
    while not runner.user_count:
        gevent.sleep(0.01)
    while runner.user_count:
        gevent.sleep(0.5)
        samples.append([now_ns(), _cpu_s()])
    return samples


def write(path: str, seen: list[Any]) -> None:
    """The log, as the native programs write it."""
    kind = np.dtype([("request", "<i8"), ("leg", "<i4"), ("attempt", "<i4"), ("status", "<i4"), ("chunks", "<i4"),
                     ("began", "<i8"), ("ended", "<i8")])  # fmt: skip
    entries = np.zeros(len(seen), kind)
    entries["request"] = np.arange(len(seen))
    entries["status"] = 200
    entries["chunks"] = [len(at_ns) - 1 for at_ns in seen]
    entries["began"], entries["ended"] = [at_ns[0] for at_ns in seen], [at_ns[-1] for at_ns in seen]
    at_ns = np.concatenate([np.frombuffer(one, np.int64)[1:] for one in seen])
    sizes = np.array([len(seen), len(at_ns)], "<i8")
    Path(path).write_bytes(b"RIGLOG01" + sizes.tobytes() + entries.tobytes() + at_ns.tobytes())


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run one load and print the CPU time as JSON."""
    url, log, *sizes = sys.argv[1:]
    streams, seconds, spacing_ms, chunks, rate = map(float, sizes)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    seen: list[Any] = []
    users = int(rate or streams)
    spacing_s = 1 / rate if rate else spacing_ms / 1e3
    samples = run(user_class(url, int(chunks), spacing_s, seconds, rate, seen), users)
    write(log, seen)
    print(json.dumps({"seconds": samples, "tree_s": _cpu_s()}))


if __name__ == "__main__":
    main()
