"""What this process holds."""

from __future__ import annotations

import resource
from pathlib import Path


def memory() -> int:
    """Return its resident bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def descriptors() -> int:
    """Return the number of its open files."""
    return len(list(Path("/proc/self/fd").iterdir()))
