"""A plugin with workers on other hosts: each has a copy of the file; no code comes over the wire."""

import pytest
from plugins.documented import PLUGIN, example
from run_folders.run_data import assert_conserved


def test_workers_with_the_file_send_and_one_without_it_is_refused(
    network, site, tmp_path, full_size
):
    if not full_size:
        pytest.skip("make verify")
    scenario = example(tmp_path / "master")
    copy = example(tmp_path / "workers").with_name(PLUGIN)
    changed = example(tmp_path / "changed").with_name(PLUGIN)
    changed.write_text(f"{changed.read_text()}# changed\n")
    traffic = (str(scenario), "--plugin", str(scenario.with_name(PLUGIN)))
    site.begin(4, workers=2, rate=10, scenario=traffic, options=("--plugin", str(copy)))
    without, other = site.worker(), site.worker(options=("--plugin", str(changed)))

    assert (without.code(60), other.code(60)) == (4, 4)
    assert "it has no plugin 'desk'; the master has desk.py (SHA-256 " in without.output
    assert "it has another file as plugin 'desk'" in other.output
    run = site.started()
    assert site.ended(60) in {0, 3}, site.output
    assert [worker.code(20) for worker in site.workers[:2]] == [0, 0]

    assert assert_conserved(run)["ended"].keys() == {"ok"}
    attempts = run.table("attempts").query("request_id >= 0")
    assert set(attempts.protocol) == {"plain_chat"}
    assert set(attempts.groupby("request_id").leg.agg(tuple)) == {(0, 1)}
    assert {w["worker"] for w in run.facts["workers"] if w["rows"]["requests"]} == {0, 1}
    assert [one["file"] for one in run.facts["plugins"]] == [PLUGIN]
    (report,) = site.out.glob("reports/*/report.md")
    assert "Silence by traffic" in report.read_text()
    assert "Decoding" in report.read_text()
