"""Damaged run folders: each has an honest report, or one clear error that names it; never a traceback or a hang."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter

import pyarrow as pa
import pytest
from analysis.reading.damages import BILLS, Damage, change_parts, set_cells
from run_folders.dry_runs import RICH, dry_run_folder
from scenario.test_mutations import HANGS_S
from starting.fixtures import TooLongError

from tailgauge.cli import main
from tailgauge.rows.schema import TABLES, columns

pytestmark = pytest.mark.slow

CODES = {0, 1, 2, 3, 4, 5, 130}  # 130: as a run whose state is unreadable
NO_NUMBER = re.compile(r".{0,60}(?<![\w`])(?:nan|NaN|inf|Infinity|NaT)(?![\w`]).{0,40}")


@pytest.fixture(scope="module")
def sound(synthetic, tmp_path_factory):
    """Runs that are damaged: of two workers, of a master that died, and one with something in every section."""
    folder = tmp_path_factory.mktemp("sound")
    runs = [
        synthetic.write(folder / "two", n=60, run_id="two"),
        synthetic.write(folder / "died", n=60, run_id="died", state="running"),
        dry_run_folder(RICH, folder),
    ]
    return runs, synthetic.write(folder / "other", n=60, run_id="other")


def copied(run, out):
    return shutil.copytree(run, out / "run" / run.name)


def wrong_with(code: int, out: str, err: str, folder, reports) -> str:
    """What is wrong with the end of `report`; empty if nothing is."""
    if code == -1:
        return f"over {HANGS_S:g} s of CPU"
    if code not in CODES or "internal error" in err or "Traceback" in err:
        return f"exit {code}: {err[-300:]}"
    if code == 2:
        clear = err.count("\n") == 1 and str(folder) in err and len(err) < 2000
        return (
            ""
            if clear and re.search("not |neither|different|newer|cannot|expected", err)
            else f"unclear: {err!r}"
        )
    texts = [out, *(path.read_text(encoding="utf-8") for path in reports.rglob("report.md"))]
    json.loads(next(reports.rglob("report.json")).read_text(), parse_constant=pytest.fail)
    odd = [hit for text in texts for hit in NO_NUMBER.findall(re.sub(r"`[^`]*`", "", text))]
    return (
        f"a number that is none: {odd[:2]}"
        if odd
        else "\x1b in the text"
        if "\x1b" in "".join(texts)
        else ""
    )


@pytest.fixture
def report(monkeypatch, capsys, bounded, tmp_path):
    """Report a folder in this process: exit code (-1: too long), output, errors."""

    def made(folder, out=tmp_path):
        monkeypatch.setattr(sys, "argv", ["tailgauge", "report", str(folder), "--out", str(out)])
        bounded(HANGS_S)
        try:
            main.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        except TooLongError:
            code = -1
        bounded(0)
        return code, *capsys.readouterr()

    return made


def test_a_damaged_folder_is_reported_or_refused_by_name(
    sound, tmp_path, report, command, fuzz, full_size
):
    """`TAILGAUGE_FUZZ=SEED` repeats a run, `TAILGAUGE_FUZZ=SEED-NUMBER` one folder. One in twenty is another process."""
    seed, numbers, repeats_one = fuzz(25, 500)
    runs, other = (
        sound if full_size or repeats_one else (sound[0][:2], sound[1])
    )  # the last one takes a second each
    codes, defects = Counter(), {}
    for number in numbers:
        work = tmp_path / str(number)
        folder = copied(runs[number % len(runs)], work)
        damage = Damage(seed, number)
        damage.apply(folder, other)
        if number % 20 == 19:
            done = command(["tailgauge", "report", folder, "--out", work], 60)
            code, out, err = done.returncode, done.stdout, done.stderr
        else:
            code, out, err = report(folder, work)
        codes[code] += 1
        if wrong := wrong_with(code, out, err, folder, work / "reports"):
            defects[damage.name] = f"{damage.done}: {wrong}"
        shutil.rmtree(work)
    print(f"exit codes {dict(codes)}")

    assert defects == {}
    if not repeats_one:
        assert codes[3] > len(numbers) / 4


@pytest.mark.parametrize(
    ("run", "table", "change"),
    [
        (2, "attempts", lambda rows: rows.slice(0, 0)),
        (2, "requests", lambda rows: rows.slice(0, 0)),
        (2, "health", lambda rows: rows.slice(0, 0)),
        (2, "attempts", lambda rows: rows.append_column("phases", rows["phases"])),
        (0, "chunks", lambda rows: rows.append_column("exact", rows["exact"])),
        (2, "attempts", lambda rows: pa.concat_tables([rows] * 3)),
        (0, "health", set_cells("cpu_share", 1e308, 2)),
        (0, "health", set_cells("cpu_share", float("-inf"), 2)),
        (0, "health", set_cells("first_chunks", None, 1)),
        (0, "requests", set_cells("scheduled_at_ns", -(2**63), 17)),
        (0, "requests", set_cells("ended_at_ns", 2**63 - 1, 17)),
        (0, "chunks", lambda rows: rows.drop_columns("kind")),
        (0, "requests", lambda rows: rows.drop_columns("stage")),
    ],
)  # fmt: skip
def test_what_was_found_once_stays_found(sound, tmp_path, report, run, table, change):
    folder = copied(sound[0][run], tmp_path)
    change_parts(folder, table, change)

    assert wrong_with(*report(folder), folder, tmp_path / "reports") == ""


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("value", [2**63 - 1, -(2**63)])
def test_numbers_that_nobody_records(sound, tmp_path, report, table, value):
    """The part is left out and named, whichever column has one."""
    folder = copied(sound[0][0], tmp_path)
    whole = [column.name for column in columns(table) if column.kind == "int64"]
    for name in (whole[0], whole[-1]):
        change_parts(folder, table, set_cells(name, value, 17))

    assert wrong_with(*report(folder), folder, tmp_path / "reports") == ""
    texts = "".join(path.read_text() for path in tmp_path.rglob("report.md"))
    assert f"{table}/part-0-0.parquet" in texts


@pytest.mark.parametrize("text", BILLS)
def test_bills_that_cannot_be(sound, tmp_path, report, text):
    """In every column of text: what a target says of its tokens, limits and phases is in some of them."""
    folder = copied(sound[0][2], tmp_path)
    for name in (
        "iterations",
        "rate_limit_headers",
        "phases",
        "tool_ready",
        "stop_details",
        "fallback",
    ):
        change_parts(folder, "attempts", set_cells(name, text, 1))

    assert wrong_with(*report(folder), folder, tmp_path / "reports") == ""
