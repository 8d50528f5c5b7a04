"""Other tools' formulas on rows whose answer is known by hand."""

import pytest

from tailgauge_analysis.metrics.definitions import TOOLS
from tailgauge_analysis.report.report import make


def restated(report):
    return {
        (tool["tool"], row["name"]): row for tool in report.data["definitions"] for row in tool["metrics"]
    }


@pytest.fixture
def by_tool(mixed, tmp_path):
    """120 requests due every 25 ms, sent 4 ms late: role event at 100 ms, 5 chunks of 2 tokens from 220 ms, 10 ms apart."""
    run = mixed(duration_s=3)
    for i in range(120):
        at = i * 25
        role = round((at + 100) * 1e6) + 81_234_567_890_123
        attempt = {
            "sent": 4,
            "first": 220,
            "gap": 10,
            "kinds": "xxxxx",
            "output_tokens": 10,
            "first_event_at_ns": role,
        }
        run.request(at, [attempt], ended="ok")
    run.request(2990, [{"sent": 4, "ended": "server_error"}], ended="server_error", winner=None)
    return restated(make([run.write(tmp_path / "run")], tmp_path))


def test_vllm_bench_ends_the_ttft_at_the_empty_role_event(by_tool):
    ttft, tpot, itl = (by_tool["vLLM bench", name] for name in ("TTFT", "TPOT", "ITL"))

    assert ttft["percentiles"]["p50"] == pytest.approx(96)
    assert ttft["our_percentiles"]["p50"] == pytest.approx(220)
    assert tpot["mean"] == pytest.approx((260 - 100) / 9)
    assert tpot["our_percentiles"]["p50"] == pytest.approx(40 / 9)
    assert (itl["n"], itl["mean"]) == (120 * 5, pytest.approx((120 + 4 * 10) / 5))


def test_aiperf_calls_our_tpot_itl_and_our_gaps_icl(by_tool):
    itl, icl = by_tool["AIPerf", "Inter Token Latency"], by_tool["AIPerf", "Inter Chunk Latency"]

    assert itl["mean"] == pytest.approx(40 / 9)
    assert itl["our_percentiles"]["p50"] == pytest.approx(itl["percentiles"]["p50"])
    assert (icl["n"], icl["mean"]) == (480, pytest.approx(10))
    assert by_tool["AIPerf", "Time to First Token"]["mean"] == pytest.approx(216)
    assert by_tool["AIPerf", "Output Token Throughput Per User"]["mean"] == pytest.approx(1000 * 9 / 40)


@pytest.mark.parametrize(
    ("tool", "name"), [("vLLM bench", "Output token throughput"), ("AIPerf", "Output Token Throughput")]
)
def test_throughput_runs_from_the_first_sending_to_the_last_content(by_tool, tool, name):
    row = by_tool[tool, name]

    assert row["mean"] == pytest.approx(1200 / ((119 * 25 + 260 - 4) / 1000))
    assert (row["percentiles"], row["n"]) == (None, 120)
    assert row["our_value"] == pytest.approx(400, rel=0.1)


def test_failures_are_in_neither(by_tool):
    assert {row["n"] for key, row in by_tool.items() if key[1] in {"TTFT", "E2EL", "Request Latency"}} == {
        120
    }


def test_without_an_answer_there_is_nothing_to_restate(made):
    report = made(n=100, ended=dict.fromkeys(range(100), "server_error"))

    assert report.data["definitions"] == []
    assert "Metrics as other tools define them" not in report.html.read_text() + report.markdown.read_text()


def test_every_difference_has_a_reason_and_stands_on_the_page(made):
    page = made(n=200).html.read_text()

    assert [f.name for tool in TOOLS for f in tool.formulas if len(f.why) < 30 or f.name not in page] == []
    assert page.count("<h3>vLLM bench (") == page.count("<h3>AIPerf (") == 1
