"""`tailgauge scenario`: from the list to a copy that runs."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from tailgauge.cli.main import cli
from tailgauge.scenario.packaged import names, packaged


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["scenario", *arguments], terminal_width=80)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_list_has_every_packaged_scenario_with_its_minutes_and_description_within_80_columns():
    lines = printed("list").splitlines()

    assert sorted(line.split()[0] for line in lines if line.startswith(" ")) == names()
    assert max(map(len, lines)) <= 80
    assert "  quickstart          0.5 min  Poisson chat traffic, 50 requests/s" in lines
    assert "  headroom             15 min  Sustainable rate, binding limit, growth factor" in lines


def test_show_prints_the_file():
    assert printed("show", "quickstart") == (packaged("scenarios") / "quickstart.toml").read_text()


def test_a_copy_is_made_here_under_its_name_or_as_another_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert printed("copy", "trace", "load/my trace.toml").splitlines() == [
        "wrote load/my trace.toml", "wrote load/traces/bursty.csv", "run it with: tailgauge run 'load/my trace.toml'",
    ]  # fmt: skip
    assert (
        printed("copy", "quickstart").splitlines()[-1]
        == "run it with: tailgauge run quickstart.toml"
    )
    assert Path("quickstart.toml").read_text() == printed("show", "quickstart")
