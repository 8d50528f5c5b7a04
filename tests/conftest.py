"""What every test may ask for: the checkout, and commands that cannot outlive their time.

Rule: nothing here imports the harness. Locust patches the process it is imported into, so whatever needs it
runs in a process of its own, through `command`.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from starting.command import run_command

pytest_plugins = ["starting.fixtures", "run_folders.fixtures"]

# The same examples each time, and no verdict by the clock of a busy machine.
settings.register_profile(
    "tailgauge", derandomize=True, deadline=None, database=None, max_examples=60
)
settings.load_profile("tailgauge")

FULL = os.environ.get("TAILGAUGE_FULL") == "1"
# Tests that compare times, by the beginning of their names, and those of `PATIENT`: `make pytest` runs them last, one at
# a time.
ALONE = (
    "bench/test_client.py",
    "bench/test_rig.py::test_the_chunks_of_a_herd",  # steps of 20 ms
    "bench/test_saturation.py",
    "end_to_end/test_calibration_ground_truths.py",
    "end_to_end/test_coordinated_omission.py",
    "end_to_end/test_client_stalls.py",
    "end_to_end/test_curve.py",
    "end_to_end/test_stalled_workers.py",
    "end_to_end/test_traces.py",
    "experiments/test_calibrate.py::test_the_quick_form",
    "many_machines/test_hosts.py",
    "many_machines/test_kill_matrix.py",
    "real_engine/test_harness.py::test_latencies",
    "real_engine/test_harness.py::test_a_call_that_is_given_up",
    "test_redaction.py::test_a_usual_text",
    "test_redaction.py::test_the_cost_grows",
    "transport/test_stopwatch.py",
)
# Tests that wait for seconds, or compare what differs by much: `make pytest` runs them one at a time before those of
# `ALONE`, beside what takes an idle core only.
PATIENT = (
    "end_to_end/test_gateway.py",
    "hostile/",  # deadlines of seconds, beside floods
    "transport/test_tls.py::test_the_end_of_an_answer",
    "wire/test_cases.py",
)
ALONE_IN_FULL = (  # the short forms compare no times and put little load on a worker
    "end_to_end/test_client_faults.py",
    "end_to_end/test_jobs.py::test_ten_thousand",
    "real_engine/test_decisions.py",
)
# Tests that measure no time, by the beginning of their names, but for those of `TIMED`: `make pytest` runs them beside
# the others, where a core is idle.
UNTIMED = (
    "analysis/",
    "dry_run/",
    "experiments/",
    "fuzz/",
    "patterns/",
    "plan/",
    "project/test_report_texts.py",
    "prompts/",
    "schedule/",
    "simulator/behaviours/",
    "simulator/core/",
    "simulator/engine/",
    "simulator/protocols/",
    "torture/",
    "wire/test_bad_ends.py",
    "wire/test_oracle.py",
    "wire/test_sdk_names.py",
)
TIMED = (
    "analysis/report/test_browser.py",
    "analysis/report/test_speed.py",
    "experiments/test_calibrate.py::test_the_quick_form",
)
# Tests of `make verify` only, by the beginning of their names: each is long, and a shorter one of its kind always runs.
AT_FULL_SIZE = (
    "analysis/metrics/test_hidden_tokens.py::test_an_objective_takes_the_pace_after_the_first_chunk[2",
    "analysis/metrics/test_hidden_tokens.py::test_no_objective_passes_on_hidden_tokens[anthropic-0.4",
    "analysis/metrics/test_hidden_tokens.py::test_no_objective_passes_on_hidden_tokens[openai-0.9",
    "analysis/sections/test_capacity.py::test_of_sixty_targets",
    "docs/test_command_blocks.py::test_the_commands_of_a_page_work[README]",
    "docs/test_command_blocks.py::test_the_commands_of_a_page_work[how-to/",
    "docs/test_tutorials.py::test_a_tutorial_works_as_written[gate-in-ci]",
    "dry_run/test_run_until_known.py::test_heavy_tails_in_bursts",
    "experiments/test_headroom.py::test_the_limit_is_found_where_its_errors_are_inside_a_200[overload]",
    "experiments/test_headroom.py::test_the_interval_holds_the_planted_rate_and_names_what_binds[requests]",
    "experiments/test_headroom.py::test_the_interval_holds_the_planted_rate_and_names_what_binds[input_tokens]",
    "experiments/loads/test_contradictions.py::test_where_reads_count_the_rows_fail_todays_rate[openai]",
    "experiments/loads/test_contradictions.py::test_where_reads_count_the_rows_fail_todays_rate[conversations]",
    "experiments/loads/test_contradictions.py::test_slots_without_a_queue_sustain_less_than_they_answer[anthropic",
    "experiments/test_hedging_runs.py::test_near_saturation",
    "experiments/test_hedging_runs.py::test_the_crossover_of_stragglers",
    "project/test_report_texts.py::test_no_answer_of_a_packaged_experiment_uses_a_word_of_the_table[checkup]",
    "project/test_report_texts.py::test_no_answer_of_a_packaged_experiment_uses_a_word_of_the_table[curve]",
    "project/test_report_texts.py::test_no_answer_of_a_packaged_experiment_uses_a_word_of_the_table[headroom]",
    "project/test_report_texts.py::test_no_answer_of_a_packaged_experiment_uses_a_word_of_the_table[models]",
    "docs/test_tutorials.py::test_the_tutorial_of_engines",
    "docs/test_tutorials.py::test_the_tutorial_of_locustfiles",
    "end_to_end/test_clients_that_leave.py::test_what_the_engine_counts_says_whether_it_goes_on[never]",
    "end_to_end/test_cold_cache.py",
    "end_to_end/test_conservation.py::test_a_second_ctrl_c",
    "end_to_end/test_flushing_proxies.py",
    "end_to_end/test_internal_errors.py::test_an_internal_error_in_the_middle_of_a_run_exits_70[a call",
    "end_to_end/test_internal_errors.py::test_an_internal_error_in_the_middle_of_a_run_exits_70[a s",
    "end_to_end/test_kept_answers.py",
    "end_to_end/test_load_not_sent.py::test_a_worker_whose_hub_is_blocked",
    "end_to_end/test_locustfile_of_a_user.py::test_tasks_a_shape",
    "end_to_end/test_locustfile_of_a_user.py::test_the_run_time_counts",
    "end_to_end/test_machine_limits.py::test_a_soft_limit",
    "end_to_end/test_overloads_in_band.py",
    "end_to_end/test_pauses.py::test_a_worker_that_was_stopped",
    "end_to_end/test_plain_locust.py::test_master_and_workers",
    "end_to_end/test_printed_commands_of_runs.py",
    "end_to_end/test_profile.py",
    "end_to_end/test_should_retry.py::test_the_policy_of_the_sdks_obeys_the_header[real, false]",
    "end_to_end/test_slow_output.py",
    "end_to_end/test_user_space_clock.py::test_every_row_says_who_stamped_it[chosen]",
    "extension/test_faults.py::test_a_behaviour_is_a_file_with_settings_and_the_places_that_call_it[real]",
    "extension/test_faults.py::test_a_fault_is_one_row_and_one_name[real]",
    "extension/test_protocols.py::test_a_protocol_touches_three_files_beside_those_of_the_simulator[real]",
    "many_machines/test_random_kills.py",
    "project/test_action.py::test_a_run_is_judged_by_the_baseline",
    "project/test_distribution.py::test_a_wheel_without_the_compiled_reader",
    "project/test_kubernetes.py::test_the_command_lines",
    "project/test_supply_chain.py::test_a_vulnerable_pin",
    "real_engine/test_harness.py::test_a_second_run",
    "real_engine/test_patterns.py",
    "rows/test_object_store.py::test_an_upload_that_fails_for_good",
    "transport/test_reader.py::test_no_byte_is_lost_doubled_or_moved_to_another_stream[python-many]",
)
LONG = (
    "tests/docs",
    "tests/end_to_end",
    "tests/hostile",
    "tests/many_machines",
    "tests/real_engine",
    "tests/simulator/http",
    "tests/analysis/report/test_browser",
    "tests/analysis/report/test_speed",
)
TESTS = Path(__file__).parent
Command = Callable[..., subprocess.CompletedProcess[str]]

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the commands do
signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # a background job of a shell ignores it, and so would its commands
gc.disable()  # until all is collected: none of it is garbage


def pytest_configure(config: pytest.Config) -> None:
    """Tests that measure no time take a core only where it would be idle."""
    if config.option.markexpr == "untimed":
        try:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        except (AttributeError, OSError):  # another system, or not allowed
            os.nice(19)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave unread what holds none of the tests that `make pytest` asks for."""
    if TESTS not in collection_path.parents:
        return None
    name, wanted = collection_path.relative_to(TESTS).as_posix(), config.option.markexpr
    if wanted in {"alone", "alone and not patient", "patient"}:
        return None if holds(name, [test.partition("::")[0] for test in alone()]) else True
    if wanted == "untimed":
        return None if holds(name, UNTIMED) and not name.startswith(TIMED) else True
    return True if "not untimed" in wanted and is_untimed(name) and not holds(name, TIMED) else None


def alone() -> tuple[str, ...]:
    """The tests that nothing else may run beside, by the beginning of their names."""
    return PATIENT + ALONE + (ALONE_IN_FULL if FULL else ())


def holds(name: str, beginnings: Iterable[str]) -> bool:
    """Whether a file or folder has tests whose names begin so."""
    return any(name.startswith(one) or one.startswith(name) for one in beginnings)


def is_untimed(name: str) -> bool:
    """Whether a test, or a file of tests, measures no time."""
    return name.startswith(UNTIMED) and not name.startswith(TIMED)


def pytest_collection_finish() -> None:
    """What stands now stands to the end: it is searched for garbage no more."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Nor does the interpreter's end search what the tests have made."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests; those that wait for whole runs come first, so that no core is idle at the end."""
    for item in items:
        name = item.nodeid.removeprefix("tests/")
        if not FULL and name.startswith(AT_FULL_SIZE):
            item.add_marker(
                pytest.mark.skip(reason="make verify: long, and a shorter test of its kind runs")
            )
        if name.startswith(alone()):
            item.add_marker("alone")
        elif is_untimed(name):
            item.add_marker("untimed")
        if name.startswith(PATIENT):
            item.add_marker("patient")
    items.sort(key=lambda item: not item.nodeid.startswith(LONG))


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Root of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def full_size() -> bool:
    """Whether `make verify` asked for longer runs and more repetitions."""
    return FULL


class Fuzz(NamedTuple):
    """The seed of a test that draws its cases, their numbers, and whether it repeats a single one."""

    seed: int
    numbers: Sequence[int]
    repeats_one: bool


@pytest.fixture
def fuzz(full_size: bool, capsys: pytest.CaptureFixture[str]) -> Callable[[int, int], Fuzz]:
    """For so many cases in the short and the full form; `TAILGAUGE_FUZZ=SEED` or `SEED-NUMBER` repeats them or one."""

    def draw(few: int, many: int) -> Fuzz:
        given, _, only = os.environ.get("TAILGAUGE_FUZZ", "").partition("-")
        seed = int(given or (secrets.randbits(32) if full_size else 19))
        with capsys.disabled():
            print(f"\nseed {seed}: repeat with TAILGAUGE_FUZZ={seed}")
        return Fuzz(seed, [int(only)] if only else range(many if full_size else few), bool(only))

    return draw


@pytest.fixture(scope="session")
def command() -> Command:
    """Run a command to its end, or kill it and all its children: `command([...], timeout_s=60)`."""
    return run_command
