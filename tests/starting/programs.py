"""The programs of this environment, and the variables they start with."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

TAILGAUGE = str(Path(sys.executable).with_name("tailgauge"))
LOCUST = str(Path(sys.executable).with_name("locust"))


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment with some changes."""
    return {**os.environ, **(changes or {})}


def scripts_path() -> dict[str, str]:
    """What a script of tests/ needs to import its neighbours."""
    found = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return {"PYTHONPATH": os.pathsep.join(filter(None, found))}
