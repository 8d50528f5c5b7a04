"""Runs that Locust does not begin."""

from starting.command import NO_SDK
from starting.fixtures import TESTS
from starting.programs import scripts_path

from tailgauge.errors import Exit


def test_a_run_whose_workers_left_before_it_began_ends_and_says_so(command, tmp_path):
    line = [
        "python",
        "-W",
        "error",
        TESTS / "locust_app/scripts/nobody_left.py",
        "run",
        "quickstart",
        *NO_SDK,
    ]

    done = command([*line, f"--out={tmp_path}"], 60, env=scripts_path())

    assert done.returncode == Exit.USAGE
    assert (
        done.stderr.splitlines()[-1]
        == "tailgauge: the workers left before the run began: run it again"
    )
    assert not (tmp_path / "runs").exists()
