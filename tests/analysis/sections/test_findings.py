"""What changes the meaning of the figures stands below the result: in the terminal, on the page and in the files."""

import json

import pytest

from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.ends import is_same_model
from tailgauge_analysis.text.section import PASS, Finding, Result, Section, most_important

OK = {"first": 100, "gap": 20, "kinds": "x" * 10, "output_tokens": 20, "stop_reason": "end_turn"}
BUFFERED = {**OK, "first": 900, "gap": 0.02}
CUT = {**OK, "stop_reason": "max_tokens", "ended": "cut"}
OTHER_MODEL = {**OK, "asked_model": "gpt-4o", "model": "gpt-4o-mini-2024"}
FALLBACK = {**OK, "asked_model": "m", "model": "small", "fallback": "large"}
OTHER = {**OK, "asked_model": "m-large", "model": "n-small"}
FAST = {"slo": {"fast": "ttft p50 < 5000ms"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "findings"),
    [
        ([OK] * 40, []),
        (
            [BUFFERED] * 40,
            ["100% of the answers are buffered by a proxy: TTFT is not that of the target."],
        ),
        (
            [CUT] * 10 + [BUFFERED] * 30,
            [
                "75% of the answers are buffered by a proxy: TTFT is not that of the target.",
            ],  # the result states that 25% were cut
        ),
        (
            [OTHER] * 20 + [OK] * 20,
            ["50% of the answers name another model than the request: n-small."],
        ),
        (
            [FALLBACK] * 10 + [OK] * 30,
            ["10 of 40 answers were served by small after large (fallback)."],
        ),
    ],
)
def test_the_findings_of_a_run_by_weight(folder_of, attempts, findings):
    report = build(Run([folder_of(*attempts, **FAST)]))

    assert list(report.findings) == findings
    assert list(report.data["findings"]) == findings


@pytest.mark.slow
def test_a_cut_that_the_result_does_not_state_is_a_finding(folder_of):
    slow = {"slo": {"fast": "ttft p50 < 5ms"}}
    report = build(Run([folder_of(*[CUT] * 10, *[OK] * 30, **slow)]))
    text = "25% of the complete answers were cut at a token limit: end to end is the time of these shorter answers."

    assert report.findings == (text,)


@pytest.mark.slow
def test_findings_stand_in_the_first_lines_of_every_output(folder_of, tmp_path):
    made = make([folder_of(*[BUFFERED] * 40, **FAST)], tmp_path)
    text = "100% of the answers are buffered by a proxy"
    page = made.html.read_text(encoding="utf-8")

    assert any(text in line for line in made.summary.splitlines()[:3])
    assert made.summary.splitlines()[0].startswith(f"{PASS}  ")
    assert text in page.partition("</header>")[0]
    assert made.markdown.read_text(encoding="utf-8").index(text) < 400
    assert json.loads(made.json.read_text())["findings"][0].startswith(text)


def test_the_report_picks_two_by_weight_and_none_that_the_result_states():
    findings = [
        Finding("a small one", 1.2),
        Finding("a cut", 9.0, stated=" cut"),
        Finding("a proxy", 3.5),
    ]
    sections = [Section("one", "One", findings=tuple(findings)), Section("two", "Two")]
    more = Section("three", "Three", findings=(Finding("a cache", 3.9),))

    assert most_important([*sections, more], Result(PASS, "100% of them cut")) == (
        "a cache",
        "a proxy",
    )
    assert most_important(sections, Result(PASS, "met")) == ("a cut", "a proxy")
    assert most_important([], Result(PASS, "met")) == ()


@pytest.mark.parametrize(
    ("asked", "model", "is_same"),
    [
        ("claude-haiku-4-5", "claude-haiku-4-5-20251001", True),
        ("meta-llama/Llama-3-8B", "llama-3-8b", True),
        ("m", "/models/m", True),
        ("gpt-4o", "gpt-3.5-turbo", False),
        ("default", "Qwen2.5-7B", False),
    ],
)
def test_a_model_is_the_same_with_a_date_a_folder_or_another_case(asked, model, is_same):
    assert is_same_model(asked, model) is is_same


@pytest.mark.slow
def test_objectives_have_numbers_with_units(folder_of):
    slo = {
        "fast": "ttft p50 < 5000ms",
        "errors": "error_rate < 0.5",
        "rate": "requests_per_s > 0.001",
    }
    data = build(Run([folder_of(*[OK] * 60, slo=slo)])).data
    numbers = {line["name"]: line["numbers"] for line in data["result"]["objectives"]}

    assert {name: (each["unit"], each["bound"]) for name, each in numbers.items()} == {
        "ttft p50": ("ms", 5000.0), "error_rate": ("share", 0.5), "requests_per_s": ("per_s", 0.001),
    }  # fmt: skip
    assert numbers["ttft p50"]["low"] <= numbers["ttft p50"]["value"] <= numbers["ttft p50"]["high"]
    assert numbers["error_rate"]["value"] == 0.0
