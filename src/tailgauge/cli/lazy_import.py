"""Imports of a command without garbage collection.

Imported objects are never garbage, but Python scans them again and again: a fifth of the time to load Locust, an SDK or
pandas, and as much again at exit.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Import inside. Objects that exist at the end are never scanned; later ones are, as usual."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
