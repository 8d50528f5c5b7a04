"""The settings of `tailgauge endpoint`, as in a scenario."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tailgauge.errors import UsageError
from tailgauge.rows.text_file import refusal
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.simulated import Simulated
from tailgauge.simulator.engine.config import engine_of
from tailgauge.simulator.http.requests import ServerOptions

_TABLE = "simulated"


def settings(
    sets: Sequence[str], profile: str | None, options: Mapping[str, Any]
) -> tuple[Simulated, ServerOptions]:
    """The table `[simulated]` from `key=value` texts, and the server's options from those of the command."""
    pairs = [(_key(key), value) for key, value in map(scenarios.override, sets)]
    if profile is not None:
        pairs.append((f"{_TABLE}.profile", profile))
    tree: dict[str, Any] = {"name": "endpoint"}
    for key, value in pairs:
        scenarios.put(tree, key, value)
    table = scenarios.parse(tree, "--set", {key: f"--set {key}" for key, _ in pairs}).simulated
    engine_of(table)  # refuse an impossible one before anything starts
    variable = options["api_key_env"]
    if variable and not os.environ.get(variable):
        raise UsageError(f"--api-key-env {variable}: that environment variable is not set")
    if bool(options["certfile"]) != bool(options["keyfile"]):
        raise UsageError("--certfile and --keyfile: give both or neither")
    for option in ("certfile", "keyfile"):
        if options[option] and (why := refusal(options[option])):
            raise UsageError(f"--{option} {options[option]}: {why}")
    api_key = os.environ[variable] if variable else None
    return table, ServerOptions(api_key=api_key, certfile=options["certfile"], keyfile=options["keyfile"])


def _key(given: str) -> str:
    """The key with its table's name, which may be omitted."""
    return given if given.partition(".")[0] == _TABLE else f"{_TABLE}.{given}"
