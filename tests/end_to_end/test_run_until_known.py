"""A real run ends when its objective is known; the run folder, the page and the terminal say the same."""

import re

import pytest
from run_folders.run_data import assert_conserved
from starting.command import NO_SDK

SCENARIO = """
[arrival]
rate_per_s = 20
[stages]
duration_s = 150
warmup_s = 2
[traffic.chat]
prompt_tokens = 20
output_tokens = 4
[simulated]
ttft_ms = 40
ttft_sigma = 0.5
chunk_gap_ms = 2
[slo.goal]
metric = "ttft"
quantile = 0.95
max_ms = 2000
precision = 0.2
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run_ends_when_it_is_known(start, tmp_path, workers, full_size):
    if not full_size:
        pytest.skip("make verify: more than a minute; the same as a dry run in tests/dry_run")
    (tmp_path / "mine.toml").write_text(SCENARIO)

    done = start("run", str(tmp_path / "mine.toml"), f"--workers={workers}", *NO_SDK).finish(200)

    facts, report = done.run.facts, done.report_data
    (objective,) = report["slo"]
    ended_s = (facts["admission_end_at_ns"] - facts["start_at_ns"]) / 1e9
    until_s = facts["precision"]["until_s"]
    assert facts["state"] == "known", done.stderr
    assert 62 < until_s < ended_s < 140
    assert objective["half_width"] <= 0.2
    assert report["run"]["steady_to_s"] == pytest.approx(until_s, abs=0.01)

    # all of what was due is accounted for, and ending early is no fault of the measurement
    counts = assert_conserved(done.run)
    assert (counts["lost"], counts["not_reached"] > 0) == (0, True)
    assert counts["not_reached"] == counts["scheduled"] - len(
        done.run.table("requests").query("stage != 'preflight'")
    )
    checks = {reason["check"] for reason in report["verdict"]["reasons"]}
    assert not checks & {"finished", "lost", "conservation"}, report["verdict"]
    assert done.code in {0, 3}, done.stderr  # a busy machine may make it INVALID

    text = f"known to {100 * objective['half_width']:.3g}% after {until_s:,.0f} s"
    assert objective["precision"] == text
    assert f"note: ttft p95 {text}" in done.stderr
    assert done.code or text in done.stdout
    page = (done.report / "report.html").read_text(encoding="utf-8")
    assert text in re.sub("<[^>]*>", "", page)
    assert "known to 20%: about" in done.stderr
