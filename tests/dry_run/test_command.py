"""A dry run as a run folder, and what is refused or noted before."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from dry_run.in_memory import plan_of, scenario_of

from tailgauge.dry_run import command as dry_run
from tailgauge.dry_run import store
from tailgauge.errors import UsageError
from tailgauge.rows.schema import columns

TREE = {
    "arrival": {"rate_per_s": 50.0},
    "stages": {"duration_s": 10.0},
    "traffic": {"main": {"output_tokens": 10, "cancel": {"share": 0.2, "after_s": 0.22}}},
}


def made_of(tree, out):
    scenario = scenario_of(tree)
    folder = dry_run.dry_run(scenario, plan_of(scenario), "test.toml", (), out)
    return folder, json.loads(folder.run_json.read_text())


def table(folder, name):
    (part,) = (folder.path / name).glob("part-*.parquet")
    return pq.read_table(part)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_of(TREE, tmp_path_factory.mktemp("out"))


def test_the_folder_has_the_tables_of_any_run(folder):
    made, run_json = folder

    assert run_json["dry_run"] is True
    assert run_json["notes"][0] == dry_run.NOTE
    for name in ("requests", "attempts", "chunks", "target"):
        assert table(made, name).column_names == [column.name for column in columns(name)]
    assert set(table(made, "attempts")["stamps"].to_pylist()) == {"dry_run"}


def test_the_books_add_up_to_the_rows(folder):
    made, run_json = folder
    counted, (worker,) = run_json["conservation"], run_json["workers"]
    ended = table(made, "requests")["ended"].to_pylist()

    assert counted["scheduled"] == counted["dispatched"] == len(ended)
    assert counted["ended"] == {name: ended.count(name) for name in set(ended)}
    assert set(ended) == {"ok", "cancelled"}
    assert worker["rows"] == {
        "requests": len(ended),
        "attempts": len(ended),
        "chunks": sum(table(made, "attempts")["chunks"].to_pylist()),
        "health": 0,
    }


def test_a_part_is_written_whenever_enough_rows_wait_and_nothing_changes(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(store, "ROWS_AT_ONCE", 1000)
    again, _ = made_of(TREE, tmp_path)

    for name in ("requests", "attempts", "chunks", "target"):
        whole, single = table(again, name), table(folder[0], name)
        assert whole.to_pylist() == single.to_pylist()


@pytest.mark.slow
def test_the_folder_is_reported_as_a_dry_run(folder, tmp_path):
    from tailgauge_analysis.report.report import make

    made = make([folder[0].path], tmp_path)

    assert (made.verdict, made.data["run"]["dry_run"]) == ("VALID", True)
    assert made.data["conservation"]["scheduled"] == folder[1]["conservation"]["scheduled"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"traffic": {"main": {"pattern": "batch"}}}, "message batches"),
        ({"traffic": {"main": {"reader": {"bytes_per_s": 1000.0}}}}, "slow reader"),
        (
            {"arrival": {"rate_per_s": 10_000.0}, "traffic": {"main": {"output_tokens": 1000}}},
            "chunks are planned",
        ),
    ],
)
def test_what_a_dry_run_cannot_show_is_refused_before_anything_is_written(
    changes, message, tmp_path
):
    with pytest.raises(UsageError, match=message):
        made_of({**TREE, **changes}, tmp_path)

    assert not list(Path(tmp_path).iterdir())


def test_a_target_that_is_not_simulated_is_noted_and_not_called(tmp_path):
    _, run_json = made_of({**TREE, "target": {"url": "https://api.example.org"}}, tmp_path)

    assert any(
        "https://api.example.org" in note and "not called" in note for note in run_json["notes"]
    )
    assert run_json["target"]["simulated"] is True


@pytest.mark.slow
def test_the_command_line_dry_runs_in_one_worker(command, tmp_path):
    both = command(
        ["tailgauge", "run", "quickstart", "--dry-run", "--workers", "2", "--out", str(tmp_path)]
    )
    one = command(
        [
            "tailgauge",
            "run",
            "quickstart",
            "--dry-run",
            "--duration",
            "10",
            "--json",
            "--out",
            str(tmp_path),
        ]
    )

    assert (both.returncode, "omit --workers" in both.stderr) == (2, True)
    run_json = json.loads(one.stdout)
    assert (run_json["verdict"], run_json["dry_run"]) == ("VALID", True)
    report = json.loads(Path(run_json["report"]["json"]).read_text())
    assert (report["verdict"]["status"], report["run"]["dry_run"]) == ("VALID", True)
    assert report["run"]["reproduce"].startswith(
        "tailgauge run quickstart --dry-run --set 'stages={duration_s = 10.0"
    )
    assert Path(run_json["report"]["junit"]).read_text().startswith("<?xml")
    assert json.loads((Path(run_json["run_dir"]) / "run.json").read_text())["dry_run"] is True
