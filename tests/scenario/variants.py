"""Variants of the packaged scenarios, as a user makes them: commented lines below `# variant NAME: text`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tailgauge.scenario.packaged import names, packaged

HEADER = re.compile(r"# variant (\w+): \S.*")
COMMENTED_CODE = re.compile(r"# (?:\[+[\w.]+\]|\w+ = )")
TABLE = re.compile(r"\[+([\w.]+)\]")
KEY = re.compile(r"(\w+) = ")


def variants_of(scenario: str) -> list[str]:
    """The names of its variants, in the order of the file."""
    matches = map(HEADER.fullmatch, text_of(scenario).splitlines())
    return list(dict.fromkeys(match[1] for match in matches if match))


def all_variants() -> list[tuple[str, str]]:
    return [(scenario, variant) for scenario in names() for variant in variants_of(scenario)]


def variant_file(folder: Path, scenario: str, variants: Sequence[str]) -> Path:
    """A copy of a packaged scenario with the lines of some variants in use."""
    path = folder / f"{scenario}_{'_'.join(variants)}.toml"
    path.write_text(uncomment(text_of(scenario), variants), encoding="utf-8")
    return path


def uncomment(text: str, variants: Sequence[str]) -> str:
    """Remove the `# ` in front of the lines of these variants; a key that then appears twice keeps its later line."""
    lines: list[str] = []
    positions: dict[tuple[str, str], int] = {}
    block = table = ""
    for line in text.splitlines():
        if header := HEADER.fullmatch(line):
            block = header[1]
            continue
        if not line.startswith("# "):
            block = ""
        code = line.removeprefix("# ") if block in variants else line
        if opening := TABLE.match(code):
            table = opening[1]
        if key := KEY.match(code):
            earlier = positions.get((table, key[1]))
            if earlier is not None:
                lines[earlier] = ""
            positions[table, key[1]] = len(lines)
        lines.append(code)
    return "\n".join(lines) + "\n"


def code_outside_variants(scenario: str) -> list[str]:
    """Commented keys and tables that belong to no variant, so that no test reads them."""
    loose: list[str] = []
    is_in_block = False
    for line in text_of(scenario).splitlines():
        if HEADER.fullmatch(line):
            is_in_block = True
        elif not line.startswith("# "):
            is_in_block = False
        if COMMENTED_CODE.match(line) and not is_in_block:
            loose.append(line)
    return loose


def text_of(scenario: str) -> str:
    return (packaged("scenarios") / f"{scenario}.toml").read_text(encoding="utf-8")
