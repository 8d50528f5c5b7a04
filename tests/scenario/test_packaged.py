"""Which file a scenario's name means, and copies of packaged scenarios."""

import shutil
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


def test_a_copy_replaces_no_broken_link(tmp_path):
    (tmp_path / "streaming.toml").symlink_to(tmp_path / "gone.toml")

    with pytest.raises(UsageError, match=r"streaming\.toml: exists already"):
        copy("streaming", tmp_path)


@pytest.fixture
def named(tmp_path):
    """A scenario that names a file beside it, in two ways."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a/rows.csv").write_text("rows")
    (tmp_path / "a/mine.toml").write_text('x = "rows.csv"\ny = "./rows.csv"\n')
    return tmp_path / "a/mine.toml"


def test_a_file_that_is_named_twice_is_copied_once(named, tmp_path):
    assert copy(str(named), tmp_path / "b") == [tmp_path / "b/mine.toml", tmp_path / "b/rows.csv"]


def test_a_copy_does_not_take_the_name_of_a_file_that_it_names(named, tmp_path):
    with pytest.raises(UsageError, match=r"b/rows\.csv: the scenario names a file of this name"):
        copy(str(named), tmp_path / "b/rows.csv")

    assert not list((tmp_path / "b").iterdir())


def test_a_copy_that_fails_names_the_file_and_leaves_none(named, tmp_path, monkeypatch):
    copyfile = shutil.copyfile

    def full(original, path):
        copyfile(original, path)
        if path.name == "rows.csv":
            raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(UsageError, match=r"b/rows\.csv: cannot be written: No space left"):
        copy(str(named), tmp_path / "b")

    assert not list((tmp_path / "b").iterdir())


def test_a_file_that_cannot_be_read_is_named_as_such(named, tmp_path, monkeypatch):
    def refuse(original, path):
        raise PermissionError(13, "Permission denied", str(original))

    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(UsageError, match=r"a/mine\.toml: cannot be read: Permission denied"):
        copy(str(named), tmp_path / "b")


def test_a_scenario_cannot_have_files_outside_its_folder_copied(tmp_path):
    (tmp_path / "secret.csv").write_text("x")
    inside = tmp_path / "inside"
    inside.mkdir()
    mine = inside / "mine.toml"
    mine.write_text(f'[arrival.trace]\nfile = "../secret.csv"\nformat = "{tmp_path}/secret.csv"\n')

    assert copy(str(mine), tmp_path / "away" / "copy.toml") == [tmp_path / "away" / "copy.toml"]
