"""Script: a master receives hello from workers of other versions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from starting.script import case, print_facts

from tailgauge import __version__
from tailgauge.channel.auth import Seal
from tailgauge.locust_app.users import Master
from tailgauge.rows.schema import SCHEMA_VERSION


def answer(version: str, schema: int) -> list[Any]:
    """Kind and reason of what a worker of this version receives."""
    sent: list[Any] = []
    handlers: dict[str, Any] = {}
    runner = SimpleNamespace(
        register_message=handlers.__setitem__,
        send_message=lambda kind, data, client_id=None: sent.append([kind, data.get("why"), client_id]),
    )
    event = SimpleNamespace(add_listener=lambda _: None)
    environment: Any = SimpleNamespace(
        runner=runner, events=SimpleNamespace(test_start=event, test_stopping=event)
    )
    master = Master(environment, None, Seal("0123456789abcdef"), stays=False)  # type: ignore[arg-type]
    master._on_hello("w0", {"version": version, "schema": schema})
    assert ("w0" in master.roster) == ("w0" not in master.refused)
    return sent


@case
def same() -> list[Any]:
    return answer(__version__, SCHEMA_VERSION)


@case
def other_version() -> list[Any]:
    return answer("0.0.1", SCHEMA_VERSION)


@case
def other_schema() -> list[Any]:
    return answer(__version__, SCHEMA_VERSION - 1)


print_facts()
