"""The example of docs/how-to/plugins.md: a plugin with one of each kind, and a scenario that needs it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/plugins.md"
PLUGIN, SCENARIO = "desk.py", "desk.toml"


def example(folder: Path) -> Path:
    """Write both files of the page into a folder; returns the scenario."""
    folder.mkdir(parents=True, exist_ok=True)
    text = PAGE.read_text(encoding="utf-8")
    for name, language in ((PLUGIN, "python"), (SCENARIO, "toml")):
        (block,) = re.findall(
            rf"^`{name}`:\n\n```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE
        )
        (folder / name).write_text(block, encoding="utf-8")
    return folder / SCENARIO
