"""`tailgauge` against a real vLLM, whose own counters are the witness. `make vllm` runs it.

TAILGAUGE_VLLM names the Python of an environment that has vLLM; without it nothing runs here. Each engine starts in half a
minute, so that tests share one, with and without cached tokens in its usage.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest

START_S = 180
SCENARIO = """
seed = 7
[target]
protocol = "openai"
model = "tiny"
[arrival]
rate_per_s = 3
[stages]
duration_s = 10
[traffic.chat]
prompt_tokens = 500
output_tokens = 16
output = "exact"
"""
SETTINGS = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}


def metrics(url: str) -> dict[str, float]:
    """The engine's counters, without labels; series of one name are summed."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:
        page = response.read().decode()
    found: dict[str, float] = {}
    for name, value in re.findall(r"^vllm:(\w+)(?:\{.*\})? (\S+)$", page, re.MULTILINE):
        found[name] = found.get(name, 0.0) + float(value)
    return found


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    pytest.importorskip("gguf", reason="it comes with the extra `engine`")
    from real_engine.make_tiny_gguf import SHAPES
    from real_engine.make_tiny_hf import make

    folder = tmp_path_factory.mktemp("model")
    make(folder, SHAPES["ending"])
    return folder


@pytest.fixture(
    scope="module", params=["--enable-prompt-tokens-details", "--no-enable-prompt-tokens-details"]
)
def vllm(request, tiny_folder, tmp_path_factory):
    """The address of an engine; of the calls in its queue it takes eight."""
    python = os.environ.get("TAILGAUGE_VLLM")
    if not python:
        pytest.skip("TAILGAUGE_VLLM is not set: the Python of an environment that has vLLM")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [
        *(python, "-m", "vllm.entrypoints.openai.api_server", "--model", tiny_folder, "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--max-model-len", "16384", "--max-num-seqs", "8"),
        *("--enforce-eager", "--enable-prefix-caching", "--max-num-queued-reqs", "8", request.param),
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            line, stdout=out, stderr=out, start_new_session=True, env={**os.environ, **SETTINGS}
        ) as process,
    ):
        try:
            _await(process, url := f"http://127.0.0.1:{port}", log)
            yield url
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            killer = threading.Timer(20, os.killpg, (process.pid, signal.SIGKILL))
            killer.start()
            process.wait(timeout=30)
            killer.cancel()


def _await(process, url, log):
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
    pytest.fail(f"vLLM did not start: {log.read_text(errors='replace')[-3000:]}")


@pytest.fixture
def run(command, tmp_path, vllm):
    """Run the scenario: its run.json and its report."""
    (tmp_path / "chat.toml").write_text(SCENARIO)

    def made(*options):
        line = [
            "tailgauge",
            "run",
            tmp_path / "chat.toml",
            "--target",
            vllm,
            "--out",
            tmp_path,
            "--json",
        ]
        result = command([*line, *options], timeout_s=120)
        assert result.returncode in {0, 1, 3, 4, 5}, result.stderr
        summary = json.loads(result.stdout)
        facts = json.loads((Path(summary["run_dir"]) / "run.json").read_text())
        return facts, (tmp_path / "reports" / summary["run_id"] / "report.md").read_text()

    return made


def test_a_second_run_is_cold_and_repeated_prompts_are_named_with_their_share(run, vllm):
    run()
    before = metrics(vllm)
    facts, report = run()
    middle = metrics(vllm)
    run("--set", "repeat_prompts=true")
    _, repeated = run("--set", "repeat_prompts=true")

    sent = facts["conservation"]["ended"]["ok"]
    made = {name: middle[name] - before[name] for name in middle}
    assert made["prefix_cache_hits_total"] == 0
    assert made["request_success_total"] == sent + len(facts["preflight"])
    assert facts["prompt_sizes"] == {"chat": "exact"}
    assert made["prompt_tokens_total"] == 500 * sent + sum(
        one["input_tokens"] for one in facts["preflight"]
    )
    assert 0 < made["generation_tokens_total"] - 16 * sent <= 16 * len(facts["preflight"])
    assert "The cache was not cold" not in report
    assert re.search(r"The cache was not cold: 7\d(\.\d)?% of the prompt tokens", repeated)


def test_calls_that_it_refuses_within_their_streams_are_overloaded(run, vllm):
    before = metrics(vllm)
    facts, _ = run("--concurrency", "40")
    refused = metrics(vllm)["admission_rejections_total"] - before["admission_rejections_total"]

    assert refused > 20
    assert facts["conservation"]["ended"]["overloaded"] == refused
    assert "stream_error" not in facts["conservation"]["ended"]
