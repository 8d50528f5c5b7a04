"""Use cases and alerts: only where the scenario asks for them, with its own bounds; none of them changes the exit code."""

import pytest

CHAT = ["ttft p95 < 500ms", "e2e p95 < 5s"]
CODE = ["ttft p95 < 200ms", "e2e p95 < 5s"]


def test_a_use_case_fits_where_all_its_bounds_pass(made):
    found = made(
        n=800, ttft_ms=300, scenario={"use_case": {"chat": CHAT, "code": CODE, "rare": ["ttft p99.9 < 2s"]}}
    )
    text = found.markdown.read_text()

    assert "The run fits chat; does not fit code; inconclusive for rare." in text
    ttft, e2e = (line for line in text.splitlines() if line.startswith("| code | "))
    assert ttft.startswith("| code | ttft p95 | 300 ms ")
    assert ttft.endswith(" 200 ms | FAIL |")
    assert e2e.endswith("| PASS |")
    assert "Fit by use case" in found.html.read_text()
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("share", "sentence"), [(10, "1 of 2 alerts fire: broken."), (0, "No alert fires (2 of 2 conclusive).")]
)
def test_an_alert_fires_where_its_bound_fails(made, share, sentence):
    ended = dict.fromkeys(range(60, 800, 100 // share), "stream_error") if share else {}
    alert = {"slow": "ttft p50 < 2s", "broken": "error_rate < 2%"}
    found = made(n=800, ended=ended, error={"status": 200}, scenario={"alert": alert})

    assert sentence in found.markdown.read_text()
    assert ("| fires |" in found.markdown.read_text()) == bool(share)
    assert found.data["use_cases"][0]["name"] == "slow"


def test_a_scenario_that_asks_for_neither_has_neither(made):
    found = made(n=100)

    assert found.data["use_cases"] == []
    for shown in (found.html.read_text(), found.markdown.read_text()):
        assert "Fit by use case" not in shown
        assert "Alerts" not in shown
