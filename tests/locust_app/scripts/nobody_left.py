"""Script: `tailgauge run` with the arguments given, whose workers have left Locust when the run is to begin."""

from __future__ import annotations

from typing import Any

from tailgauge.cli.main import main
from tailgauge.locust_app.launch import Launch

await_workers = Launch._await_workers


def lose_them(launch: Launch, master: Any, display: Any) -> None:
    """Wait for the workers, and remove them, as Locust does with one that quits."""
    await_workers(launch, master, display)
    for node in list(master.runner.clients):
        del master.runner.clients[node]


if __name__ == "__main__":
    Launch._await_workers = lose_them  # type: ignore[method-assign]
    main()
