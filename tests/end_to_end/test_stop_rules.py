"""A target that begins to fail is spared: the run stops, fails, and says when, why and what it has spent."""

from __future__ import annotations

import json
import threading
import time
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from run_folders.dry_runs import NOT_DRY, dry_run_of
from run_folders.run_data import RunData, assert_conserved
from starting.command import Start

from tailgauge.channel.traffic_counters import TrafficCounters
from tailgauge.master.progress import Progress
from tailgauge.master.stop_rules import StopRules
from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import packaged

DELTA = {"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
CHUNK = {
    "id": "1",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "tiny",
    "choices": [DELTA],
}
USED = CHUNK | {
    "choices": [],
    "usage": {"prompt_tokens": 40, "completion_tokens": 4, "total_tokens": 44},
}
ANSWER = "".join(f"data: {text}\n\n" for text in (json.dumps(CHUNK), json.dumps(USED), "[DONE]"))
ERROR = json.dumps({"error": {"message": "broken"}})


class Failing(ThreadingHTTPServer):
    """Answers until `fails` is set, then HTTP 500. `calls`: when each call came, and its status."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.fails = False
        self.calls: list[tuple[float, int]] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Failing

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status = 500 if self.server.fails else 200
        self.server.calls.append((time.monotonic(), status))
        body = (ANSWER if status == 200 else ERROR).encode()
        self.send_response(status)
        self.send_header(
            "content-type", "text/event-stream" if status == 200 else "application/json"
        )
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing: the log is `calls`."""


@pytest.fixture
def target() -> Iterator[Failing]:
    with Failing() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.at_full_size
def test_a_target_that_fails_from_a_moment_on_is_spared_within_ten_seconds(
    start: Start, target: Failing, full_size: bool
) -> None:
    fails_at, rate = (20, 10) if full_size else (3, 30)
    running = start(
        "run", "streaming", f"--target=http://127.0.0.1:{target.server_port}", "--workers=2", f"--rate={rate}",
        "--duration=90", "--json", "--set=target.protocol=openai", "--set=stages.warmup_s=1",
        "--set=traffic.chat.retry.policy=naive", "--set=traffic.chat.retry.max_retries=1",
    )  # fmt: skip
    running.wait_for_start(fails_at)
    target.fails = True
    failed_at = time.monotonic()

    done = running.finish(60)

    facts, (line,) = done.run.facts, done.stdout.splitlines()
    report = json.loads((done.report / "report.json").read_text())
    began, stopped = facts["start_at_ns"] / 1e9, facts["admission_end_at_ns"] / 1e9
    assert stopped - failed_at < 10, facts["notes"]
    assert max(at for at, _ in target.calls) < stopped + 2, "no retry either"
    assert any(status == 500 for _, status in target.calls)
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
    how = "to go on all the same, add --set stop.min_completed=0"
    assert f"note: stopped {facts['stopped']}; {how}" in done.stderr

    # what was spent, by the target's own log
    ok = sum(status == 200 for _, status in target.calls)
    spent = f"spent: {len(target.calls):,} calls, {44 * ok:,} tokens, "
    (text,) = [one for one in report["result"]["details"] if one.startswith("spent: ")]
    assert text.startswith(spent)
    assert text.endswith(f", usage of {len(target.calls) - ok} calls unknown")


def packaged_scenarios() -> list[str]:
    files = sorted(packaged("scenarios").glob("*.toml"))
    return [
        f.stem
        for f in files
        if f.stem not in NOT_DRY and "experiment" not in tomllib.loads(f.read_text())
    ]


@pytest.mark.at_full_size("retries", "retry_storm")
@pytest.mark.parametrize("name", packaged_scenarios())
def test_no_rule_ends_a_packaged_scenario_whatever_it_plants(
    name: str, tmp_path: Path, full_size: bool
) -> None:
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


def test_a_planted_retry_storm_runs_to_its_end(start: Start, full_size: bool) -> None:
    if not full_size:
        pytest.skip("at full size")

    done = start("run", "retry_storm").finish(150)

    counts = assert_conserved(done.run)
    assert done.run.facts["state"] == "complete", done.run.facts["notes"]
    assert counts["ended"]["ok"] < counts["dispatched"] / 2, "it is one"
