"""Imports between folders, statically and in fresh interpreters."""

import re
import sys
from pathlib import Path

import pytest

WATCH = """
import gc, importlib, sys
gc.disable()  # nothing here is garbage
unwanted, *modules = sys.argv[1:]
for name in modules:
    importlib.import_module(name)
    loaded = [word for word in unwanted.split(",") if word in sys.modules]
    if loaded:
        sys.exit(f"importing {name} loads {loaded}")
gc.freeze()
"""


def modules_under(root: Path, package: str) -> list[str]:
    files = sorted((root / package).rglob("*.py"))
    names = [".".join(file.relative_to(root).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names if not name.endswith("__main__")]


def test_every_import_contract_is_kept(checkout, command):
    linter = Path(sys.executable).with_name("lint-imports")

    result = command([linter, "--no-logo", "--no-cache"], cwd=checkout)

    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("root", "package", "unwanted"),
    [
        ("src", "tailgauge", "pandas,plotly,tailgauge_analysis"),
        ("analysis", "tailgauge_analysis", "locust,gevent,anthropic,openai"),
    ],
)
def test_importing_every_module_of_a_package_loads_nothing_that_the_package_must_do_without(
    checkout, command, root, package, unwanted
):
    """One interpreter imports them one after the other: if nothing unwanted is there at the end, no module loads it.

    Experiments are left out: they look at runs by the analysis, and only commands that need them load them.
    """
    found = modules_under(checkout / root, package)
    modules = [name for name in found if not name.startswith("tailgauge.experiments.")]
    assert modules != []

    result = command(["python", "-c", WATCH, unwanted, *modules], timeout_s=120)

    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_an_experiment_loads_neither_plotly_nor_jinja_until_it_writes_its_answer(checkout, command):
    """pandas comes at once: the first thing that every experiment does is to read a dry run."""
    found = modules_under(checkout / "src", "tailgauge")
    modules = [name for name in found if name.startswith("tailgauge.experiments")]
    assert len(modules) >= 10

    result = command(["python", "-c", WATCH, "plotly,jinja2", *modules], timeout_s=60)

    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_every_module_is_imported_somewhere(checkout):
    """By name, or by a table of names; import-linter does not look for modules that nothing needs."""
    names = [
        *modules_under(checkout / "src", "tailgauge"),
        *modules_under(checkout / "analysis", "tailgauge_analysis"),
    ]
    folders = ("src", "analysis", "locustfiles")
    files = [path for folder in folders for path in (checkout / folder).rglob("*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    unused = []
    for name in names:
        package, _, module = name.rpartition(".")
        importing = rf"from {re.escape(package)} import (\([^)]*|.*)\b{module}\b"
        if not re.search(rf"\b{re.escape(name)}\b|{importing}", text):
            unused.append(name)

    assert unused == []
