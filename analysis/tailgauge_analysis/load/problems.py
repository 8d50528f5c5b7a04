"""Problems with the data, as values.

<<<<<<< HEAD
A problem is found while reading, a sentence that names the file, and never raised; the checks decide what it means.
=======
A problem is found while reading, described in one sentence that names the file, and never raised; the verdict decides what
it means for the numbers.
>>>>>>> aba3af7 (Loading and text formatting in plain words)
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
