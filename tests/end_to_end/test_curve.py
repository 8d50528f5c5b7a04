"""`tailgauge run curve` in real time at an endpoint with an automatic prefix cache, beside a sweep upwards over the same prompts."""

import json
from pathlib import Path

import pytest

from tailgauge.errors import Exit

pytestmark = pytest.mark.alone

LOADS = (0.75, 1.5, 2.5)
SCENARIO = """
{more}
[target]
url = "{url}"
protocol = "openai"
[arrival]
process = "constant"
rate_per_s = 0.75
[stages]
duration_s = 20
warmup_s = 1
[traffic.chat]
prompt_tokens = 1500
output_tokens = 10
[traffic.chat.retry]
policy = "none"
"""
CURVE = f"""
[experiment]
kind = "curve"
minutes = 4
[experiment.curve]
loads = {list(LOADS)}
step_s = 20
"""


def test_a_sweep_upwards_bends_through_the_cache_and_the_curve_does_not(
    command, endpoint, tmp_path, full_size
):
    if not full_size:
        pytest.skip("make verify: three minutes")
    url = endpoint("--set=simulated.profile=llama3-8b-h100", "--set=simulated.cache.mode=automatic")

    def run(name, text, *arguments):
        file = tmp_path / f"{name}.toml"
        file.write_text(text, encoding="utf-8")
        done = command(
            ["tailgauge", "run", file, "--target", url, "--json", "--out", tmp_path, *arguments],
            timeout_s=300,
        )
        assert done.returncode in {Exit.OK, Exit.INCONCLUSIVE, Exit.FAILED}, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    curve = run("curve", SCENARIO.format(url=url, more="") + CURVE)["facts"]
    sweep = []
    for number, load in enumerate(LOADS):
        made = run(
            f"sweep-{number}",
            SCENARIO.format(url=url, more="repeat_prompts = true"),
            "--rate",
            str(load),
        )
        report = json.loads(Path(made["report"]["json"]).read_text(encoding="utf-8"))
        (ttft,) = (
            row
            for row in report["latency"]
            if [row[key] for key in ("group", "metric", "population", "since")]
            == ["all", "ttft", "offered", "scheduled"]
        )
        sweep.append(ttft["percentiles"]["p50"]["value"])
    ours = [point["latency"]["ttft"]["p50"]["value"] for point in curve["points"]]

    assert [point["load"] for point in curve["points"]] == list(LOADS)
    assert sweep[-1] < 0.7 * sweep[0], (sweep, ours)
    assert ours[-1] > 0.9 * ours[0], (sweep, ours)
