"""The files of a run folder: one that cannot be listed is no empty one."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tailgauge.errors import MachineError
from tailgauge_analysis.reading import parquet
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.reading.run_record import DAMAGED, NOTE, Problem, files_in


def test_a_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    problems: list[Problem] = []

    assert files_in(tmp_path / "requests", problems) == []
    assert problems == []


@pytest.mark.parametrize(("name", "kind"), [("requests", DAMAGED), ("target", NOTE)])
def test_a_folder_that_cannot_be_listed_is_a_problem_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    problems: list[Problem] = []

    assert files_in(tmp_path / name, problems) == []
    assert problems == [Problem(kind, f"{name}/ cannot be read and is left out: Permission denied")]


def test_without_a_descriptor_no_part_is_taken_for_a_damaged_one(
    synthetic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synthetic.write(tmp_path / "run", n=10)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(parquet.pq, "read_metadata", refuse)
    with pytest.raises(MachineError, match="no file descriptor is left to this process"):
        load([tmp_path / "run"])
