"""The size of the product and its folders, and that every module is reached from an entry point."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from project.import_walk import imported, modules, reached

HARNESS, ANALYSIS = "src/tailgauge", "analysis/tailgauge_analysis"
FOLDERS_AND_MODULES = {HARNESS: (18, 12), ANALYSIS: (12, 4)}
FILES, LINES = 25, 3000  # of one folder, without those below it
# 47,950 lines before limits, stop rules and checks of what peers send; 53,400 before the advice of experiments and patterns;
# 54,930 before load curves, baselines, runs until known and gateways; 54,211 before reads were kept without an object for each; 54,365 before
# these had values that change, or came under TLS; 54,466 before these, too, were kept without an object for each;
# 54,514 before a run that Locust does not begin ended with the reason.
PRODUCT_FILES, PRODUCT_LINES = 332, 54_519


def size(files: list[Path]) -> tuple[int, int]:
    return len(files), sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def folders(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Each folder with Python files, and those that lie in it."""
    for folder in (root, *sorted(path for path in root.rglob("*") if path.is_dir())):
        if files := sorted(folder.glob("*.py")):
            yield folder, files


@pytest.mark.parametrize("package", FOLDERS_AND_MODULES)
def test_a_package_shows_few_folders_and_few_modules(checkout: Path, package: str) -> None:
    below = [folder for folder, _ in folders(checkout / package)]
    top = [folder for folder in below if folder.parent == checkout / package]
    alone = list((checkout / package).glob("*.py"))

    most = FOLDERS_AND_MODULES[package]
    assert len(top) <= most[0], [folder.name for folder in top]
    assert len(alone) <= most[1], [file.name for file in alone]


@pytest.mark.parametrize("package", FOLDERS_AND_MODULES)
def test_no_folder_is_larger_than_the_ceilings(checkout: Path, package: str) -> None:
    sizes = {
        folder.relative_to(checkout).as_posix(): size(files) for folder, files in folders(checkout / package)
    }
    large = {name: (n, lines) for name, (n, lines) in sizes.items() if n > FILES or lines > LINES}

    assert large == {}


def test_the_product_stays_small(checkout: Path) -> None:
    """Every .py file of the harness and the analysis, raw lines."""
    files, lines = size(
        [file for package in (HARNESS, ANALYSIS) for file in (checkout / package).rglob("*.py")]
    )
    assert files <= PRODUCT_FILES
    assert lines <= PRODUCT_LINES


def test_an_entry_point_reaches_every_module(checkout: Path) -> None:
    """From the console script, `python -m tailgauge` and the locustfiles, by imports and modules named in strings."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    scripts = {target.partition(":")[0] for target in project["scripts"].values()}
    locustfiles = sorted((checkout / "locustfiles").glob("*.py"))
    entries = {"tailgauge.__main__", *scripts}.union(*map(imported, locustfiles))
    assert entries <= modules().keys()
    assert len(locustfiles) > 5

    assert sorted(modules().keys() - reached(entries)) == []
