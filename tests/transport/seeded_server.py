"""A server of its own process, with or without TLS, whose answers follow from the paths of the requests."""

import asyncio
import random
import ssl
import subprocess
import sys
from contextlib import contextmanager

EVENT = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n'


def answer(seed):
    rng = random.Random(seed)
    sizes = (1, 3, 40, 400, 3000, 90_000)
    return [rng.randbytes(rng.choice(sizes)).hex().encode() for _ in range(rng.randrange(2, 60))]


def events(seed):
    """Events, and the text of all of them."""
    rng = random.Random(seed)
    texts = [
        b"%x " % rng.randrange(1 << 4 * rng.randrange(1, 9)) for _ in range(rng.randrange(2, 600))
    ]
    return [EVENT % text for text in texts], b"".join(texts)


def chunk(data):
    return b"%x\r\n%b\r\n" % (len(data), data)


async def flood(writer, size):
    piece = chunk(b"x" * 65_536)
    for _ in range(size // 65_536):
        writer.write(piece)
        await writer.drain()


async def in_random_pieces(writer, wire, rng):
    while wire:
        size = rng.choice((1, 7, 200, 5_000, 100_000))
        writer.write(wire[:size])
        wire = wire[size:]
        if rng.random() < 0.3:
            await writer.drain()
            await asyncio.sleep(rng.choice((0, 0, 0.001, 0.004)))


async def respond(writer, kind, argument):
    """Whether the answer was whole."""
    if kind == "flood":
        await flood(writer, int(argument))
        return True
    rng = random.Random(argument)
    if kind == "answer":
        pieces = answer(argument)
    else:
        pieces, _ = events(argument)
        for piece in pieces[:2]:  # whole: what follows may be plain
            writer.write(chunk(piece))
            await writer.drain()
            await asyncio.sleep(0.03)
        pieces = pieces[2:]
    await in_random_pieces(writer, b"".join(map(chunk, pieces)), rng)
    return rng.random() >= 0.1


async def serve(reader, writer):
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    try:
        while request := await reader.readuntil(b"\r\n\r\n"):
            kind, argument, *_ = request.split()[1].decode().split("/")[-1].split("-")
            writer.write(head)
            if not await respond(writer, kind, argument):
                break
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    writer.close()


@contextmanager
def running_server(*certificate):
    with subprocess.Popen(
        [sys.executable, __file__, *certificate], stdout=subprocess.PIPE, text=True
    ) as child:
        scheme = "https" if certificate else "http"
        try:
            yield f"{scheme}://127.0.0.1:{int(child.stdout.readline())}"
        finally:
            child.terminate()


async def main():
    tls = None
    if len(sys.argv) > 1:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(sys.argv[1])
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
