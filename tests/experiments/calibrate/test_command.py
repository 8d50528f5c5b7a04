"""`tailgauge calibrate`, end to end: one short step here, all of `--quick` at full size. See scripts/command.py."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def seen(run_script: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    facts: dict[str, Any] = run_script(
        "experiments/calibrate/scripts/command.py", tmp_path_factory.mktemp("certificate")
    )
    return facts


def test_a_step_under_tls_is_measured_against_the_endpoints_sends(seen: dict[str, Any]) -> None:
    (step,) = seen["measured"]["result"]["steps"]

    assert (step["transport"], step["latency_model"]) == ("tls", "lognormal")
    assert step["ttft"]["n"] >= 20
    assert step["gap"]["n"] > 30 * step["ttft"]["n"]
    assert step["sent_per_s"] == pytest.approx(1200, rel=0.5)  # arrivals are random
    assert 0 < step["ttft"]["bias_ms"] < 20  # later than it was sent, and far less than a TTFT of 100 ms
    assert step["ttft"]["p99_reference_ms"] > 100
    assert step["cpu_us_per_chunk"] > 0
    assert not any("log" in why for why in step["failed"])  # every call was found, with all its chunks


def test_the_certificate_is_stored_and_told(seen: dict[str, Any]) -> None:
    measured = seen["measured"]

    assert measured["stored"]
    lines = measured["text"].splitlines()
    assert any(f"certificate {measured['result']['id']} of one worker" in line for line in lines)
    assert any(line.startswith("  under TLS: ") for line in lines)
    assert [line for line in lines if len(line) > 80 and not line.startswith("next")] == []
    assert any("lognormal TTFT: 1,200 chunks/s over 3 s" in line for line in measured["messages"])


def test_a_run_may_cite_what_passed_and_no_other_transport(seen: dict[str, Any]) -> None:
    measured = seen["measured"]
    if measured["result"]["steps"][0]["failed"]:  # a busy machine: honest, and no rate holds
        assert (measured["exit_code"], measured["tls"]) == (3, "no rate passed its criteria on this machine")
    else:
        assert (measured["exit_code"], measured["tls"]["id"]) == (0, measured["result"]["id"])
    assert measured["plain"] == "does not cover connections without TLS"


def test_what_there_is_no_time_for_is_left_out_and_told(seen: dict[str, Any]) -> None:
    found = seen["no_time"]

    assert found["left_out"] == {
        f"{name}, constant TTFT": "no time left of 20 s" for name in seen["transports"]
    }
    assert (found["transports"], found["exit_code"]) == ({"plain": None, "tls": None}, 3)
    assert found["text"].startswith("INVALID  do not use these numbers\n")
    assert "under TLS: not measured" in found["text"]


def test_a_planned_rate_is_tried_at_half_whole_and_half_more(seen: dict[str, Any]) -> None:
    plans = seen["planned"]

    assert plans["8000.0"] == ["planned", "user", [4000, 8000, 12000], 3, ["plain", "tls"]]
    assert plans["400.0"][2:4] == [[200, 400, 600], 9]  # longer steps: forty requests in the lowest
    assert plans["100.0"] == "--planned: expected 250 to 200,000 chunks/s, got 100"
    assert plans["10000000.0"] == "--planned: expected 250 to 200,000 chunks/s, got 10,000,000"


def test_the_quick_form_and_a_run_that_cites_it(command: Any, full_size: bool, tmp_path: Path) -> None:
    if not full_size:
        pytest.skip("make verify")
    env = {"XDG_STATE_HOME": str(tmp_path)}
    began = time.monotonic()
    done = command(["tailgauge", "calibrate", "--quick"], 120, env=env)
    took_s = time.monotonic() - began

    assert done.returncode == 0, done.stdout + done.stderr
    assert took_s < 65
    made = json.loads((tmp_path / "tailgauge" / "certificate.json").read_text())
    for name in ("plain", "tls"):
        assert made["transports"][name]["holds_to_per_s"] > 500
        assert abs(made["transports"][name]["ttft_bias_ms"]) <= 0.5  # what a step must meet to pass
        assert (
            0 < made["transports"][name]["ttft_spread_ms"] < 50
        )  # half of the TTFT: far from what a client without stamps shows

    run = command(["tailgauge", "run", "streaming", "--duration=5", "--json", "--out", tmp_path], 90, env=env)
    output = json.loads(run.stdout)
    facts = json.loads((Path(output["run_dir"]) / "run.json").read_text())
    assert facts["certificate"]["id"] == output["certificate"]["id"] == made["id"]
    assert output["certificate"]["text"].startswith(f"Certificate {made['id']} of ")
