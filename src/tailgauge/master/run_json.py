"""The keys that run.json has after every run, real or dry: scenario, targets, versions, the process that led it, notes.

What only a real run has is added in run_record.py.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from tailgauge import __version__
from tailgauge.clock import boot_id
from tailgauge.patterns.table import facts as pattern_facts
from tailgauge.plugins import plugin
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.protocols.table import SDKS
from tailgauge.rows.schema import SCHEMA_VERSION
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.sessions import loop

PACKAGES = ("locust", "gevent", "greenlet", *SDKS, "httpx2", "pyarrow", "numpy")


def scenario_facts(
    scenario: Scenario, scenario_file: str, overrides: Sequence[str], urls: Sequence[str]
) -> dict[str, Any]:
    """Return what was run, and against which targets: `urls` are those that calls went to."""
    targets = []
    for target, url in zip(scenario.targets.values(), urls, strict=True):
        is_simulated = SIMULATED in {url, target.url}
        targets.append({"url": url, "simulated": is_simulated, "protocol": target.protocol})
    tables = scenario.traffic.values()
    return {
        "scenario": scenario.model_dump(mode="json"),
        "patterns": pattern_facts(tables),
        "plugins": plugin.facts(),
        "scenario_file": scenario_file,
        "overrides": list(overrides),
        "seed": scenario.seed,
        "arrival": loop(scenario.arrival, tables),
        "target": targets[0],
        "second_target": targets[1] if len(targets) > 1 else None,
    }


def frame(
    facts: dict[str, Any], state: str, notes: list[str], preflight: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return the keys that every run.json has; see docs/reference/data-format.md."""
    master = {
        **machine(),
        "pid": os.getpid(),
        "kernel": platform.release(),
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


def machine() -> dict[str, Any]:
    """Return what identifies this machine."""
    return {
        "host": platform.node(),
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu_model": _cpu_model(),
        "cpu_count": os.cpu_count(),
    }


def installed_versions() -> dict[str, str]:
    """Return the versions of what produces the numbers."""
    versions = {
        "tailgauge": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    for name in PACKAGES:
        try:
            versions[name] = version_of(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _cpu_model() -> str:
    """Return the processor's name, or its architecture where the system has no name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
