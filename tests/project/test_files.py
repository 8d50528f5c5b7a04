"""Names and first lines of the source files."""

import ast
from pathlib import Path

import pytest

FOLDERS = ("src", "analysis", "locustfiles", "tests", "docs", "bench")
BANNED = {"utils", "common", "helpers", "base", "manager", "factory", "registry"}


@pytest.fixture(scope="module")
def sources(checkout) -> dict[str, str]:
    """Text of every Python file of the project, by its path from the root."""
    files = [path for folder in FOLDERS for path in sorted((checkout / folder).rglob("*.py"))]
    return {
        path.relative_to(checkout).as_posix(): path.read_text(encoding="utf-8") for path in files
    }


def test_every_python_file_opens_with_a_docstring(sources):
    silent = [
        name
        for name, text in sources.items()
        if text.strip() and not ast.get_docstring(ast.parse(text))
    ]

    assert silent == []


def test_no_package_file_has_logic_in_its_init(sources):
    long = [
        name
        for name, text in sources.items()
        if name.endswith("__init__.py") and text.count("\n") > 20
    ]

    assert long == []


def test_no_file_or_folder_has_a_meaningless_name(sources):
    empty_names = [
        name
        for name in sources
        if BANNED & {part.strip("_") for part in Path(name).with_suffix("").parts}
    ]

    assert empty_names == []


def test_the_source_roots_are_not_empty(sources):
    """Guards the tests above: a moved folder would make them pass without looking at anything."""
    folders = {name.partition("/")[0] for name in sources}

    assert {"src", "analysis", "tests", "docs"} <= folders
