"""The Python API gives what the report has, and loads nothing before it is asked."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from starting.command import run_command
from starting.programs import environment

import tailgauge_analysis as tg
from tailgauge.errors import RunDataError, UsageError

DOCS = Path(__file__).parents[2] / "docs"
CALL = ["request_id", "leg", "attempt"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A dry run of two kinds of traffic, some of which fail."""
    out = tmp_path_factory.mktemp("api")
    options = [
        "--dry-run",
        "--set=simulated.faults.odd.kind=cut", "--set=simulated.faults.odd.share=0.05", "--set=stages.duration_s=20",
        f"--out={out}",
    ]  # fmt: skip
    done = run_command(["tailgauge", "run", "mix", *options], 60)
    assert done.returncode in {0, 1}, done.stderr
    (run,) = (out / "runs").iterdir()
    return run


@pytest.fixture(scope="module")
def run(folder):
    return tg.load(folder)


@pytest.fixture(scope="module")
def report(folder):
    return json.loads((folder.parents[1] / "reports" / folder.name / "report.json").read_text())


@pytest.mark.slow
def test_every_percentile_of_the_report_comes_out_with_its_interval(run, report):
    seen = 0
    for row in report["latency"]:
        for found in row["percentiles"].values():
            given = run.percentile(
                row["metric"], found["p"], interval=True, population=row["population"],
                traffic=row["group"] if row["group"] != "all" else "", since=row["since"] or "scheduled",
            )  # fmt: skip
            known = given.value is not None and np.isfinite(given.value)
            finite = round(given.value, 6) if known else None
            assert (finite, given.n, given.mark) == (found["value"], found["n"], found["mark"])
            seen += 1
    assert seen > 100


@pytest.mark.slow
def test_result_verdict_and_data_are_those_of_the_report(run, report):
    assert (run.answer, run.verdict) == (report["result"], report["verdict"]["status"])
    assert json.loads(json.dumps(run.data)) == report


def test_tables_are_whole_ordered_and_hold_integers(run, folder):
    for name in ("requests", "attempts", "chunks"):
        frame, stored = getattr(run, name), pd.read_parquet(folder / name)
        assert len(frame) == len(stored) > 0
        assert set(stored.columns) | {"worker"} == set(frame.columns)
        times = [column for column in frame.columns if column.endswith("at_ns")]
        assert all(pd.api.types.is_integer_dtype(frame[column]) for column in times)
    assert run.chunks[[*CALL, "chunk_index"]].apply(tuple, axis=1).is_monotonic_increasing
    assert run.requests.scheduled_at_ns.min() >= 0


def test_gaps_by_hand_are_those_of_the_report(run):
    steady = run.requests[(run.requests.stage == "steady") & (run.requests.ended == "ok")]
    known = run.attempts.merge(steady[["request_id"]]).query("ended == 'ok' and cause != 'hedge'")
    chunks = run.chunks.merge(known[CALL])
    by_hand = np.sort(chunks.groupby(CALL).arrived_at_ns.diff().dropna().to_numpy(np.float64) / 1e6)

    assert run.percentile("chunk_gap", 0.99) == pytest.approx(
        by_hand[int(np.ceil(0.99 * len(by_hand))) - 1]
    )


def test_the_script_of_the_readme_counts_the_steady_stage_only(
    run, folder, tmp_path, monkeypatch, capsys
):
    """Each kind of traffic by itself: requests that ended, and the gaps of their chunks."""
    (script,) = re.findall(
        r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text("utf-8"), re.DOTALL
    )
    monkeypatch.chdir(folder.parents[1])
    (tmp_path / "rows.py").write_text(script, encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "rows.py"))
    printed = capsys.readouterr().out

    steady = run.requests[run.requests.stage == "steady"]
    assert 0 < len(steady) < len(run.requests)
    assert names["steady"].equals(steady)
    assert set(names["chunks"].request_id) <= set(steady.request_id)
    for traffic, requests in steady.groupby("traffic"):
        sent = run.chunks[run.chunks.request_id.isin(requests.request_id)]
        calls = len(sent.drop_duplicates(CALL))
        gaps = names["gaps_ms"][names["chunks"].traffic == traffic].dropna()
        assert len(gaps) == len(sent) - calls > 0
        assert re.search(
            rf"^{traffic} +ok +{(requests.ended == 'ok').sum()}$", printed, re.MULTILINE
        )


def test_times_of_a_dry_run_have_no_date(run):
    """As the page says: pandas makes NaT of them."""
    dates = pd.to_datetime(run.requests.scheduled_at_ns + run.requests.wall_offset_ns, utc=True)

    assert dates.isna().all()
    assert "NaT" in (DOCS / "reference" / "data-format.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ttfx", 0.99), "ttfx: no such metric; choose from ttft, tpot"),
        (("ttft", 99), "percentile 99: give a share between 0 and 1"),
        (("ttft", float("nan")), "percentile nan: give a share"),
        (("ttft", 0.5, {"since": "start"}), "since='start': choose from scheduled, sent"),
        (("ttft", 0.5, {"population": "all"}), "population='all': choose from completed, offered"),
        (("ttft", 0.5, {"traffic": "nobody"}), "traffic='nobody': choose from"),
        (
            ("chunk_gap", 0.5, {"traffic": "research"}),
            "chunk_gap: the requests of research are fan-outs, whose latency is metric join",
        ),
        (
            ("ttft", 0.5, {"traffic": "research", "population": "offered"}),
            "ttft: the requests of research are fan-outs",
        ),
        (("join", 0.5, {"traffic": "chat"}), "join: the requests of chat have one answer each"),
        (("turnaround", 0.5), "turnaround: the requests of this run have one answer each"),
    ],
)
def test_a_wrong_argument_says_what_is_expected(run, arguments, message):
    *given, more = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        run.percentile(*given, **more)


def test_a_folder_without_a_run_is_refused_when_it_is_loaded(tmp_path):
    with pytest.raises(RunDataError, match="no such run folder"):
        tg.load(tmp_path / "nowhere")
    with pytest.raises(RunDataError, match="no run folder given"):
        tg.load()


def test_runs_are_listed_the_oldest_first_and_damaged_ones_too(folder, tmp_path):
    assert tg.list_runs(tmp_path).empty
    for name, text in (("20250101T000000Z-old-0001", "{"), ("20250102T000000Z-old-0002", "[]")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").write_text(text)
    (tmp_path / "runs" / folder.name).symlink_to(folder)

    listed = tg.list_runs(tmp_path)

    assert listed.run_id.tolist()[:2] == ["20250101T000000Z-old-0001", "20250102T000000Z-old-0002"]
    assert listed.iloc[-1][["scenario", "state", "verdict"]].tolist() == [
        "mix",
        "complete",
        "VALID",
    ]


@pytest.mark.slow
def test_the_page_and_the_notebook_work_as_written(folder, tmp_path):
    """The page on a run of its own name, the notebook cell by cell in an empty folder; neither module is loaded early."""
    text = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    page, made = (part.partition("```")[0] for part in text.split("```python\n")[1:3])
    named = page.partition('"')[2].partition('"')[0]
    cells = json.loads((DOCS / "tutorials" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")

    scripts = {
        "run.py": made,
        "page.py": page.replace(named, str(folder)),
        "notebook.py": "\n".join(code),
    }
    for name, script in scripts.items():
        lazy = "\nimport sys\nassert 'pandas' not in sys.modules\n"
        path = tmp_path / name
        path.write_text(
            script.replace(
                "import tailgauge_analysis as tg\n", "import tailgauge_analysis as tg" + lazy
            )
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", path], check=False, cwd=tmp_path, env=environment({}), capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert "ttft p95" in done.stdout
