"""A target that begins to fail is spared: the run stops, fails, and says when, why and what it has spent."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Iterator

import pytest
from run_folders.dry_runs import NOT_DRY, dry_run_of
from run_folders.run_data import RunData, assert_conserved
from wire.answering import Answer, Received, stream, target, whole
from wire.pieces import DONE, ROLE, STOP, pieces_of_text, usage

from tailgauge.channel.traffic_counters import TrafficCounters
from tailgauge.master.progress import Progress
from tailgauge.master.stop_rules import StopRules
from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import packaged

ANSWER = stream(ROLE, *pieces_of_text(), STOP, usage(4, 40), DONE)
ERROR = whole(500, {"error": {"message": "broken"}})


class Failing:
    """Answers until `fails` is set, then HTTP 500. `calls`: when each call came, and its status."""

    def __init__(self) -> None:
        self.fails = False
        self.calls: list[tuple[float, int]] = []

    def answer(self, seen: Received) -> Answer:
        self.calls.append((seen.at_s, 500 if self.fails else 200))
        return ERROR if self.fails else ANSWER


@pytest.fixture
def failing() -> Failing:
    return Failing()


@pytest.fixture
def url(failing: Failing) -> Iterator[str]:
    with target("openai", {"tiny": failing.answer}, frozenset({"tiny"})) as serving:
        yield serving.url


@pytest.mark.slow
def test_a_target_that_fails_from_a_moment_on_is_spared_within_ten_seconds(start, failing, url):
    fails_at, rate = 20, 10
    running = start(
        "run", "streaming", f"--target={url}", "--workers=2", f"--rate={rate}",
        "--duration=90", "--json", "--set=target.protocol=openai", "--set=stages.warmup_s=1",
        "--set=traffic.chat.retry.policy=naive", "--set=traffic.chat.retry.max_retries=1",
    )  # fmt: skip
    running.wait_for_start(fails_at)
    failing.fails = True
    failed_at = time.monotonic()

    done = running.finish(60)

    facts, (line,) = done.run.facts, done.stdout.splitlines()
    report = done.report_data
    began, stopped = facts["start_at_ns"] / 1e9, facts["admission_end_at_ns"] / 1e9
    assert stopped - failed_at < 10, facts["notes"]
    assert max(at for at, _ in failing.calls) < stopped + 2, "no retry either"
    assert any(status == 500 for _, status in failing.calls)
    code = 3 if report["verdict"]["status"] == "INVALID" else 1  # on a busy machine
    assert (done.code, json.loads(line)["exit_code"], facts["state"]) == (code, code, "stopped")
    counts = assert_conserved(done.run)
    assert (counts["lost"], counts["not_reached"] > 50 * rate) == (0, True)
    assert [worker["state"] for worker in facts["workers"]] == ["drained", "drained"]

    # when and why
    at, _, why = facts["stopped"].partition(" s into the run: ")
    assert float(at) == pytest.approx(stopped - began, abs=1.5)
    assert why.endswith("requests completed (stop.min_completed 50%)")
    assert report["result"]["outcome"] == "FAIL"
    assert report["result"]["sentence"] == f"stopped {facts['stopped']}"
    how = "to continue the run anyway, add --set stop.min_completed=0"
    assert f"note: stopped {facts['stopped']}; {how}" in done.stderr

    # what was spent, by the target's own log
    ok = sum(status == 200 for _, status in failing.calls)
    spent = f"spent: {len(failing.calls):,} calls, {44 * ok:,} tokens, "
    (text,) = [one for one in report["result"]["details"] if one.startswith("spent: ")]
    assert text.startswith(spent)
    assert text.endswith(f", usage of {len(failing.calls) - ok} calls unknown")


def packaged_scenarios() -> list[str]:
    files = sorted(packaged("scenarios").glob("*.toml"))
    return [
        f.stem
        for f in files
        if f.stem not in NOT_DRY and "experiment" not in tomllib.loads(f.read_text())
    ]


@pytest.mark.slow("retries", "retry_storm")
@pytest.mark.parametrize("name", packaged_scenarios())
def test_no_rule_ends_a_packaged_scenario_whatever_it_plants(name, tmp_path, full_size):
    """At its full length: the rules look at what a dry run has counted by each second."""
    if not (full_size or name in {"retry_storm", "retries"}):
        pytest.skip("at full size")
    run = RunData(dry_run_of(name, (), tmp_path))
    rules, requests, attempts = StopRules(load(name)), run.requests(), run.table("attempts")
    attempts = attempts[attempts.stage != "preflight"]
    assert len(requests) > 20

    for second in range(1, int(requests.ended_at_ns.max() / 1e9) + 2):
        ended, calls = (
            rows[rows.ended_at_ns < second * 1e9].ended.value_counts().to_dict()
            for rows in (requests, attempts)
        )
        progress = Progress(second, 1000.0, in_flight=1, all=TrafficCounters(ended, calls))
        assert rules.broken(progress) is None


def test_a_planted_retry_storm_runs_to_its_end(start, full_size):
    if not full_size:
        pytest.skip("at full size")

    done = start("run", "retry_storm").finish(150)

    counts = assert_conserved(done.run)
    assert done.run.facts["state"] == "complete", done.run.facts["notes"]
    assert counts["ended"]["ok"] < counts["dispatched"] / 2, "it is one"
