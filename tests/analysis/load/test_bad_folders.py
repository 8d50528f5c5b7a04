"""What is no run, or not one run: refused by the command line in one sentence that says what was expected."""

import json
import re
import shutil
import sys

import pyarrow.parquet as pq
import pytest

from tailgauge.cli import main
from tailgauge.rows.schema import SCHEMA_VERSION


class Asked:
    """What the command line said: `asked("report", folder)`."""

    def __init__(self, monkeypatch, capsys):
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words):
        self._monkeypatch.setattr(sys, "argv", ["tailgauge", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main.main()
        out, err = self._capsys.readouterr()
        return int(left.value.code or 0), out, err


@pytest.fixture
def asked(monkeypatch, capsys):
    return Asked(monkeypatch, capsys)


@pytest.fixture(scope="module")
def shelf(synthetic, tmp_path_factory):
    """Folders that cannot be reported or compared, and two sound runs `a` and `b`."""
    shelf = tmp_path_factory.mktemp("shelf")
    for name in ("a", "b", "newer", "other", "newer_part"):
        synthetic.write(shelf / name, n=10, run_id=name)
    shutil.copytree(shelf / "a", shelf / "out" / "runs" / "a")
    run = json.loads((shelf / "newer" / "run.json").read_text())
    (shelf / "newer" / "run.json").write_text(json.dumps({**run, "schema_version": SCHEMA_VERSION + 1}))
    record = shelf / "other" / "workers" / "1.json"
    record.write_text(record.read_text().replace('"run_id": "other"', '"run_id": "another"'))
    marked = pq.read_table(shelf / "newer_part" / "chunks" / "part-0-0.parquet")
    version = {"tailgauge.schema_version": str(SCHEMA_VERSION + 1)}
    pq.write_table(marked.replace_schema_metadata(version), shelf / "newer_part/chunks/part-0-0.parquet")
    (shelf / "file").write_text("x")
    (shelf / "empty").mkdir()
    (shelf / "bare" / "requests").mkdir(parents=True)
    return shelf


@pytest.mark.parametrize(
    ("words", "said"),
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
def test_what_cannot_be_read_is_refused_in_one_sentence(shelf, asked, words, said):
    line = [word if word.startswith("--") or word == "x" else shelf / word for word in words.split()[1:]]
    code, out, err = asked(words.split()[0], *line)

    assert code == 2
    assert out == ""
    assert err.startswith("tailgauge: ")
    assert err.count("\n") == 1
    assert re.search(said, err), err
