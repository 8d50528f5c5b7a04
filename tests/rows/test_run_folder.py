"""The run folder: names, rooms, and JSON files that are whole or not there."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from threading import Thread

import pytest

from tailgauge.errors import UsageError
from tailgauge.rows.run_folder import RunFolder, new_run_id, write_json
from tailgauge.rows.schema import TABLES


def test_a_run_id_sorts_by_time_names_the_scenario_and_does_not_collide():
    ids = {new_run_id("quickstart") for _ in range(50)}

    assert len(ids) > 40
    assert all(re.fullmatch(r"\d{8}T\d{6}Z-quickstart-[0-9a-f]{4}", run_id) for run_id in ids)


@pytest.mark.parametrize("name", ["../up", "a b/c", "Größe", "x\n"])
def test_a_run_id_is_a_plain_file_name_whatever_the_scenario_is_called(name):
    assert re.fullmatch(r"[0-9A-Za-z_-]+", new_run_id(name))


def test_every_file_has_its_place_in_the_folder():
    folder = RunFolder(Path("runs/x"))

    assert folder.run_json == Path("runs/x/run.json")
    assert folder.worker_json(3) == Path("runs/x/workers/3.json")
    assert folder.part("chunks", 3, 7) == Path("runs/x/chunks/part-3-7.parquet")
    assert folder.part("chunks", 3, "all") == Path("runs/x/chunks/part-3-all.parquet")


def test_a_folder_has_a_room_for_each_table_and_one_for_the_workers(tmp_path):
    folder = RunFolder(tmp_path / "deep" / "run")
    folder.create()
    folder.create()  # every worker of a host does it again

    assert {p.name for p in folder.path.iterdir()} == {*TABLES, "workers"}


def test_a_folder_that_cannot_be_made_is_a_usage_error_that_says_why(tmp_path):
    (tmp_path / "file").write_text("not a folder")

    with pytest.raises(
        UsageError, match=r"cannot be written: Not a directory\. Choose another --out"
    ):
        RunFolder(tmp_path / "file" / "run").create()


def test_a_json_file_is_replaced_whole(tmp_path):
    path = tmp_path / "new" / "run.json"
    for value in ({"a": 1}, {"b": ["ü", None, 2.5]}):
        write_json(path, value)

        assert json.loads(path.read_text(encoding="utf-8")) == value
    assert [p.name for p in path.parent.iterdir()] == ["run.json"]


@pytest.mark.parametrize("value", [{"x": float("nan")}, {"x": float("inf")}, {"x": object()}])
def test_a_value_that_is_no_json_leaves_the_old_file_as_it_was(tmp_path, value):
    path = tmp_path / "run.json"
    write_json(path, {"a": 1})
    with pytest.raises((ValueError, TypeError)):
        write_json(path, value)

    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_a_reader_never_sees_half_a_json_file(tmp_path, command):
    """One process replaces the file over and over, this one reads it: every reading is whole."""
    path = tmp_path / "run.json"
    write_json(path, {"n": -1, "fill": ["x"] * 5000})
    program = (
        "import sys; from pathlib import Path; from tailgauge.rows.run_folder import write_json\n"
        "for n in range(300): write_json(Path(sys.argv[1]), {'n': n, 'fill': ['x'] * 5000})"
    )
    writer = Thread(target=command, args=(["python", "-c", program, path], 30))
    writer.start()
    seen = []
    while writer.is_alive():
        tree = json.loads(path.read_text())
        seen.append((tree["n"], len(tree["fill"])))
    writer.join()

    assert json.loads(path.read_text())["n"] == 299
    assert {fill for _, fill in seen} == {5000}
    assert [n for n, _ in seen] == sorted(n for n, _ in seen)


@pytest.mark.parametrize(("failures", "is_replaced"), [(1, True), (2, True), (9, False)])
def test_a_file_that_cannot_be_replaced_for_a_moment_is_replaced(
    tmp_path, monkeypatch, failures, is_replaced
):
    rename = Path.replace
    left = [OSError(errno.EMFILE, "all are in use")] * failures

    def replace(path, target):
        if left:
            raise left.pop()
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    path = tmp_path / "x.json"
    if is_replaced:
        write_json(path, {"a": 1})
    else:
        with pytest.raises(OSError, match="all are in use"):
            write_json(path, {"a": 1})

    assert path.exists() == is_replaced
    assert list(tmp_path.glob(".*")) == []


def test_a_temporary_file_that_cannot_be_removed_is_no_failure(tmp_path, monkeypatch):
    def unlink(*_, **__):
        raise PermissionError(errno.EACCES, "not allowed")

    monkeypatch.setattr(Path, "unlink", unlink)
    write_json(tmp_path / "x.json", {"a": 1})

    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
