"""A worker of another version is refused with both versions and both schemas; a lost one is ended with the run."""

import pytest

from tailgauge import __version__
from tailgauge.rows.schema import SCHEMA_VERSION


@pytest.fixture(scope="module")
def seen(run_script):
    return run_script("locust_app/scripts/users.py")


def test_a_worker_of_the_same_version_is_welcome(seen):
    assert seen["same"] == [["tailgauge:welcome", None, "w0"]]


@pytest.mark.parametrize(
    ("case", "version", "schema"),
    [("other_version", "0.0.1", SCHEMA_VERSION), ("other_schema", __version__, SCHEMA_VERSION - 1)],
)
def test_a_refusal_names_both_versions_and_both_schemas(seen, case, version, schema):
    ((kind, why, node),) = seen[case]

    assert (kind, node) == ("tailgauge:refused", "w0")
    assert why == (
        f"it has tailgauge {version} (row schema {schema}), the master has {__version__} (row schema {SCHEMA_VERSION}): "
        "install the same version"
    )


def test_a_lost_worker_that_lives_is_ended_although_locust_no_longer_knows_it(seen):
    all_quit = [
        ["quit", "w0"],
        ["quit", "w1"],
    ]  # w0 too: Locust forgets a worker that stops, until it is ready again

    assert seen["last_run"] == [[["quit", "w1"]], ["w0"], all_quit]
    assert seen["run_before_another"] == [[["stop", "w1"]], ["w0"], all_quit]


def test_ctrl_c_interrupts_a_run_but_ends_one_of_tasks_that_nothing_else_ends(seen):
    """A schedule without -t and with it, tasks with -t and without it: after Ctrl-C, then at the end of -t or by Stop."""
    after_ctrl_c = [["interrupted"], ["interrupted"], ["interrupted"], ["running"]]
    by_locust = [["cut_short"], ["cut_short"], ["running"], ["running"]]

    assert seen["ends"] == after_ctrl_c + by_locust


def test_requests_are_sent_for_as_long_as_the_run_time_says(seen):
    """Locust's timer begins before the preflight; whatever else ends a test ends it at once."""
    assert seen["run_times"]["the timer of -t"] >= 2000
    assert seen["run_times"]["its web page"] < 2000
    assert seen["run_times"]["Ctrl-C"] < 2000
