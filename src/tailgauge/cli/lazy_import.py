"""Loading what a command needs, without looking for garbage in it.

Rule: nothing that an import makes is garbage, and Python would search all of it again and again: a fifth of the time
that Locust, an SDK or pandas take to load, and as much again when the interpreter ends.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import in here. What stands then is not searched later either; what comes after it is, as ever."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
