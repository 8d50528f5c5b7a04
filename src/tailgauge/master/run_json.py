"""The keys that run.json has after every run, real or dry: the process that led it, versions, notes."""

from __future__ import annotations

import os
import platform
from typing import Any

from tailgauge.clock import boot_id
from tailgauge.plan.certificate import installed_versions
from tailgauge.rows.schema import SCHEMA_VERSION


def frame(
    facts: dict[str, Any], state: str, notes: list[str], preflight: list[dict[str, Any]]
) -> dict[str, Any]:
    """Keys that every run.json has; see docs/reference/data-format.md."""
    master = {
        "host": platform.node(),
        "pid": os.getpid(),
        "kernel": platform.release(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_count": os.cpu_count(),
        "python": platform.python_version(),
        "boot_id": boot_id(),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        **facts,
        "state": state,
        "versions": installed_versions(),
        "master": master,
        "notes": list(notes),
        "preflight": list(preflight),
        "verdict": None,
    }
