"""`scratch`: a copy of the product for one test."""

import pytest
from extension.scratch import Scratch


@pytest.fixture
def scratch(tmp_path):
    return Scratch(tmp_path / "product")
