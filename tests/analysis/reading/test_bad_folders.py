"""What is no run, or not one run: refused by the command line in one sentence that says what was expected."""

import re
import shutil
import sys

import pyarrow.parquet as pq
import pytest
from run_folders.run_data import edited_run

from tailgauge.cli import main
from tailgauge.rows.schema import SCHEMA_VERSION


class Requested:
    """What the command line message: `asked("report", folder)`."""

    def __init__(self, monkeypatch, capsys):
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments):
        self._monkeypatch.setattr(sys, "argv", ["tailgauge", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main.main()
        out, err = self._capsys.readouterr()
        return int(left.value.code or 0), out, err


@pytest.fixture
def asked(monkeypatch, capsys):
    return Requested(monkeypatch, capsys)


@pytest.fixture(scope="module")
def layout_of(synthetic, tmp_path_factory):
    """Folders that cannot be reported or compared, and two sound runs `a` and `b`."""
    layout_of = tmp_path_factory.mktemp("layout_of")
    for name in ("a", "b", "newer", "other", "newer_part"):
        synthetic.write(layout_of / name, n=10, run_id=name)
    shutil.copytree(layout_of / "a", layout_of / "out" / "runs" / "a")
    with edited_run(layout_of / "newer") as run:
        run["schema_version"] = SCHEMA_VERSION + 1
    record = layout_of / "other" / "workers" / "1.json"
    record.write_text(record.read_text().replace('"run_id": "other"', '"run_id": "another"'))
    marked = pq.read_table(layout_of / "newer_part" / "chunks" / "part-0-0.parquet")
    version = {"tailgauge.schema_version": str(SCHEMA_VERSION + 1)}
    pq.write_table(
        marked.replace_schema_metadata(version), layout_of / "newer_part/chunks/part-0-0.parquet"
    )
    (layout_of / "file").write_text("x")
    (layout_of / "empty").mkdir()
    (layout_of / "bare" / "requests").mkdir(parents=True)
    return layout_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("report none", r"/none: no such run folder"),
        ("report file", r"/file: a file, not a run folder: give the folder that holds run\.json"),
        ("report empty", r"/empty: not a run folder: it holds neither run\.json nor requests/"),
        ("report out", r"/out: not a run folder: .*Did you mean \S+/out/runs/a\?"),
        ("report .", r"It holds 5 runs; the last is \S+"),
        ("report bare", r"neither run\.json nor any readable row"),
        ("report newer", r"/newer/run\.json: schema version \d+ is newer than \d+"),
        ("report newer_part", r"/chunks/part-0-0\.parquet: schema version \d+ is newer than \d+"),
        ("report a b", r"these are different runs: a \(.*\) and b \(.*\)\. Give folders of one run"),
        ("report other", r"these are different runs: other .* and another"),
        ("report a --out file", r"/file/reports/a: the report cannot be written: Not a directory"),
        ("compare a", r"takes runs in pairs, as A B or A1 B1 A2 B2; 1 given"),
        ("compare a none", r"/none: no such run folder"),
        ("compare a file", r"/file: a file, not a run folder"),
        ("compare a empty", r"/empty: not a run folder"),
        ("compare a a", r"are the same run, a: give each run once"),
        ("compare a newer", r"/newer/run\.json: schema version"),
        ("compare a b --metric x", r"--metric x: no such metric; choose from ttft_sched"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_in_one_sentence(layout_of, asked, arguments, message):
    line = [
        word if word.startswith("--") or word == "x" else layout_of / word
        for word in arguments.split()[1:]
    ]
    code, out, err = asked(arguments.split()[0], *line)

    assert code == 2
    assert out == ""
    assert err.startswith("tailgauge: ")
    assert err.count("\n") == 1
    assert re.search(message, err), err
