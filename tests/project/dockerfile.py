"""The Dockerfile as a test reads it: its stages, and what they take from the checkout."""

from __future__ import annotations

import re
from pathlib import Path


def stages(checkout: Path) -> list[list[list[str]]]:
    """The Dockerfile's instructions as words, stage by stage."""
    text = (checkout / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    found: list[list[list[str]]] = []
    base = ""
    for line in filter(None, map(str.split, lines)):
        if line[0] == "ARG" and not found:
            name, _, base = line[1].partition("=")
            assert name == "BASE"
            continue
        if line[0] == "FROM":
            found.append([])
        found[-1].append([word.replace("${BASE}", base) for word in line])
    return found


def copied(checkout: Path) -> list[str]:
    """Files and folders of the checkout that the first stage copies."""
    return [source for line in stages(checkout)[0] if line[0] == "COPY" for source in line[1:-1]]
