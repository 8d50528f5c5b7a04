"""Bad runs: an honest, smaller report that names the file; never a traceback, never a NaN.

Rule: every report goes through all that is written, except the figures.
"""

import json
import re
import resource
import shutil
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from analysis.reading.damages import EVIL, JUNK, change_parts, set_cells
from run_folders.dry_runs import RICH, dry_run_folder
from run_folders.run_data import edited_run

from tailgauge.errors import UsageError
from tailgauge.rows.schema import columns
from tailgauge_analysis.comparing.pairs import compare
from tailgauge_analysis.comparing.pairs import report as compared_report
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.junit import junit
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html
from tailgauge_analysis.report.report import make
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.run import Run

TABLES = ("requests", "attempts", "chunks", "health", "target")
NO_NUMBER = re.compile(r".{0,60}\b(?:nan|NaN|inf|Infinity|None|NaT|undefined)\b.{0,40}")


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rich")
    return dry_run_folder(RICH, folder)


@pytest.fixture
def copy(rich, tmp_path):
    """A copy of the rich run that may be spoilt: `copy()`."""
    return lambda name="copy": shutil.copytree(rich, tmp_path / name / rich.name)


def report_data(*folders):
    """Contents of the report, after looking for numbers that are none in all that would be written."""
    findings = Run(folders)
    report = build(findings)
    page, text = html(report), markdown(report)
    body = re.sub(r"<(pre|script|style)[^>]*>.*?</\1>", "", page, flags=re.DOTALL)
    expected = terminal(report, Path("report.html"), 80)
    found = [hit for shown in (body, text, expected) for hit in NO_NUMBER.findall(shown)]
    assert found == []
    json.dumps(report.data, allow_nan=False)
    ET.fromstring(junit(report))  # noqa: S314 - our own
    assert "<script>alert" not in page + text
    assert "<img src" not in page + text
    assert "\x1b" not in expected + text
    assert len(page) < 8_000_000
    return report.data


def reasons(data):
    return {reason["check"]: reason["text"] for reason in data["verdict"]["reasons"]}


def change(folder, **values):
    """Change keys of run.json."""
    with edited_run(folder) as run:
        run.update(values)
    return folder


@pytest.mark.slow
def test_every_kind_of_damage_to_a_part_is_named_with_its_file(write):
    """A whole part is left: the report is about it, and says what is missing."""
    folder = write(n=90, parts=9, offsets_ns=(0,))
    parts = sorted((folder / "requests").glob("*.parquet"))
    whole = parts[0].read_bytes()
    for part, length in zip(parts, (0, 4, 8, 100, len(whole) // 2, len(whole) - 1), strict=False):
        part.write_bytes(whole[:length])
    parts[6].write_text("no table at all\n" * 50)
    pq.write_table(pa.table({"a": [1]}), parts[7])
    data = report_data(folder)

    assert [p["text"].split()[0] for p in data["problems"]] == [
        f"requests/{p.name}" for p in parts[:8]
    ]
    assert data["verdict"]["status"] == "INVALID"
    assert "requests/part-0-0.parquet cannot be read and is left out" in reasons(data)["parts"]
    assert "(and 6 more)" in reasons(data)["parts"]
    assert (data["conservation"]["dispatched"], data["conservation"]["lost"]) == (10, 80)


@pytest.mark.slow
def test_every_share_states_of_what(rich):
    """A column of shares has its denominator in its header; a share in a sentence or a cell is followed by `of`, or by n."""
    report = build(Run([rich]))
    text, page = markdown(report), html(report)
    rows = text.splitlines()
    tops = [row for row, below in pairwise(rows) if below.startswith("|---")]
    assert len(tops) > 10
    headers = [cell.strip() for row in tops for cell in row.strip("|").split("|")]
    headers += re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", page)

    assert [
        header
        for header in headers
        if re.match(r"(?i)(share|hit|ok|refused|mean use)\b(?!.*\bof\b)", header)
    ] == []
    assert "share of requests" in text
    assert "share of requests" in page
    assert re.search(r"429 rate \| [\d.]+% of attempts", text)


def test_parts_of_another_run_are_noticed(write):
    """Nothing in a part names its run; its request ids do."""
    folder, other = write(n=50), write("other", n=50, run_id="other")
    for table in ("requests", "attempts", "chunks"):
        shutil.copy(other / table / "part-0-0.parquet", folder / table / "part-7-0.parquet")
    data = report_data(folder)

    assert data["verdict"]["status"] == "INVALID"
    assert "appear more than once" in reasons(data)["unique"]
    assert "more requests in the rows than were scheduled" in reasons(data)["conservation"]


def killed(write):
    """As `kill -9` of everything leaves it a moment after the start."""
    folder = write(n=60, state="running")
    shutil.rmtree(folder / "workers")
    return change(folder, workers=[], conservation=None, ended_at_ns=None, admission_end_at_ns=None)


def without(*names):
    def folder(write):
        made = write(n=60)
        for name in names:
            shutil.rmtree(made / name)
        return made

    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "check", "expected"),
    [
        (killed, "conservation", "The number of scheduled requests is unknown"),
        (without(*TABLES), "lost", "30 requests of worker 0 have no row. 30 requests of worker 1 have no row."),
        (without("attempts", "chunks"), "conservation", "worker 0 wrote 30 rows of attempts, its parts have 0"),
        (without("chunks"), "conservation", "the attempts have 1,200 chunks, the parts 0"),
        (without("health", "requests"), "lost", "30 requests of worker 0 have no row"),
    ],
)  # fmt: skip
def test_a_poor_run_is_reported_as_what_it_is(write, made, check, expected):
    data = report_data(made(write))

    assert (data["verdict"]["status"], data["exit_code"]) == ("INVALID", 3)
    assert expected in reasons(data)[check]


def test_a_damaged_run_json_is_reported_as_damaged_and_not_missing(write):
    folder = write(n=10)
    whole = (folder / "run.json").read_text()
    for text in ("", "\xff", "[]", whole[: len(whole) // 2]):
        (folder / "run.json").write_text(text, encoding="latin-1")
        problems = [problem.text for problem in load([folder]).problems]
        assert problems[0].startswith("run.json ")
        assert problems[1].startswith("run.json is damaged: rebuilt from the records of 2 workers")

    assert "run.json is damaged" in reasons(report_data(folder))["finished"]


def junk(place, shift):
    return JUNK[(place + shift) % len(JUNK)]


def spoilt_run(run, shift):
    """The record with another wrong type at every key: of its tables, of the scenario's, of each worker's."""
    within = {
        name: {key: junk(i + len(name), shift) for i, key in enumerate(value)}
        for name, value in run.items()
        if isinstance(value, dict)
    }
    scenario = {
        name: {key: junk(i, shift) for i, key in enumerate(value)}
        if isinstance(value, dict)
        else value
        for name, value in run["scenario"].items()
    }
    report_data = (*run["workers"][0], "missing", "silent", "late_s", "unwritten")
    worker = {key: junk(i, shift) for i, key in enumerate(report_data)}
    entry = {"ended": junk(0, shift), "message": junk(1, shift)}
    lists = {"workers": [{**worker, "worker": 0}], "notes": [junk(2, shift)], "preflight": [entry]}
    return {**run, **within, **lists, "scenario": scenario}


@pytest.mark.slow
def test_any_type_in_run_json_is_tolerated(copy, full_size):
    folder = copy()
    run = json.loads((folder / "run.json").read_text())
    for shift in range(len(JUNK)) if full_size else (0, 7):
        keys = {
            key: junk(i, shift)
            for i, key in enumerate(run)
            if key not in {"run_id", "schema_version"}
        }
        for values in ({**run, **keys}, spoilt_run(run, shift)):
            (folder / "run.json").write_text(json.dumps(values))
            report_data(folder)


WRONG = {
    pa.int64(): (None, 0, -1, 1, 2**53, 2**62, -(2**62), "negative"),
    pa.int32(): (None, 0, -1, 2**31 - 1, "negative"),
    pa.int16(): (None, 0, -1, 2**15 - 1),
    pa.float64(): (None, float("nan"), float("inf"), float("-inf"), -1.0, 1e308),
    pa.string(): (None, "", "{", EVIL),
    pa.bool_(): (None, True, False),
}


def spoilt(column, wrong, every):
    """The column with a wrong value in every so manieth row, another one each time that `wrong` is moved on."""
    old = column.to_pylist()
    for i in range(0, len(old), every):
        old[i] = wrong if wrong != "negative" else None if old[i] is None else -old[i]
    return pa.array(old, column.type)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 3])
def test_any_value_in_the_rows_is_tolerated(copy, full_size, every):
    """Another wrong value in every column; those that place a row stay, or nothing would be left to report."""
    for shift in range(9) if full_size else (every, every + 4):
        folder = copy(str(shift))
        for table in TABLES:
            never_empty = {column.name for column in columns(table) if not column.nullable}
            never_empty.add("arrived_at_ns")  # of chunks: their first row says it
            stay = {"stage", "request_id", "client_request_id"}

            def wrong(rows, stay=stay, never_empty=never_empty, shift=shift):
                for i, field in enumerate(rows.schema):
                    values = [v for v in WRONG.get(field.type, ()) if v is not None or field.name not in never_empty]  # fmt: skip
                    if values and field.name not in stay:
                        new = spoilt(rows[field.name], values[(i + shift) % len(values)], every)
                        rows = rows.set_column(i, field.name, new)
                return rows

            change_parts(folder, table, wrong)
        assert not [p for p in report_data(folder)["problems"] if "left out" in p["text"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "column"), [("chunks", "arrived_at_ns"), ("attempts", "traffic")]
)
def test_holes_where_none_may_be_are_damage(copy, table, column):
    folder = copy()
    change_parts(folder, table, set_cells(column, None, 1))

    texts = [problem["text"] for problem in report_data(folder)["problems"]]
    (text,) = [text for text in texts if "left out: column" in text]
    assert f"column {column} has empty values" in text


def test_a_clock_that_went_back_is_found(write):
    folder = write(n=100, parts=1, offsets_ns=(0, 0))
    (part,) = (folder / "attempts").glob("part-0-*")
    sent_at_ns = pq.read_table(part)["sent_at_ns"][0].as_py()
    change_parts(folder, "attempts", set_cells("sent_at_ns", sent_at_ns + 5 * 10**9, 1000))
    data = report_data(folder)

    assert reasons(data)["order"].startswith("2 of 100 attempts (2.0%) have times out of order")
    assert (
        "by up to 4,801 ms" in reasons(data)["order"]
        or "ms: a clock stepped back" in reasons(data)["order"]
    )
    assert data["verdict"]["status"] == "INVALID"


@pytest.mark.slow
def test_a_comparison_with_a_poor_run_says_so(write):
    sound = write("sound", n=100, run_id="sound")
    for name, changes in {
        "failing": {"ended": dict.fromkeys(range(100), "server_error")},
        "dropped": {"ended": dict.fromkeys(range(100), "client_drop")},
    }.items():
        compared = compared_report(compare([sound, write(name, n=100, run_id=name, **changes)]))
        shown = " ".join(terminal(compared, None, 80).split()) + markdown(compared)

        assert compared.exit_code == 3
        assert f"{name} is INVALID" in shown
        assert NO_NUMBER.findall(shown) == []
        json.dumps(compared.data, allow_nan=False)


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_the_report_that_was_there(write):
    """And a report may lie in its own run folder."""
    folder = write(n=50)
    first = make([folder], folder)
    page = first.html.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(
            UsageError, match=r"cannot be written: .*Choose another folder with --out"
        ):
            make([folder], folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert first.html.is_relative_to(folder)
    assert first.html.read_bytes() == page
    assert list(first.html.parent.glob("*.tmp")) == []
    assert make([folder], folder).data == first.data
