"""`tailgauge runs`: what it lists, what it deletes, and what it never deletes."""

from __future__ import annotations

import json
import os
import re
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
    out: Path,
    run_id: str,
    *,
    size: int = 20_000,
    age_s: float = 3600,
    report: bool = True,
    **facts: Any,
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
    return CliRunner().invoke(
        cli, ["runs", "--out", str(out), *arguments], input=answer, terminal_width=80
    )


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
        ({"verdict": {"exit_code": 130}}, "INTERRUPTED"),
        ({"verdict": None}, "no report"),
        ({"state": "failed"}, "failed"),
        ({"state": "unusable"}, "NO ANSWER"),
        ({"state": "running"}, "interrupted"),
    ],
)
def test_a_run_is_listed_with_its_target_and_result(tmp_path, facts, result):
    times = {"start_at_ns": 5_000_000_000, "admission_end_at_ns": 35_000_000_000}
    write(
        tmp_path, f"{OLD}-quickstart-0a1b", target={"url": "http://10.0.0.9:8000"}, **times, **facts
    )

    header, line, total = listed(tmp_path).output.splitlines()

    assert header.split() == [
        "run",
        "time",
        "(UTC)",
        "length",
        "scenario",
        "target",
        "result",
        "note",
    ]
    assert line.split("  ")[:3] == ["0a1b", "03-01 10:15", "30 s"]
    assert re.split(" {2,}", line)[3:] == ["quickstart", "10.0.0.9:8000", result]
    assert total == "1 listed, 1.0 MB"
    assert len(line) <= 80


@pytest.mark.parametrize(
    ("report", "cells"),
    [
        ({"exit_code": 1, "result": {"outcome": "FAIL"}}, ["simulated", "FAIL", "report only"]),
        (
            {"exit_code": 0, "result": {"outcome": "COMPLETED"}},
            ["simulated", "COMPLETED", "report only"],
        ),
        (
            {"exit_code": 3, "verdict": {"status": "INVALID"}},
            ["simulated", "INVALID", "report only"],
        ),
    ],
)
def test_a_run_whose_report_alone_is_left_has_its_result(tmp_path, report, cells):
    folder = tmp_path / "reports" / f"{OLD}-mix-00ff"
    folder.mkdir(parents=True)
    run = {"target": {"url": "simulated"}, "dry_run": False, "steady_to_s": 30.0}
    (folder / "report.json").write_text(json.dumps({"run": run, **report}))

    line = listed(tmp_path).output.splitlines()[1]

    assert re.split(" {2,}", line) == ["00ff", "03-01 10:15", "30 s", "mix", *cells]


def test_the_simulated_endpoint_has_no_address(tmp_path):
    write(
        tmp_path,
        f"{OLD}-quickstart-0a1b",
        target={"url": "http://127.0.0.1:40001", "simulated": True},
    )

    assert "  simulated  no report" in listed(tmp_path).output


def write_experiment(out: Path, *steps: str) -> str:
    run_id = f"{OLD}-headroom-00ff"
    folder = out / "reports" / run_id
    folder.mkdir(parents=True)
    runs = [{"run_id": step} for step in steps]
    facts = {
        "kind": "headroom",
        "exit_code": 1,
        "target": "simulated",
        "dry_run": True,
        "runs": runs,
    }
    (folder / "report.json").write_text(json.dumps(facts))
    return run_id


def test_an_experiment_and_its_runs_are_one_row(tmp_path):
    steps = [write(tmp_path, f"{OLD}-headroom-{n:03d}-000{n}", report=False) for n in (1, 2)]
    run_id = write_experiment(tmp_path, *steps, f"{OLD}-headroom-003-9999")
    (tmp_path / "reports" / "example").mkdir()
    (tmp_path / "reports" / "README.md").write_text("x")

    (line,) = listed(tmp_path).output.splitlines()[1:-1]
    everything = listed(tmp_path, "--all").output.splitlines()[1:-1]

    assert re.split(" {2,}", line)[-3:] == ["simulated", "FAIL", "dry run, 3 runs"]
    assert [text.split()[0] for text in everything] == ["00ff", "0001", "0002"]
    assert listed(tmp_path, "0002").output.splitlines()[1:-1] == [line]  # by one of its runs

    listed(tmp_path, "0002", "--clean", "--yes")
    assert left(tmp_path) == {"example", "README.md"}
    assert run_id not in left(tmp_path)


def test_an_experiment_with_a_run_that_is_recorded_is_not_deleted(tmp_path):
    step = write(tmp_path, f"{OLD}-headroom-001-0001", state="running", age_s=1, report=False)
    run_id = write_experiment(tmp_path, step)

    assert "running" in listed(tmp_path, "--clean", "--yes").output
    assert left(tmp_path) == {step, run_id}


def test_a_list_of_long_names_fits_the_terminal(tmp_path):
    url = "https://a-very-long-name.internal.example.com:8443/v1"
    for name in ("cached_multi_turn-of-the-night", "mix"):
        write(tmp_path, f"{OLD}-{name}-0a1b", target={"url": url}, verdict={"exit_code": 5})

    lines = listed(tmp_path).output.splitlines()

    assert [line for line in lines if len(line) > 80] == []
    assert all("INCONCLUSIVE" in line for line in lines[1:-1])


def test_they_are_chosen_by_name_and_by_age(tmp_path):
    recent = (datetime.now(UTC) - timedelta(minutes=3)).strftime("%Y%m%dT%H%M%SZ")
    rows = [(began, name) for began in (OLD, recent) for name in ("mix", "cached")]
    ids = [write(tmp_path, f"{began}-{name}-000{n}") for n, (began, name) in enumerate(rows)]

    def names(*arguments: str) -> list[str]:
        lines = listed(tmp_path, *arguments).output.splitlines()[1:-1]
        return [run_id for run_id in sorted(ids) for line in lines if line.startswith(run_id[-4:])]

    assert names() == sorted(ids)
    assert names("mix") == [ids[0], ids[2]]
    assert names("--older-than", "2m") == sorted(ids)
    assert names("--older-than", "24h") == sorted(ids[:2])
    assert listed(tmp_path, "0000", "--older-than", "99999h").output == "no runs found\n"


def test_nothing_is_deleted_without_an_answer(tmp_path):
    run_id = write(tmp_path, f"{OLD}-quickstart-0a1b")

    for answer in ("", "\n", "n\n"):
        done = listed(tmp_path, "--clean", answer=answer)
        assert "Delete 1 of 1 runs and their reports, 1.0 MB? [y/N]" in done.output
        assert left(tmp_path) == {run_id}
    assert listed(tmp_path).exit_code == 0


def test_without_an_answer_the_option_that_needs_none_is_named(tmp_path):
    write(tmp_path, f"{OLD}-quickstart-0a1b")

    assert "no terminal to confirm the deletion on: add --yes" in str(
        listed(tmp_path, "--clean").exception
    )


def test_a_name_that_no_run_has_is_not_dropped(tmp_path):
    run_id = write(tmp_path, f"{OLD}-quickstart-0a1b")

    for names in (["delete", run_id], [run_id, "rm"], ["0a1b", "nothere", "--clean", "--yes"]):
        assert "no run has '" in str(listed(tmp_path, *names).exception)
    assert left(tmp_path) == {run_id}
    assert listed(tmp_path, "delete", "0a1b").output == ""
    assert "tailgauge runs 0a1b --clean" in str(listed(tmp_path, "delete", "0a1b").exception)


def test_clean_deletes_runs_and_their_reports_and_nothing_else(tmp_path):
    write(tmp_path, f"{OLD}-mix-0a1b")
    kept = write(tmp_path, f"{OLD}-cached-0a1b")
    (tmp_path / "reports" / "example").mkdir()
    (tmp_path / "runs" / f"{OLD}-mix-ffff").symlink_to(tmp_path)

    done = listed(tmp_path, "mix", "--clean", answer="y\n")

    assert done.output.endswith("deleted 1 runs, 1.0 MB\n")
    assert left(tmp_path) == {kept, "example", f"{OLD}-mix-ffff"}


def test_a_run_that_is_still_recorded_is_not_deleted(tmp_path):
    ended = write(tmp_path, f"{OLD}-mix-0a1b")
    going = write(tmp_path, f"{OLD}-mix-0a1c", state="running", age_s=1)

    done = listed(tmp_path, "--clean", "--yes")

    assert done.output.splitlines()[2].split()[0] == going[-4:]
    assert "running" in done.output.splitlines()[2]
    assert left(tmp_path) == {going}
    assert ended not in left(tmp_path)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0.0 kB"),
        (950, "0.9 kB"),
        (53_400, "53 kB"),
        (9_700_000, "9.7 MB"),
        (31_200_000_000, "31.2 GB"),
    ],
)
def test_sizes(size, text):
    assert size_text(size) == text
