"""A relay before a TCP port that holds every byte back for a while, each way: `relay.py LISTEN PORT TO PORT DELAY_S`.

Rule: it delays and nothing else: order and throughput stay, an end of one side reaches the other. It ends when its
standard input does.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

UNREAD = (
    1 << 24
)  # bytes on their way in one direction; far more than a link of these tests carries in a delay


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """One direction: what is read now is written `delay_s` later."""
    loop = asyncio.get_running_loop()
    due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNREAD // 65536)

    async def read() -> None:
        data = b" "
        while data:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            await due.put((loop.time() + delay_s, data))

    reading = asyncio.create_task(read())
    with contextlib.suppress(OSError):  # the other side is gone, and the end of ours follows
        while True:
            at, data = await due.get()
            await asyncio.sleep(at - loop.time())
            if not data:
                break
            writer.write(data)
            await writer.drain()
    reading.cancel()
    writer.close()


async def serve(listen: str, port: int, to: str, to_port: int, delay_s: float) -> None:
    """Relay every connection."""
    orphaned = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), orphaned.set)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(to, to_port)
        except OSError:  # nobody listens yet: the caller sees its connection end, and tries again
            writer.close()
            return
        await asyncio.gather(
            carry(reader, there_writer, delay_s), carry(there_reader, writer, delay_s)
        )

    server = await asyncio.start_server(accept, listen, port)
    print("relaying", flush=True)
    await orphaned.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(
        serve(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
    )
