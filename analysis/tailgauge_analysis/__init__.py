"""Parquet in; tables, verdicts, figures and reports out. Never imports locust or gevent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailgauge_analysis.runs import Percentile, Run, compare, list_runs, load

__all__ = ["Percentile", "Run", "compare", "list_runs", "load"]


def __getattr__(name: str) -> Any:
    """The Python API, loaded with pandas when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tailgauge_analysis import runs

    return getattr(runs, name)
