"""A module in the current folder never runs in a child process, which may have the provider's key."""

import subprocess

import pytest
from starting.command import run_command

from tailgauge import interpreter

NAMES = ("random", "json", "tailgauge_plugin_of_nobody")


@pytest.fixture
def planted(tmp_path):
    """A folder with modules that leave a mark where they are imported."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(
            f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n"
        )
    return tmp_path


@pytest.mark.parametrize("code", ["import random", "import json", "import tailgauge.rows.schema"])
def test_an_interpreter_does_not_import_from_the_current_folder(planted, code):
    subprocess.run(interpreter.command("-c", code), cwd=planted, check=True)

    assert not (planted / "ran").exists()


def test_no_other_place_starts_an_interpreter(checkout):
    places = [
        file.relative_to(checkout).as_posix()
        for root in ("src", "analysis")
        for file in sorted((checkout / root).rglob("*.py"))
        if "sys.executable" in file.read_text(encoding="utf-8")
    ]

    assert places == ["src/tailgauge/interpreter.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["run", "streaming", "--duration=2s"], 0),
        (
            ["run", "headroom", "--target=http://127.0.0.1:9"],
            4,
        ),  # the child tries to connect, and reports
    ],
    ids=["run", "experiment"],
)
def test_a_command_imports_nothing_from_the_current_folder(planted, arguments, code):
    done = run_command(["tailgauge", *arguments, "--out", planted / "out"], cwd=planted)

    assert done.returncode == code, done.stderr
    assert not (planted / "ran").exists()
