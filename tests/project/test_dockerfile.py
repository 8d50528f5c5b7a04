"""The Dockerfile and .dockerignore, as far as they can be judged without an engine: base, contents, who runs it."""

from __future__ import annotations

import fnmatch
import json
import os
import re

import pytest
from project.compose_file import ENTRY_POINT
from project.dockerfile import copied, stages

TOOLS = re.compile(r"\b(apt-get|gcc|make|git|curl|wget|build-essential|pip install)\b")


@pytest.fixture(scope="module")
def instructions(checkout):
    return stages(checkout)


@pytest.fixture(scope="module")
def ignored(checkout):
    """Whether .dockerignore keeps a path out of the build: of the lines that fit it or a folder above it, the last decides."""
    lines = (checkout / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]

    def is_ignored(path: str) -> bool:
        parts = path.split("/")
        above = {"/".join(parts[: n + 1]) for n in range(len(parts))}
        out = False
        for rule in rules:
            pattern = rule.removeprefix("!").removeprefix("**/")
            names = above | (set(parts) if "**/" in rule else set())
            if any(fnmatch.fnmatchcase(name, pattern) for name in names):
                out = not rule.startswith("!")
        return out

    return is_ignored


def test_both_stages_of_the_image_use_the_same_pinned_python(instructions):
    bases = [stage[0][1] for stage in instructions]

    assert len(bases) == 2
    assert len(set(bases)) == 1
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", bases[0])


def test_another_base_such_as_one_with_its_digest_replaces_both(checkout):
    text = (checkout / "Dockerfile").read_text(encoding="utf-8")

    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]


def test_the_image_that_runs_has_no_tools_no_root_and_tailgauge_as_its_entry_point(instructions):
    last = instructions[-1]
    instructions = {line[0]: " ".join(line[1:]) for line in last}

    assert [line for line in last if TOOLS.search(" ".join(line))] == []
    assert instructions["USER"] not in {"", "root", "0"}
    assert json.loads(instructions["ENTRYPOINT"]) == [ENTRY_POINT]
    assert instructions["COPY"].startswith("--from=build /opt/tailgauge ")


def test_the_image_is_made_from_files_that_exist_and_that_dockerignore_lets_in(ignored, checkout):
    sources = copied(checkout)

    assert {"pyproject.toml", "src", "analysis"} <= set(sources)
    assert [
        source for source in sources if not (checkout / source).exists() or ignored(source)
    ] == []
    inside = [f"{folder}/x/y.py" for folder in sources if (checkout / folder).is_dir()]
    assert [path for path in inside if ignored(path)] == []


def test_dockerignore_keeps_out_everything_else(ignored, checkout):
    there = {entry.name for entry in os.scandir(checkout)}

    let_in = {
        name for name in there | {".git", ".venv", ".env", "runs", "reports"} if not ignored(name)
    }

    assert let_in == set(copied(checkout))
    assert ignored("src/tailgauge/__pycache__/cli.cpython-311.pyc")
