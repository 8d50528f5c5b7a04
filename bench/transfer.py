"""Cost of receiving rows in the master: CPU time per part and megabyte, and for 20,000 chunks/s from many workers.

    .venv/bin/python bench/transfer.py

Real parts, sealed and packed as on the channel, in one process that does nothing else; each figure is the median of five.
The cost of ZeroMQ is not included: docs/explanation/decisions has the master's total cost.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from tailgauge.channel.auth import Seal
from tailgauge.master.part_receiver import PartReceiver
from tailgauge.rows.parquet import PIECE, Segments, chunk_table, row_table, write_part
from tailgauge.rows.run_folder import RunFolder
from tailgauge.rows.schema import AttemptRow, Chunks, HealthRow, RequestRow
from tailgauge.worker.part_sender import PartSender

CHUNKS_PER_S, CHUNKS_OF_REQUEST, PART_S, TIMES = 20_000, 100, 4, 5
MEGABYTE = 1_000_000
SEAL, NODE = Seal("a token of this benchmark"), "worker_1"
RUN_NS = 10**14


def requests(count: int) -> list[RequestRow]:
    """Rows of requests that ended well."""
    return [
        RequestRow(65536 * i, "steady", "chat", "streaming", None, RUN_NS + i * 7_919_311, RUN_NS + i * 7_919_923,
                   RUN_NS + i * 7_919_999 + 10**9, "ok", 1, 1, 200, 100)
        for i in range(count)
    ]  # fmt: skip


def attempts(count: int) -> list[AttemptRow]:
    """Rows of their calls."""
    return [
        AttemptRow(65536 * i, 0, 0, "primary", None, "steady", "chat", "anthropic", "claude-haiku-4-5",
                   RUN_NS + i * 7_919_311, RUN_NS + i * 7_919_923)
        for i in range(count)
    ]  # fmt: skip


def chunks(count: int) -> Segments:
    """Segments of 100 chunks, 20 ms apart give or take a few."""
    rng, out = np.random.default_rng(1), Segments()
    for number in range(-(-count // CHUNKS_OF_REQUEST)):
        size = min(CHUNKS_OF_REQUEST, count - number * CHUNKS_OF_REQUEST)
        arrived = (
            RUN_NS + number * 7_919_311 + np.cumsum(rng.normal(20e6, 2e6, size).astype(np.int64))
        )
        read_at = arrived + rng.lognormal(10.7, 1, size).astype(np.int64)
        cells = Chunks(
            bytearray(size), array("q", arrived.tolist()), array("q", bytes(8 * size)), array("q", read_at.tolist()),
            array("i", range(size)), array("i", rng.integers(1, 6, size).tolist()),
        )  # fmt: skip
        out.add(65536 * number, 0, 0, 0, cells)
    return out


def spool(folder: RunFolder, chunk_rows: int) -> list[tuple[str, Path]]:
    """The parts that a worker of that share of the chunks leaves every four seconds."""
    folder.create()
    calls = max(1, chunk_rows // CHUNKS_OF_REQUEST)
    tables = {
        "requests": row_table("requests", requests(calls)),
        "attempts": row_table("attempts", attempts(calls)),
        "chunks": chunk_table(chunks(chunk_rows)),
        "health": row_table(
            "health", [HealthRow(RUN_NS + s * 10**9, *[s] * 15) for s in range(PART_S)]
        ),
    }
    for name, table in tables.items():
        write_part(folder.part(name, 1, 0), table)
    return [(name, folder.part(name, 1, 0)) for name in tables]


def on_the_channel(parts: list[tuple[str, Path]]) -> list[bytes]:
    """Their messages, packed as Locust packs them; the master's answers are made up, one at a time."""
    packed: list[bytes] = []

    def send(data: dict[str, Any]) -> None:
        sealed = SEAL.close("part", NODE, {"run": "one", "worker": 1, **data})
        packed.append(msgpack.packb(("tailgauge:part", sealed, NODE)))
        output.append({**data, "upto": data["offset"] + len(data["bytes"])})

    output: list[dict[str, Any]] = []
    outbox = PartSender(send)
    for name, path in parts:
        outbox.add(name, path)
    outbox.pump()
    while output:
        one = output.pop(0)
        outbox.got({**one, "state": "done" if one["upto"] == one["size"] else "more", "why": None})
    return packed


def received(packed: list[bytes]) -> float:
    """CPU seconds of the master for these messages, answers included."""
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path))
        folder.create()
        inbox = PartReceiver(folder)
        began = time.process_time()
        for message in packed:
            _, sealed, node = msgpack.unpackb(message, strict_map_key=False)
            answer = inbox.take(1, SEAL.open("part", node, sealed))
            msgpack.packb(
                ("tailgauge:got", SEAL.close("got", node, {"run": "one", **answer}), node)
            )
        took = time.process_time() - began
        if answer["state"] != "done":
            raise SystemExit(f"the part was not taken: {answer['why']}")
        return took


def median(act: Callable[[], float]) -> float:
    """Of five."""
    return statistics.median(act() for _ in range(TIMES))


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as path:
        print("workers  bytes a chunk row  parts/s   MB/s  master's core")
        for workers in (1, 4, 16, 64, 256):
            parts = spool(RunFolder(Path(path) / str(workers)), CHUNKS_PER_S * PART_S // workers)
            packed = on_the_channel(parts)
            size = sum(p.stat().st_size for _, p in parts)
            row = dict(parts)["chunks"].stat().st_size / (CHUNKS_PER_S * PART_S // workers)
            share = median(lambda: received(packed)) * workers / PART_S  # noqa: B023 - called at once
            print(
                f"{workers:7} {row:18.1f} {workers * len(parts) / PART_S:8.1f} "
                f"{size * workers / PART_S / MEGABYTE:6.2f} {share:12.2%}"
            )
        large = spool(RunFolder(Path(path) / "large"), 2_000_000)
        held = dict(large)["chunks"]
        big = on_the_channel([("chunks", held)])
        took = median(lambda: received(big))
        print(
            f"a part of {held.stat().st_size / MEGABYTE:.1f} MB: {1e3 * took / held.stat().st_size * MEGABYTE:.2f} ms/MB"
        )
        for name, part in spool(RunFolder(Path(path) / "small"), 100):
            one = on_the_channel([(name, part)])
            least = median(lambda: sum(received(one) for _ in range(50)) / 50)  # noqa: B023 - called at once
            print(
                f"the smallest part of {name}: {part.stat().st_size:,} bytes, {1e3 * least:.2f} ms"
            )
        print(f"pieces of {PIECE:,} bytes")


if __name__ == "__main__":
    main()
