"""The workflow of public CI and the pre-commit hook run targets of the Makefile, on every supported Python."""

import re
import tomllib

import pytest
import yaml


@pytest.fixture(scope="module")
def targets(checkout):
    return set(
        re.findall(
            r"^([a-z-]+):", (checkout / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
        )
    )


@pytest.mark.skipif(
    "not config.rootpath.joinpath('.github').exists()", reason="an sdist has no workflow"
)
def test_the_workflow_tests_every_python_from_the_oldest_supported(checkout, targets):
    text = (checkout / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    job = yaml.safe_load(text)["jobs"]["test"]
    project = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    versions = job["strategy"]["matrix"]["python"]

    assert f">={versions[0]}" == project["requires-python"]
    assert versions == [f"3.{minor}" for minor in range(11, 11 + len(versions))]
    assert job["steps"][-1]["run"].split()[-1] in targets


@pytest.mark.skipif(
    "not config.rootpath.joinpath('.github').exists()", reason="an sdist has no hooks"
)
def test_the_pre_commit_hook_runs_a_target(checkout, targets):
    tree = yaml.safe_load((checkout / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    (hook,) = tree["repos"][0]["hooks"]

    assert hook["entry"].removeprefix("make ") in targets
