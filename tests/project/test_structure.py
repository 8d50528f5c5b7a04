"""The folders of the product, and that every module is reached from an entry point."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from project.import_walk import imported, modules, reached

HARNESS, ANALYSIS = "src/tailgauge", "analysis/tailgauge_analysis"
FOLDERS = {HARNESS: 18, ANALYSIS: 12}


def folders(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Each folder with Python files, and those that lie in it."""
    for folder in (root, *sorted(path for path in root.rglob("*") if path.is_dir())):
        if files := sorted(folder.glob("*.py")):
            yield folder, files


@pytest.mark.parametrize("package", FOLDERS)
def test_a_package_shows_few_folders(checkout: Path, package: str) -> None:
    below = [folder for folder, _ in folders(checkout / package)]
    top = [folder for folder in below if folder.parent == checkout / package]

    assert len(top) <= FOLDERS[package], [folder.name for folder in top]


def test_an_entry_point_reaches_every_module(checkout: Path) -> None:
    """From the console script, `python -m tailgauge` and the locustfiles, by imports and modules named in strings."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    scripts = {target.partition(":")[0] for target in project["scripts"].values()}
    locustfiles = sorted((checkout / "locustfiles").glob("*.py"))
    entries = {"tailgauge.__main__", *scripts}.union(*map(imported, locustfiles))
    assert entries <= modules().keys()
    assert len(locustfiles) == 4

    assert sorted(modules().keys() - reached(entries)) == []
