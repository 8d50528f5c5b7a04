"""The simulated endpoint as the master's child: started for a run, asked for its truth, stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tailgauge.channel.subprocess import Child
from tailgauge.errors import TailgaugeError
from tailgauge.master.http_get import straight
from tailgauge.rows.run_folder import RunFolder
from tailgauge.scenario.model import Scenario

START_S = 30.0
FETCH_S = 60.0


def start_endpoint(scenario: Scenario, log: Path) -> tuple[Child, str]:
    """Start `tailgauge endpoint` on a free port of loopback; returns the child and its URL."""
    settings = [
        f"--set=simulated.{key}={json.dumps(value)}" for key, value in flat(scenario.simulated.model_dump())
    ]
    child = Child(
        ["endpoint", "--port=0", "--lifeline", f"--seed={scenario.seed}", *settings], log, with_keys=False
    )
    try:
        line = child.first_line(START_S)
    except TailgaugeError:
        child.stop(1)
        raise
    return child, line.split()[-1]


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; what is left out has its default, which for most is to be off."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value


def fetch_server_log(url: str, run_id: str, folder: RunFolder, authority: str | None = None) -> list[str]:
    """Put the endpoint's truth log into the run folder; returns notes on what went wrong. `authority`: PEM to trust."""
    try:
        with straight(authority).open(
            f"{url}/tailgauge/server-log?run={run_id}&settled", timeout=FETCH_S
        ) as answer:
            body = answer.read()
            dropped, still = (
                answer.headers.get(f"x-tailgauge-server-log-{word}", "0") for word in ("dropped", "open")
            )
    except OSError as error:
        return [f"the endpoint's truth log could not be fetched: {error}"]
    path = folder.part("target", 0, "all")
    path.with_suffix(".tmp").write_bytes(body)
    path.with_suffix(".tmp").rename(path)
    notes = [] if dropped in {"", "0"} else [f"the endpoint's truth log left out {dropped} calls"]
    if still not in {"", "0"}:
        notes.append(
            f"the endpoint still worked on calls when its truth log was fetched, whose rows are not whole: {still}"
        )
    return notes
