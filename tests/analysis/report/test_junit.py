"""junit.xml: every objective and the measurement as a test case."""

from xml.etree.ElementTree import fromstring

import pytest

SLO = {
    "fast": "ttft_sched p50 < 1000ms",
    "slow": "e2e_sched p50 < 10ms",
    "never": "turnaround p90 < 10ms",
}


def suite(report):
    return fromstring(report.junit.read_text(encoding="utf-8"))  # noqa: S314 - our own file


def verdict_of(case):
    kinds = [child.tag for child in case if child.tag != "system-out"]
    return kinds[0] if kinds else "passed"


@pytest.mark.slow
def test_pass_failure_and_skipped_with_the_reason(made):
    root = suite(made(n=400, slo=SLO))
    cases = {case.get("name"): case for case in root.findall("testcase")}

    assert {name: verdict_of(case) for name, case in cases.items()} == {
        "measurement": "passed", "ttft_sched p50": "passed", "e2e_sched p50": "failure",
        "turnaround p90": "skipped",
    }  # fmt: skip
    assert "e2e_sched p50 390 ms > 10 ms (95% CI 390-390)" in cases["e2e_sched p50"][0].get(
        "message"
    )
    assert "nothing was measured" in cases["turnaround p90"][0].get("message")
    assert [root.get(key) for key in ("tests", "failures", "errors", "skipped")] == [
        "4",
        "1",
        "0",
        "1",
    ]


@pytest.mark.slow
def test_an_invalid_run_is_an_error_with_its_reasons_and_a_degraded_one_passes(made):
    invalid = suite(made(n=200, lost=1, run_id="bad", slo={"slow": SLO["slow"]}))
    degraded = suite(made(n=400, cpu_share=0.95, error_ns=2_000_000, run_id="soso"))

    assert invalid.find("testcase/error").get("type") == "INVALID"
    assert "Missing" in invalid.find("testcase/error").text
    assert "e2e_sched p50 390 ms > 10 ms" in invalid.find("testcase/failure").get("message")
    assert (invalid.get("errors"), degraded.get("errors")) == ("1", "0")
    assert "Clock offsets are known only" in degraded.find("testcase/system-out").text


def test_untrusted_text_is_no_markup_and_breaks_no_parser(made):
    evil = "</testcase><error/>\x00\ud800\ufffe & \"'"
    root = suite(made(n=100, slo={"a": {"metric": evil, "max_ms": 1.0}}, scenario={"name": evil}))

    assert len(root.findall("testcase")) == 3
    assert root.findall(".//error") == []
    assert root.get("name") == "tailgauge: </testcase><error/> & \"'"
