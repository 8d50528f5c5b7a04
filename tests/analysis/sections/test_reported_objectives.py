"""An objective with `gate = false` is shown with its outcome; neither the result nor the exit code depends on it."""

import pytest

pytestmark = pytest.mark.slow

SLOW = {"metric": "ttft", "quantile": 0.5, "max_ms": 200.0, "gate": False}
MANY = {"metric": "error_rate", "max": 0.02, "gate": False}


@pytest.mark.parametrize(("gate", "outcome", "code"), [(False, "PASS", 0), (True, "FAIL", 1)])
def test_only_a_gate_decides(made, gate, outcome, code):
    report = made(n=800, ttft_ms=300, slo={"slow": {**SLOW, "gate": gate}})
    result = report.data["result"]

    assert (result["outcome"], report.exit_code) == (outcome, code)
    assert [(row["outcome"], row["gate"]) for row in report.data["slo"]] == [("fail", gate)]
    assert ("ttft p50" in [line["name"] for line in result["objectives"]]) == gate


def test_its_outcome_is_shown_beside_the_objectives(made):
    report = made(n=800, ttft_ms=300, slo={"slow": SLOW})

    assert "| ttft p50 | 300 ms " in report.markdown.read_text()
    assert " 200 ms | FAIL |" in report.markdown.read_text()
    assert "Reported objectives" in report.html.read_text()
    assert "ttft p50 300 ms > 200 ms (95% CI" in " ".join(report.summary.split())
    assert "ttft p50" not in report.junit.read_text()


def test_it_replaces_no_default_and_judges_no_good_request(made):
    """A fifth of the requests fails: 99% complete are still expected, and goodput has no bound."""
    ended = dict.fromkeys(range(0, 800, 5), "stream_error")
    report = made(
        n=800, warmup_s=0, ended=ended, error={"status": 200}, slo={"slow": SLOW, "many": MANY}
    )

    assert report.data["health"]["outcome"] == "fail"
    assert report.data["goodput"] is None
    assert report.exit_code == 1
