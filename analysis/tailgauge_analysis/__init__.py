"""Parquet in; tables, verdicts, figures and reports out. Never imports locust or gevent.

Everything public is listed in api.py, and imported from this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailgauge_analysis.api import *  # noqa: F403


def __getattr__(name: str) -> Any:
    """Load a public name, with pandas, when it is first asked for."""
    if name.startswith("_") or name == "api":  # "api": until the module below is loaded
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("tailgauge_analysis.api"), name)
