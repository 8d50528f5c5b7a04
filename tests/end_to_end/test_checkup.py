"""`tailgauge checkup` from the command line: the same finding in every file, and the exit code that goes with it."""

import json
from pathlib import Path

import pytest

from tailgauge.errors import Exit

PLANTED = (
    "--set",
    'simulated.engine.cancel_mode="never"',
    "--set",
    'experiment.checkup.skip=["cached","fan_out","loaded"]',
)


def test_a_dry_run_with_a_finding_reports_it_everywhere_and_exits_with_1(command, tmp_path):
    done = command(
        ["tailgauge", "checkup", "--dry-run", "--quick", "--json", *PLANTED, "--out", tmp_path]
    )
    assert done.returncode == Exit.FAILED, done.stderr
    summary = json.loads(done.stdout)
    files = {
        kind: Path(path).read_text(encoding="utf-8") for kind, path in summary["report"].items()
    }

    assert summary["facts"]["findings"] == ["cancel_ignored"]
    assert summary["result"]["sentence"].startswith("1 problem found")
    assert set(files) == {"html", "markdown", "json", "junit"}
    assert all(
        "the endpoint keeps generating after its client has left" in text for text in files.values()
    )
    assert 'failures="1"' in files["junit"]
    assert (
        "skipped by experiment.checkup.skip: cached, fan_out, loaded"
        in summary["result"]["details"]
    )


@pytest.mark.slow
def test_the_traffic_of_a_scenario_is_judged_and_a_dry_run_says_nothing_of_its_target(
    command, tmp_path
):
    url = "http://127.0.0.1:9"
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[arrival]\nrate_per_s = 4\n[traffic.search]\npattern = "fan_out"\noutput_tokens = 10\n[traffic.search.fan_out]\nlegs = 3\n'
        '[experiment]\nkind = "headroom"\n[experiment.headroom]\nneed = 2\n',
        encoding="utf-8",
    )
    done = command(
        [
            "tailgauge",
            "checkup",
            mine,
            "--dry-run",
            "--quick",
            "--json",
            "--target",
            url,
            "--out",
            tmp_path,
        ]
    )
    assert done.returncode in {Exit.OK, Exit.FAILED}, done.stderr
    summary = json.loads(done.stdout)

    assert summary["result"]["details"][0] == (
        "judged: the traffic of mine.toml, 4 requests/s: search (several calls)"
    )
    page = Path(summary["report"]["html"]).read_text(encoding="utf-8")
    assert f"the times are those of a simulated endpoint, not of {url}" in page
    assert summary["dry_run"]
    names = [one["name"] for one in summary["runs"]]
    assert names == [
        "light traffic",
        "calls of the fan-out, one at a time",
        "clients that leave",
        "load in steps",
    ]
    assert "expected answer" not in done.stderr
