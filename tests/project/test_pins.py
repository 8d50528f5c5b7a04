"""Versions: one place each, everything that the project needs pinned, names and versions only."""

import importlib.metadata
import itertools
import re
import tomllib

import pytest

import tailgauge

PIN = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*$")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def project(checkout) -> dict:
    return tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pins(checkout) -> list[str]:
    return (checkout / "constraints.txt").read_text(encoding="utf-8").splitlines()


def test_constraints_are_names_with_exact_versions(pins):
    assert [line for line in pins if not PIN.match(line)] == []


def test_constraints_are_sorted_and_name_nothing_again(pins):
    names = [normal(line.partition("==")[0]) for line in pins]

    assert sorted(set(names)) == sorted(names)


def test_every_declared_dependency_is_pinned(project, pins):
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    lists = [
        project["project"]["dependencies"],
        project["build-system"]["requires"],
        *extras.values(),
        *groups.values(),
    ]
    declared = itertools.chain.from_iterable(lists)
    wanted = {normal(re.split(r"[\s<>=!~\[;]", text, maxsplit=1)[0]) for text in declared}

    assert wanted - {normal(line.partition("==")[0]) for line in pins} == set()


def test_the_package_and_the_changelog_agree_on_the_version(checkout):
    changelog = (checkout / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[?(\d+\.\d+\.\d+)", changelog, re.MULTILINE)

    assert newest is not None
    assert importlib.metadata.version("tailgauge") == tailgauge.__version__ == newest.group(1)
