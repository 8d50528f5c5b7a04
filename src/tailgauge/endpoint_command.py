"""`tailgauge endpoint`: settings as in a scenario, then the server until it is told to stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailgauge import scenario as scenarios
from tailgauge.errors import UsageError
from tailgauge.simulator.latency import Latency
from tailgauge.simulator.server import serve
from tailgauge.simulator.settings import Settings


def settings(sets: Sequence[str], seed: int, options: Mapping[str, Any]) -> Settings:
    """The endpoint's settings from `simulated.key=value` texts and the command's own options."""
    tree: dict[str, Any] = {"name": "endpoint"}
    for text in sets:
        key, value = scenarios.override(text)
        table, dot, name = key.partition(".")
        if table != "simulated" or not dot:
            raise UsageError(
                f"--set {text}: expected simulated.KEY=VALUE, for example --set simulated.ttft_ms=300"
            )
        tree.setdefault("simulated", {})[name] = value
    wanted = scenarios.parse(
        tree, "--set", {f"simulated.{key}" for key in tree.get("simulated", {})}
    ).simulated
    variable = options["api_key_env"]
    if variable and not os.environ.get(variable):
        raise UsageError(f"--api-key-env {variable}: that environment variable is not set")
    if bool(options["certfile"]) != bool(options["keyfile"]):
        raise UsageError("--certfile and --keyfile belong together: give both or none")
    return Settings(
        latency=Latency(seed=seed, **wanted.model_dump()),
        embed_clock=options["embed_clock"],
        api_key=os.environ[variable] if variable else None,
        certfile=_path(options["certfile"]),
        keyfile=_path(options["keyfile"]),
    )


def _path(name: str | None) -> Path | None:
    return Path(name) if name else None


def serve_command(
    host: str,
    port: int,
    sets: Sequence[str],
    seed: int,
    options: Mapping[str, Any],
    on_listening: Callable[[str], None],
) -> None:
    """Serve until stopped."""
    serve(settings(sets, seed, options), host, port, on_listening=on_listening, lifeline=options["lifeline"])
