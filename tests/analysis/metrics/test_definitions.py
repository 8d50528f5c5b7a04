"""Other tools' formulas on rows whose answer is known by hand.

The expected figures are worked out below from the table alone, as the tools' own code does it, percentiles included.
"""

import math
from statistics import fmean
from typing import NamedTuple

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
    assert [page.count(f"<h3>{tool.name} (") for tool in TOOLS] == [1] * len(TOOLS)
    assert [page.count(f"{tool.name}: a percentile is ") for tool in TOOLS] == [1] * len(TOOLS)


class Answer(NamedTuple):
    """One answer, ms since it was due: sent, role event, contents, end of the stream; its output tokens."""

    due: float
    sent: float
    role: float
    first: float
    gap: float
    kinds: str
    end: float
    tokens: int

    @property
    def contents(self) -> list[float]:
        return [self.first + i * self.gap for i in range(len(self.kinds))]

    @property
    def last(self) -> float:
        return self.contents[-1]

    @property
    def text(self) -> float:
        return self.contents[self.kinds.index("x")]


TABLE = (
    Answer(0, 2, 50, 120, 10, "xxxxx", 185, 9),
    Answer(400, 5, 80, 300, 20, "xxxxxxxxxxx", 640, 21),
    Answer(900, 1, 30, 60, 5, "xxx", 71, 3),
    Answer(1500, 10, 200, 900, 1500, "xx", 2405, 2),  # over after all others
    Answer(2000, 3, 40, 90, 10, "x", 90.5, 1),  # one token has no pace
    Answer(2500, 2, 45, 150, 20, "ttxx", 230, 12),
)


def interpolated(values: list[float], p: float) -> float:
    """numpy.percentile's default."""
    values, at = sorted(values), p * (len(values) - 1)
    low = math.floor(at)
    return values[low] + (at - low) * (values[min(low + 1, len(values) - 1)] - values[low])


def ranked(values: list[float], p: float) -> float:
    """results.cc: sample_latencies[sample_count * percentile]."""
    return sorted(values)[int(len(values) * p)]


def cumulated(pairs: list[tuple[float, int]], p: float) -> float:
    """statistics.py: the first value at which the cumulated probability is p; here by writing each value out."""
    values = sorted(value for value, weight in pairs for _ in range(weight))
    return values[math.ceil(len(values) * p) - 1]


PACED = [a for a in TABLE if a.tokens > 1]
SENT = min(a.due + a.sent for a in TABLE)
OVER = max(a.due + a.last for a in TABLE)
TOKENS = sum(a.tokens for a in TABLE)
LAST_DUE = max(TABLE)
AS_NUMPY = {
    ("vLLM bench", "TTFT"): [a.role - a.sent for a in TABLE],
    ("vLLM bench", "TPOT"): [(a.last - a.role) / (a.tokens - 1) for a in PACED],
    ("vLLM bench", "ITL"): [
        gap
        for a in TABLE
        for gap in [a.first - a.role, *(y - x for x, y in zip(a.contents, a.contents[1:], strict=False))]
    ],
    ("vLLM bench", "E2EL"): [a.last - a.sent for a in TABLE],
    ("AIPerf", "Time to First Token"): [a.first - a.sent for a in TABLE],
    ("AIPerf", "Time to First Output Token"): [a.text - a.sent for a in TABLE],
    ("AIPerf", "Time to Second Token"): [a.contents[1] - a.first for a in TABLE if len(a.kinds) > 1],
    ("AIPerf", "Inter Token Latency"): [(a.last - a.first) / (a.tokens - 1) for a in PACED],
    ("AIPerf", "Inter Chunk Latency"): [
        y - x for a in TABLE for x, y in zip(a.contents, a.contents[1:], strict=False)
    ],
    ("AIPerf", "Request Latency"): [a.last - a.sent for a in TABLE],
    ("AIPerf", "Output Token Throughput Per User"): [
        1000 * (a.tokens - 1) / (a.last - a.first) for a in PACED
    ],
    ("genai-bench", "TTFT"): [a.first - a.sent for a in TABLE],
    ("genai-bench", "TPOT"): [(a.end - a.first) / (a.tokens - 1) for a in PACED],
    ("genai-bench", "Output Inference Speed"): [1000 * (a.tokens - 1) / (a.end - a.first) for a in PACED],
    ("genai-bench", "End-to-End Latency"): [a.end - a.sent for a in TABLE],
}
BY_RANK = {
    ("MLPerf LoadGen", "First Token latency"): [a.first for a in TABLE],
    ("MLPerf LoadGen", "Time per Output Token"): [(a.last - a.first) / (a.tokens - 1) for a in PACED],
    ("MLPerf LoadGen", "Latency"): [a.last for a in TABLE],
}
WEIGHTED = {
    ("GuideLLM", "TTFT"): [(a.first - a.sent, 1) for a in TABLE],
    ("GuideLLM", "TTFOT"): [(a.text - a.sent, 1) for a in TABLE],
    ("GuideLLM", "TPOT"): [((a.last - a.sent) / a.tokens, a.tokens) for a in TABLE],
    ("GuideLLM", "ITL"): [((a.last - a.first) / (a.tokens - 1), a.tokens - 1) for a in PACED],
    ("GuideLLM", "Request Latency"): [(a.end - a.sent, 1) for a in TABLE],
}
PER_S = {
    **dict.fromkeys(
        [
            ("vLLM bench", "Output token throughput"),
            ("AIPerf", "Output Token Throughput"),
            ("GuideLLM", "Output Tokens Per Second (mean)"),
            ("genai-bench", "Mean Output Throughput"),
        ],
        1000 * TOKENS / (OVER - SENT),
    ),
    **dict.fromkeys(
        [
            ("vLLM bench", "Request throughput"),
            ("AIPerf", "Request Throughput"),
            ("GuideLLM", "Requests Per Second (mean)"),
            ("genai-bench", "Requests Per Second"),
        ],
        1000 * len(TABLE) / (OVER - SENT),
    ),
    ("MLPerf LoadGen", "Completed tokens per second"): 1000 * TOKENS / (LAST_DUE.due + LAST_DUE.last),
    ("MLPerf LoadGen", "Completed samples per second"): 1000
    * (len(TABLE) - 1)
    / (LAST_DUE.due + LAST_DUE.last),
}


@pytest.fixture
def of_table(mixed, tmp_path):
    """The table as rows, and a failure beside it."""
    run = mixed(duration_s=5)
    for a in TABLE:
        attempt = {
            "sent": a.sent, "first": a.first, "gap": a.gap, "kinds": a.kinds, "end": a.end,
            "output_tokens": a.tokens, "first_event_at_ns": round((a.due + a.role) * 1e6) + 81_234_567_890_123,
        }  # fmt: skip
        run.request(a.due, [attempt], ended="ok")
    run.request(2600, [{"sent": 4, "ended": "server_error"}], ended="server_error", winner=None)
    return restated(make([run.write(tmp_path / "run")], tmp_path))


def test_every_figure_is_what_the_tool_would_have_said(of_table):
    computed = {key: row for key, row in of_table.items() if row["n"]}
    expected = {
        **{key: (fmean(v), [interpolated(v, p) for p in (0.5, 0.9, 0.95, 0.99)]) for key, v in AS_NUMPY.items()},
        **{key: (fmean(v), [ranked(v, p) for p in (0.5, 0.9, 0.95, 0.99)]) for key, v in BY_RANK.items()},
        **{
            key: (
                sum(value * weight for value, weight in v) / sum(weight for _, weight in v),
                [cumulated(v, p) for p in (0.5, 0.9, 0.95, 0.99)],
            )
            for key, v in WEIGHTED.items()
        },
    }  # fmt: skip

    assert computed.keys() == expected.keys() | PER_S.keys()
    for key, (mean, quantiles) in expected.items():
        assert computed[key]["mean"] == pytest.approx(mean), key
        assert list(computed[key]["percentiles"].values()) == pytest.approx(quantiles), key
    assert {key: computed[key]["mean"] for key in PER_S} == pytest.approx(PER_S)


def test_what_the_rows_do_not_have_says_so(of_table):
    unknown = {key: row for key, row in of_table.items() if not row["n"]}

    assert {tool for tool, _ in unknown} == {"vLLM /metrics", "AIPerf"}
    assert len(unknown) == 5
    assert all(row["why"].startswith("Not computable from the rows: ") for row in unknown.values())
    assert {(row["mean"], row["percentiles"]) for row in unknown.values()} == {(None, None)}
    histogram = unknown["vLLM /metrics", "vllm:request_time_per_output_token_seconds"]
    assert "26.1" in histogram["why"]
    assert histogram["our_percentiles"]["p50"] is not None
