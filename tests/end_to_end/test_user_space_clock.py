"""Our own clock instead of the kernel's: by choice, and on a system that has no other. The run says so everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from run_folders.run_data import RunData, assert_conserved
from starting.command import NO_SDK, Running
from starting.programs import LOCUST, TAILGAUGE

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
PACE = (
    "simulated.ttft_ms=100",
    "simulated.chunk_gap_ms=20",
    "arrival.rate_per_s=20",
    "stages.duration_s=3",
)
SETS = [f"--set={text}" for text in PACE]
LOCUSTFILE = str(HERE / "no_kernel_stamps_locustfile.py")
LINES = {
    "chosen": [TAILGAUGE, "run", "streaming", "--clock", "user", *SETS],
    "elsewhere": [LOCUST, "-f", LOCUSTFILE, "--headless", "-t", "60s", *SETS],
}


def ran(name: str, out: Path) -> tuple[RunData, Any, str]:
    done = Running([*LINES[name], *NO_SDK, "--out", str(out)], out, {}, out.parent).finish()
    return done.run, done.report_data, (done.report / "report.html").read_text()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """Both at the same time."""
    folder = tmp_path_factory.mktemp("clocks")
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(ran, name, folder / name) for name in LINES}


@pytest.mark.parametrize("name", LINES)
def test_every_row_says_who_stamped_it(runs, name):
    run, report, page = runs[name].result()
    attempts, chunks = run.table("attempts"), run.table("chunks")

    counts = assert_conserved(run)
    assert counts["ended"]["ok"] > 30
    assert (attempts.stamps == "user").all()
    assert [worker["stamps"] for worker in run.facts["workers"]] == ["user"]
    assert (chunks.lag_ns == 0).all(), "one clock: nothing to compare it with"
    assert report["stamps"]["user_attempts"] == len(attempts)
    assert report["stamps"]["kernel_attempts"] == 0
    assert f"user space in {len(attempts)} attempts, kernel in 0 attempts" in page


@pytest.mark.parametrize("name", LINES)
def test_every_stamp_is_a_range_then(runs, name):
    """From the last poll that found the socket empty to the reading: a late loop shows as a wide one."""
    run, report, _ = runs[name].result()
    attempts, chunks = run.table("attempts").query("ended == 'ok'"), run.table("chunks")
    widths = attempts.first_content_at_ns - attempts.first_content_low_at_ns

    assert not chunks.exact.any()
    assert attempts.first_content_low_at_ns.notna().all()
    assert 0 < widths.median() < 20_000_000
    errors = [one for one in report["client_error"] if one["metric"] == "ttft_sent"]
    assert all(one["lows_value"] < one["highs_value"] for one in errors)


def test_the_choice_is_in_the_scenario_of_the_run(runs):
    assert runs["chosen"].result()[0].facts["scenario"]["clock"] == "user"
