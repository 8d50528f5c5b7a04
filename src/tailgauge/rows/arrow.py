"""pyarrow without pandas, for processes that keep time.

Rule: whoever makes arrays outside the analysis calls `settle` first, and names the type of every array.
"""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from typing import Any

import numpy as np
import pyarrow as pa


class _NoPandas(MetaPathFinder):
    """Makes `import pandas` fail."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:  # noqa: ARG002 - the protocol's names
        """Refuse pandas, know nothing of the rest."""
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not for processes that keep time")


def settle() -> None:
    """Let pyarrow look for pandas once, in vain; it asks at its first array and remembers the answer.

    Found, it would load 60,000 objects and hold the process up for 0.1 s in the middle of a run. (It forgets where it
    has to guess a type: every array here names its own.)
    """
    if "pandas" not in sys.modules:
        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        pa.array(np.zeros(1))
        sys.meta_path.remove(finder)
