"""Scenarios: each is a plan, or a refusal that names file, key and what was expected."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from scenario.defects import defect
from scenario.mutations import PROMPTS

from tailgauge.scenario import prices
from tailgauge.scenario.packaged import names, packaged

FOLDER = Path(tempfile.mkdtemp(prefix="tailgauge-fuzz-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
SCENARIOS = packaged("scenarios")

(FOLDER / "prompts.jsonl").write_text(PROMPTS, encoding="utf-8")
shutil.copy(prices.PACKAGED, FOLDER / "prices.toml")
shutil.copytree(SCENARIOS / "traces", FOLDER / "traces")
os.chdir(FOLDER)
os.environ.pop("ANTHROPIC_API_KEY", None)


def corpus() -> list[bytes]:
    return [(SCENARIOS / f"{name}.toml").read_bytes() for name in names()]


def check(data: bytes) -> None:
    path = FOLDER / "mine.toml"
    path.write_bytes(data)
    _, wrong = defect(path, [], FOLDER)
    assert not wrong, wrong
