"""Clients that leave a self-hosted endpoint: its token counters show whether it goes on generating."""

from __future__ import annotations

import json

import pytest
from run_folders.run_data import RunData
from starting.command import NO_SDK

from tailgauge.experiments.checkup.cancel import ALLOWED_SHARE_OF_REST, ignored_by_engine
from tailgauge_analysis.reading.frames import load

LEFT = """
[target]
url = "{url}"
[arrival]
rate_per_s = 15
[stages]
duration_s = 5
[traffic.chat]
prompt_tokens = 50
output_tokens = 60
[traffic.chat.cancel]
share = 0.5
after_chunks = 10
"""
CHECKUP = """
[experiment]
kind = "checkup"
minutes = 1
[experiment.checkup]
skip = ["light", "cached", "fan_out", "loaded"]
"""
PROFILE = "--set=simulated.profile=tiny"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["immediate", "never"])
def test_what_the_engine_counts_says_whether_it_goes_on(start, endpoint, tmp_path, mode):
    url = endpoint(PROFILE, f"--set=simulated.engine.cancel_mode={mode}")
    path = tmp_path / "left.toml"
    path.write_text(LEFT.format(url=url))
    run: RunData = start("run", str(path), "--json", *NO_SDK).finish().run
    rows = run.attempts()
    whole, left = rows[rows.ended == "ok"], rows[rows.ended == "cancelled"]
    summary = run.facts["engine_tokens"]
    made, shown = (
        summary["after"] - summary["before"],
        whole.output_tokens.sum() + left.chunks.sum(),
    )
    found = ignored_by_engine(load([run.path]), 0.1)

    assert summary["engine"] == "vLLM"
    assert len(whole) + len(left) == len(rows)
    assert len(left) > 15
    assert found.low is not None
    if mode == "never":
        assert made == 60 * len(rows)
        assert found.low > ALLOWED_SHARE_OF_REST
    else:
        assert shown <= made < shown + 12 * len(left)  # 50 were left of each
        assert found.low <= ALLOWED_SHARE_OF_REST


def test_the_checkup_of_an_endpoint_that_goes_on_says_so(start, endpoint, tmp_path, full_size):
    if not full_size:
        pytest.skip("make verify: the same with dry run and answer")
    url = endpoint(PROFILE, "--set=simulated.engine.cancel_mode=never")
    path = tmp_path / "left.toml"
    path.write_text(CHECKUP + LEFT.format(url=url).partition("[traffic.chat.cancel]")[0])
    done = start("run", str(path), "--json").finish(180)
    summary = json.loads(done.stdout)

    assert summary["facts"]["findings"] == ["cancel_ignored"], done.stderr
    assert any("vLLM counts" in str(row) for row in summary["sections"][0]["tables"][0]["rows"])
    assert summary["exit_code"] == done.code == 1
