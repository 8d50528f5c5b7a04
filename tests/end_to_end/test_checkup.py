"""`tailgauge checkup` from the command line: the same finding in every file, and the exit code that goes with it."""

import json
from pathlib import Path

from tailgauge.errors import Exit

PLANTED = (
    "--set",
    'simulated.engine.cancel_mode="never"',
    "--set",
    'experiment.checkup.skip=["cached","fan_out","loaded"]',
)


def test_a_dry_run_with_a_finding_reports_it_everywhere_and_exits_with_1(command, tmp_path):
    done = command(["tailgauge", "checkup", "--dry-run", "--quick", "--json", *PLANTED, "--out", tmp_path])
    assert done.returncode == Exit.FAILED, done.stderr
    summary = json.loads(done.stdout)
    files = {kind: Path(path).read_text(encoding="utf-8") for kind, path in summary["report"].items()}

    assert summary["facts"]["findings"] == ["cancel_ignored"]
    assert summary["result"]["sentence"].startswith("1 problem found")
    assert set(files) == {"html", "markdown", "json", "junit"}
    assert all("the endpoint keeps generating after its client has left" in text for text in files.values())
    assert 'failures="1"' in files["junit"]
    assert "skipped by experiment.checkup.skip: cached, fan_out, loaded" in summary["result"]["details"]
