"""Price files: each is read, or a refusal names file, key and what was expected."""

from __future__ import annotations

from fuzz.targets.scenario import FOLDER, SCENARIOS
from scenario.defects import defect

from tailgauge.scenario import prices

STREAMING = FOLDER / "mine.toml"
STREAMING.write_bytes((SCENARIOS / "streaming.toml").read_bytes())


def corpus() -> list[bytes]:
    return [prices.PACKAGED.read_bytes()]


def check(data: bytes) -> None:
    (FOLDER / "prices.toml").write_bytes(data)
    _, wrong = defect(STREAMING, [("guard.prices", "prices.toml")], FOLDER)
    assert not wrong, wrong
