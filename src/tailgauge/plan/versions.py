"""Versions of what produces the numbers."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from tailgauge import __version__
from tailgauge.protocols.table import SDKS

PACKAGES = ("locust", "gevent", "greenlet", *SDKS, "httpx2", "pyarrow", "numpy")


def installed_versions() -> dict[str, str]:
    """Versions of what produced the numbers."""
    found = {"tailgauge": __version__, "python": platform.python_version(), "kernel": platform.release()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
