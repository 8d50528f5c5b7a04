"""What was wrong with the data, as values.

A problem is found while reading, a sentence that names the file, and never raised; the checks decide what it means.
"""

from __future__ import annotations

from dataclasses import dataclass

DAMAGED = "damaged"  # a part or file that cannot be read: its rows are missing
MASTER = "master"  # the run's master left no record
UNFINISHED = "unfinished"  # a *.tmp file left behind
NOTE = "note"  # worth knowing, costs nothing


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding about the data."""

    kind: str
    text: str
