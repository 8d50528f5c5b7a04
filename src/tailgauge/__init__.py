"""Tailgauge: distributed load testing for streaming LLM endpoints."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailgauge.cli.python import run as run
    from tailgauge.locust_app.users import StreamingUser as StreamingUser

__version__ = "0.1.0"
# Loaded when they are used: Locust patches the process, and pandas takes a second.
_PUBLIC = {"StreamingUser": "tailgauge.locust_app.users", "run": "tailgauge.cli.python"}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tailgauge' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)
