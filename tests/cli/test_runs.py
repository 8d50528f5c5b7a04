"""`tailgauge runs`: what it lists, what it deletes, and what it never deletes."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tailgauge.cli.main import cli
from tailgauge.cli.runs import size_text

OLD = "20250301T101500Z"


def write(
    out: Path, run_id: str, *, size: int = 20_000, age_s: float = 3600, report: bool = True, **facts: Any
) -> str:
    folder = out / "runs" / run_id
    (folder / "chunks").mkdir(parents=True)
    (folder / "run.json").write_text(
        json.dumps({"target": {"url": "simulated"}, "state": "complete", **facts})
    )
    part = folder / "chunks" / "part-0-0.parquet"
    part.write_bytes(b"0" * size)
    if report:
        (out / "reports" / run_id).mkdir(parents=True)
        (out / "reports" / run_id / "report.html").write_bytes(b"0" * 1_000_000)
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - age_s,) * 2)
    return run_id


def listed(out: Path, *arguments: str, answer: str = "") -> Result:
    return CliRunner().invoke(cli, ["runs", "--out", str(out), *arguments], input=answer, terminal_width=80)


def left(out: Path) -> set[str]:
    return {path.name for path in (*out.glob("runs/*"), *out.glob("reports/*"))}


@pytest.mark.parametrize(
    ("facts", "result"),
    [
        ({"verdict": {"exit_code": 0}}, "PASS"),
        ({"verdict": {"exit_code": 0, "outcome": "PASS"}}, "PASS"),
        ({"verdict": {"exit_code": 0, "outcome": "COMPLETED"}}, "COMPLETED"),
        ({"verdict": {"exit_code": 3, "outcome": "COMPLETED"}}, "INVALID"),
        ({"verdict": {"exit_code": 1}}, "FAIL"),
        ({"verdict": {"exit_code": 3}}, "INVALID"),
        ({"verdict": {"exit_code": 4}}, "NO ANSWER"),
        ({"verdict": {"exit_code": 5}}, "INCONCLUSIVE"),
        ({"verdict": None}, "no report"),
        ({"state": "failed"}, "failed"),
        ({"state": "unusable"}, "NO ANSWER"),
        ({"state": "running"}, "interrupted"),
    ],
)
def test_a_run_is_listed_with_its_target_result_and_size(
    tmp_path: Path, facts: dict[str, Any], result: str
) -> None:
    run_id = write(tmp_path, f"{OLD}-quickstart-0a1b", target={"url": "http://10.0.0.9:8000"}, **facts)

    (line,) = listed(tmp_path).output.splitlines()

    assert line.split(maxsplit=1) == [run_id, line.split(maxsplit=1)[1]]
    assert line.split(maxsplit=1)[1].startswith(result)
    assert line.endswith("1.0 MB  10.0.0.9:8000")
    assert len(line) <= 80


def test_the_simulated_endpoint_has_no_address(tmp_path: Path) -> None:
    write(tmp_path, f"{OLD}-quickstart-0a1b", target={"url": "http://127.0.0.1:40001", "simulated": True})

    assert listed(tmp_path).output.endswith("1.0 MB  simulated\n")


def test_an_experiment_has_a_report_only_and_other_folders_are_no_runs(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / f"{OLD}-headroom-00ff"
    folder.mkdir(parents=True)
    (folder / "report.json").write_text(json.dumps({"exit_code": 1, "target": "simulated"}))
    (tmp_path / "reports" / "example").mkdir()
    (tmp_path / "reports" / "README.md").write_text("x")

    assert [line.split()[:2] for line in listed(tmp_path).output.splitlines()] == [[folder.name, "FAIL"]]


def test_they_are_chosen_by_name_and_by_age(tmp_path: Path) -> None:
    recent = (datetime.now(UTC) - timedelta(minutes=3)).strftime("%Y%m%dT%H%M%SZ")
    ids = [write(tmp_path, f"{began}-{name}-0000") for began in (OLD, recent) for name in ("mix", "cached")]

    def names(*arguments: str) -> list[str]:
        return [line.split()[0] for line in listed(tmp_path, *arguments).output.splitlines()]

    assert names() == sorted(ids)
    assert names("mix") == [ids[0], ids[2]]
    assert names("--older-than", "2m") == sorted(ids)
    assert names("--older-than", "24h") == sorted(ids[:2])
    assert listed(tmp_path, "nothing").output == "no runs found\n"


def test_nothing_is_deleted_without_an_answer(tmp_path: Path) -> None:
    run_id = write(tmp_path, f"{OLD}-quickstart-0a1b")

    for answer in ("", "\n", "n\n"):
        done = listed(tmp_path, "--clean", answer=answer)
        assert "Delete 1 of 1 runs and their reports, 1.0 MB? [y/N]" in done.output
        assert left(tmp_path) == {run_id}
    assert listed(tmp_path).exit_code == 0


def test_clean_deletes_runs_and_their_reports_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, f"{OLD}-mix-0a1b")
    kept = write(tmp_path, f"{OLD}-cached-0a1b")
    (tmp_path / "reports" / "example").mkdir()
    (tmp_path / "runs" / f"{OLD}-mix-ffff").symlink_to(tmp_path)

    done = listed(tmp_path, "mix", "--clean", answer="y\n")

    assert done.output.endswith("deleted 1 runs, 1.0 MB\n")
    assert left(tmp_path) == {kept, "example", f"{OLD}-mix-ffff"}


def test_a_run_that_is_still_recorded_is_not_deleted(tmp_path: Path) -> None:
    ended = write(tmp_path, f"{OLD}-mix-0a1b")
    going = write(tmp_path, f"{OLD}-mix-0a1c", state="running", age_s=1)

    done = listed(tmp_path, "--clean", "--yes")

    assert done.output.splitlines()[1].split()[:2] == [going, "running"]
    assert left(tmp_path) == {going}
    assert ended not in left(tmp_path)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.0 kB"), (950, "0.9 kB"), (53_400, "53 kB"), (9_700_000, "9.7 MB"), (31_200_000_000, "31.2 GB")],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text
