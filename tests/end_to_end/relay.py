"""A relay before an endpoint, in a process of its own, with a log: `python relay.py URL DELAY_MS MODE LOG`.

It keeps each request for a while. MODE: `passes` what it reads at once; `holds` an answer back until it ends; `reads_on` when
its client has left. The log has, of each call by its id, when the request came and when the first and the last
content were written, in ns of CLOCK_MONOTONIC; a gateway may end the body long after that. It is written at SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

ID = re.compile(rb"x-client-request-id: ([^\r\n]+)", re.IGNORECASE)
CONTENT = re.compile(rb'"content": ?"[^"]')
END = b"0\r\n\r\n"  # of a chunked body
LOG: dict[str, list[int]] = {}  # request came; first content, last content


class FineSelector(selectors.DefaultSelector):
    """epoll waits whole milliseconds; select, on the descriptor of epoll, does not."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            select.select((self.fileno(),), (), (), timeout)
            timeout = 0
        return super().select(timeout)


class Connection:
    """One client's, with one to the endpoint."""

    def __init__(self, host: str, port: int, delay_s: float, mode: str) -> None:
        self.endpoint, self.delay_s, self.mode = (host, port), delay_s, mode
        self.call: list[int] = []
        self.held = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(*self.endpoint)
        answering = asyncio.create_task(self.answer(answers, writer))
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                now_ns = time.monotonic_ns()
                if found := ID.search(data):
                    self.call = LOG.setdefault(found[1].decode(), [])
                    self.call.append(now_ns)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                requests.write(data)
        if self.mode != "reads_on":
            requests.close()
        await answering
        requests.close()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                self.held += data
                if self.mode == "holds" and not self.held.endswith(END):
                    continue
                with contextlib.suppress(ConnectionError):
                    writer.write(self.held)
                now_ns = time.monotonic_ns()
                if CONTENT.search(self.held):
                    self.call[1:] = [self.call[1] if self.call[1:] else now_ns, now_ns]
                self.held = b""
        writer.close()


def leave() -> None:
    """Write the log and be gone, whoever is still connected."""
    Path(sys.argv[4]).write_text(json.dumps(LOG))
    os._exit(0)


async def main(url: str, delay_ms: str, mode: str) -> None:
    at = urlsplit(url)
    assert at.hostname is not None
    assert at.port is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, leave)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(at.hostname or "", at.port or 0, float(delay_ms) / 1000, mode).serve(
            reader, writer
        )

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def relay(url: str, log: Path, delay_ms: float = 0.0, mode: str = "passes") -> Iterator[str]:
    """Its address; the log is there when the context ends."""
    line = [sys.executable, __file__, url, str(delay_ms), mode, str(log)]
    child = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    try:
        yield child.stdout.readline().strip()
    finally:
        child.terminate()
        child.communicate(timeout=10)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(FineSelector())) as runner:
        runner.run(main(*sys.argv[1:4]))
