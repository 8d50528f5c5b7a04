"""The report as a whole: what is written, that it is harmless, and that nothing is ever a traceback."""

import json
import re

import numpy as np
import pytest
from run_folders.run_data import edited_run

from tailgauge_analysis.report.model import STABLE
from tailgauge_analysis.report.report import make

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)> | `a` [l](javascript:alert(1)) \x1b[31m\u202e &amp;'

SECTIONS = {
    "fan_out": "Fan-out",
    "hedging": "Hedging",
    "cache": "Prompt cache",
    "rate_limits": "Rate limits",
}


def body(report):
    """The page without plotly.js, which is not ours."""
    return max(re.split(r"<script>[^<]*plotly\.js", report.html.read_text())[:1], key=len)


def strict(text):
    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    return json.loads(text, parse_constant=refuse)


def every_kind_of_run(write):
    failing = dict.fromkeys(range(100), "server_error")
    yield write("sound", n=400)
    yield write("one", n=1, warmup_s=0, run_id="one")
    yield write("none", n=0, run_id="none")
    yield write("failing", n=100, ended=failing, run_id="failing")
    yield write("dropped", n=100, ended=dict.fromkeys(range(100), "client_drop"), run_id="dropped")
    yield write(
        "censored", n=100, ended=dict.fromkeys(range(90, 100), "censored"), run_id="censored"
    )
    yield write("warmup-only", n=20, run_id="warmup-only")
    yield write("one-chunk", n=100, chunks=1, run_id="one-chunk")
    yield write("no-server-log", n=100, server_log=False, run_id="no-server-log")


@pytest.mark.slow
def test_no_run_is_a_traceback_and_no_number_is_infinite(write, tmp_path):
    for folder in every_kind_of_run(write):
        report = make([folder], tmp_path)
        text = body(report) + report.markdown.read_text() + report.summary

        assert strict(report.json.read_text()) == report.data, folder
        assert not re.search(
            r"\b(nan|NaN|inf|Infinity|None|null ms)\b",
            re.sub(r"<(pre|script)[^>]*>.*?</\1>", "", text, flags=re.DOTALL),
        ), folder
        assert '"NaN"' not in text, folder


@pytest.mark.slow
def test_the_keys_of_the_json_are_the_documented_ones(made, checkout):
    report_json = made(n=100).data
    published = json.loads((checkout / "docs" / "reference" / "report.schema.json").read_text())

    assert set(STABLE) <= set(report_json)
    assert set(report_json) == set(published["properties"])


@pytest.mark.slow
def test_a_run_without_a_pattern_has_no_section_about_it(made):
    report = made(n=50)
    page, text = report.html.read_text(), report.markdown.read_text()

    for key, title in SECTIONS.items():
        assert not report.data[key]
        assert f'id="{key.replace("_", "-")}"' not in page
        assert f"## {title}" not in text


@pytest.mark.slow
def test_the_same_data_makes_the_same_report(write, tmp_path):
    folder = write(n=300, slo={"a": "tpot p90 < 11ms"})
    first = make([folder], tmp_path / "a")
    second = make([folder], tmp_path / "b")

    assert first.html.read_bytes() == second.html.read_bytes()
    assert first.json.read_bytes() == second.json.read_bytes()
    assert first.markdown.read_bytes() == second.markdown.read_bytes()


@pytest.mark.slow
def test_the_verdict_is_put_into_run_json(write, tmp_path):
    folder = write(n=300)
    before = json.loads((folder / "run.json").read_text())
    make([folder], tmp_path)
    after = json.loads((folder / "run.json").read_text())

    assert after.pop("verdict") == {
        "verdict": "VALID",
        "reasons": [],
        "outcome": "COMPLETED",
        "exit_code": 0,
    }
    assert {**after, "verdict": None} == before
    assert [path.name for path in folder.glob("*.tmp")] == []


@pytest.mark.slow
def test_a_run_that_goes_on_is_left_alone(write, tmp_path):
    folder = write(n=300, state="running")
    before = (folder / "run.json").read_bytes()
    make([folder], tmp_path)

    assert (folder / "run.json").read_bytes() == before


def test_what_a_target_wrote_stays_text(write, tmp_path):
    error = {"status": 429, "error_type": EVIL, "error_body": EVIL}
    folder = write(
        n=400, ended=dict.fromkeys(range(200, 300), "rate_limited"), error=error, model=EVIL, slo={}
    )
    with edited_run(folder) as run:
        run["scenario"] |= {"name": EVIL, "description": EVIL, "note": "</script>" + EVIL}
        run["scenario"]["slo"] = {EVIL: {"metric": EVIL}}
        run["target"]["url"] = EVIL
        run["workers"][0] |= {"name": EVIL, "host": EVIL}
        run["preflight"] = [{"ended": EVIL, "status": EVIL, "message": EVIL}]
        run.update({"notes": [EVIL], "overrides": [EVIL], "versions": {EVIL: EVIL}})
    report = make([folder], tmp_path)
    page, text = body(report), report.markdown.read_text()

    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert" in page
    assert "<script" not in text
    assert "<img" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    assert "\x1b" not in report.summary
    assert "\u202e" not in report.summary


def test_the_page_asks_nobody_for_anything(made):
    page = body(made(n=300))

    assert re.findall(r"""(?:src|href|action)\s*=\s*["']?(?!#|data:)([^"'\s>]+)""", page) == []
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert "url(" not in page


@pytest.mark.slow
def test_a_big_run_makes_a_page_that_can_be_mailed(made):
    drawn = np.random.default_rng(1).lognormal(5, 0.5, 20_000)
    report = made(n=20_000, rate_per_s=100, ttft_ms=drawn, chunks=5, server_log=False)

    assert report.html.stat().st_size < 8_000_000


@pytest.mark.slow
def test_the_summary_of_a_run_with_every_remark_is_short(made):
    ended = {
        **dict.fromkeys(range(500, 560), "rate_limited"),
        700: "client_drop",
        800: "timeout",
        999: "censored",
    }
    slo = {
        f"goal_{i}": {"metric": "ttft_sched", "quantile": 0.99, "max_ms": 1000.0 + i}
        for i in range(9)
    }
    late = np.where(np.arange(1000) % 40 == 0, 20.0, 0.1)
    report = made(
        n=1000,
        ended=ended,
        slo=slo,
        delay_ms=late,
        error_ns=2_000_000,
        interval_every=9,
        clock_step_ns=5_000_000,
    )
    lines = report.summary.splitlines()

    assert len(lines) <= 26
    to_copy = ("rows ", "report ", "          tailgauge run ")  # paths, a command
    assert [line for line in lines if len(line) > 80 and not line.startswith(to_copy)] == []
    assert lines[0].startswith("INCONCLUSIVE  ttft_sched p99 6.6% of requests > 1,000 ms")
    assert any(line.startswith("measured  DEGRADED: ") for line in lines[-5:])
    assert lines[-2] == f"rows      {report.html.parents[2] / 'runs' / 'run'}"
    assert lines[-1] == f"report    {report.html}"


@pytest.mark.slow
def test_a_rebuilt_run_says_so(write, tmp_path):
    folder = write(n=300)
    (folder / "run.json").unlink()
    report = make([folder], tmp_path)

    assert "run.json is missing" in report.summary
    assert "run.json is missing" in body(report)
    assert report.data["run"]["rebuilt"]
    assert not (folder / "run.json").exists()
