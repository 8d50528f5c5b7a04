"""Tailgauge: distributed load testing for streaming LLM endpoints."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`StreamingUser`, for locustfiles: loaded when it is used, because Locust patches the process."""
    if name == "StreamingUser":
        return import_module("tailgauge.locust_app.users").StreamingUser
    raise AttributeError(f"module 'tailgauge' has no attribute {name!r}")
