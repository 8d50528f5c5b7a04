"""The copy is the one that runs, and every change of it is counted."""

import pytest


def test_the_copy_runs_itself(scratch):
    found = scratch.run(
        "-c",
        "import tailgauge, tailgauge_analysis; print(tailgauge.__file__, tailgauge_analysis.__file__)",
    )

    assert found.stdout.count(str(scratch.root)) == 2, found.stderr


def test_changed_files_are_counted_once(scratch):
    scratch.write("src/tailgauge/new.py", "VALUE = 1\n")
    scratch.insert("src/tailgauge/new.py", "VALUE = 1\n", "OTHER = 2\n")
    scratch.insert("src/tailgauge/__init__.py", "__version__ = ", "")
    assert len(scratch.changed) == 2


def test_a_place_that_is_not_unique_is_refused(scratch):
    with pytest.raises(AssertionError, match="not one"):
        scratch.insert("src/tailgauge/errors.py", "import", "x")
