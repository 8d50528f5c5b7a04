"""Which file a scenario's name means, and copies of packaged scenarios."""

from pathlib import Path

import pytest

from tailgauge.errors import UsageError
from tailgauge.plan.resolve import resolve
from tailgauge.scenario.model import load
from tailgauge.scenario.packaged import GROUPS, copy, find, names, packaged

NEEDED = 368  # complete requests that show 99%; the p99 needs 299


@pytest.mark.parametrize("argument", ["quickstart", "quickstart.toml", "scenarios/quickstart.toml"])
def test_a_packaged_scenario_is_found_by_name_from_any_folder(argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    assert find(argument) == packaged("scenarios") / "quickstart.toml"


@pytest.mark.parametrize("name", names())
def test_every_copy_of_a_packaged_scenario_can_be_planned_where_it_lies(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()

    written = copy(name, Path("mine"))

    assert written[0] == Path("mine") / f"{name}.toml"
    assert load(str(written[0])) == load(name)
    assert len(resolve(str(written[0]), (), tmp_path / "out").schedule) > 0


def test_every_packaged_scenario_is_in_one_group_of_the_list():
    assert sorted(name for group in GROUPS.values() for name in group) == names()


@pytest.mark.parametrize("name", [name for name in names() if name not in {"batch", "trace"}])
def test_a_packaged_scenario_is_long_enough_to_show_its_p99_and_99_percent_complete(name, tmp_path):
    """A closed loop plans no requests; an experiment plans its own runs."""
    settings = resolve(name, (), tmp_path)
    if settings.scenario.experiment or not settings.scenario.arrival.is_open:
        pytest.skip("its requests are not planned")
    warmup_share = settings.scenario.stages.warmup / settings.scenario.stages.duration_s

    assert settings.schedule.requests * (1 - warmup_share) > NEEDED


def test_the_files_that_a_scenario_names_are_copied_beside_it(tmp_path):
    written = copy("trace", tmp_path / "mine.toml")

    assert written == [tmp_path / "mine.toml", tmp_path / "traces" / "bursty.csv"]
    assert written[1].read_bytes() == (packaged("scenarios") / "traces" / "bursty.csv").read_bytes()


def test_a_copy_replaces_nothing(tmp_path):
    (tmp_path / "traces").mkdir()
    kept = tmp_path / "traces" / "bursty.csv"
    kept.write_text("precious")

    with pytest.raises(
        UsageError, match=r"bursty\.csv: exists already: name another file, or remove it"
    ):
        copy("trace", tmp_path)

    assert kept.read_text() == "precious"
    assert not (tmp_path / "trace.toml").exists()


def test_a_scenario_cannot_have_files_outside_its_folder_copied(tmp_path):
    (tmp_path / "secret.csv").write_text("x")
    inside = tmp_path / "inside"
    inside.mkdir()
    mine = inside / "mine.toml"
    mine.write_text(f'[arrival.trace]\nfile = "../secret.csv"\nformat = "{tmp_path}/secret.csv"\n')

    assert copy(str(mine), tmp_path / "away" / "copy.toml") == [tmp_path / "away" / "copy.toml"]
