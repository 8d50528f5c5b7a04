"""What our client costs and how true its times are, beside a native client: `make bench`, or

    .venv/bin/python bench/client.py [--quick] [--streams 50 500] [--seconds 10] [--repeat 3] [--write]

Rule: everything that is compared is measured in one run, in turn, and the medians are taken of the repetitions.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import clients
from measure import Result
from truth import Load


def _row(name: str, result: Result, ratio: float | None) -> str:
    part = asdict(result)
    return f"{name:24} {ratio or 1:5.2f}  " + "  ".join(
        f"{key}={value:.4g}" for key, value in part.items() if value is not None
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[500])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--chunks", type=int, default=200)
    parser.add_argument("--protocol", default="openai")
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    cores = clients.Cores.found()
    for streams in arguments.streams:
        ttft_ms = 200 if arguments.chunks > 1 else 50
        load = Load(
            streams,
            arguments.seconds,
            arguments.chunks,
            ttft_ms,
            protocol=arguments.protocol,
            tls=arguments.tls,
        )
        done: dict[str, list[Result]] = {}
        for _ in range(arguments.repeat):
            for name, client in (("reference", clients.reference), ("tailgauge", clients.tailgauge)):
                if name == "reference" and load.tls:
                    continue
                with tempfile.TemporaryDirectory() as folder:
                    result = client(load, cores, Path(folder))
                done.setdefault(name, []).append(result)
                c = done.get("reference", [result])[-1]
                print(_row(f"{streams} {name}", result, result.us_per_chunk / c.us_per_chunk), flush=True)


if __name__ == "__main__":
    main()
