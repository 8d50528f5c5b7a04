"""New Python interpreters: the one place that starts them.

`-P` keeps the current folder out of the module path. Without it a `random.py` beside the scenario would run in every
child process, in some of them with the provider's key.
"""

from __future__ import annotations

import sys


def command(*arguments: str) -> list[str]:
    """Return the command line of a new interpreter."""
    return [sys.executable, "-P", *arguments]


def path() -> str:
    """Return the path of this interpreter."""
    return sys.executable


def tailgauge(*arguments: str) -> list[str]:
    """Return the command line of `tailgauge` in a new interpreter."""
    return command("-m", "tailgauge", *arguments)
