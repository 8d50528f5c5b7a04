"""Rule: the benchmark's scripts are no package; their folder is on the path for these tests alone."""

import shutil
import sys

import pytest


@pytest.fixture(scope="session", autouse=True)
def _scripts(checkout):
    sys.path.insert(0, str(checkout / "bench"))
    yield
    sys.path.remove(str(checkout / "bench"))


@pytest.fixture(scope="session")
def cc():
    """The C compiler, or the test is skipped."""
    found = shutil.which("cc")
    if found is None:
        pytest.skip("cc is not installed: the rig is written in C")
    return found
