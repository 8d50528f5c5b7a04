"""Other tools' formulas on rows whose answer is known by hand.

The expected figures are worked out below from the table alone, as the tools' own code does it, percentiles included.
"""

import json
import math
import re
from statistics import fmean
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from tailgauge.cli import options
from tailgauge.cli.main import cli
from tailgauge.errors import UsageError
from tailgauge_analysis.metrics.definitions import TOOLS
from tailgauge_analysis.report.report import make
from tailgauge_analysis.runs import load

pytestmark = pytest.mark.slow


def translated(folder, out):
    """Every number of every tool over one run, by the names of tool and number."""
    numbers = {}
    for name in TOOLS:
        tool = make([folder], out, tool=name).data["definitions"]
        numbers |= {(tool["tool"], row["name"]): row for row in tool["metrics"]}
    return numbers


def test_a_report_has_no_other_tool_unless_it_is_named(made):
    report = made(n=100)

    assert report.data["definitions"] is None
    assert "as vLLM bench defines" not in report.html.read_text() + report.markdown.read_text()


def test_without_an_answer_the_section_says_so(write, tmp_path):
    folder = write(n=100, ended=dict.fromkeys(range(100), "server_error"))
    report = make([folder], tmp_path, tool="vllm")

    assert report.data["definitions"]["metrics"] == []
    assert (
        "No streamed answer is complete: vLLM bench has no figures" in report.markdown.read_text()
    )


@pytest.mark.parametrize("name", TOOLS)
def test_every_difference_has_a_reason_and_stands_on_the_page(write, tmp_path, name):
    report = make([write(n=200)], tmp_path, tool=name)
    page = report.html.read_text()
    tool = TOOLS[name]
    _, begin, printed = report.summary.partition(f"As {tool.name} defines them, ")
    lines = printed.partition("\n\n")[0].splitlines()

    assert begin
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == list(tool.prints.values())
    for formula, line in zip(tool.formulas, lines[2:], strict=False):
        assert line.startswith(f"{formula.name} ({formula.unit})")
        assert len(line.removeprefix(formula.name).split()) == 1 + len(tool.prints)

    assert [f.name for f in tool.formulas if len(f.why) < 30 or f.name not in page] == []
    assert page.count(f"<h3>{tool.name} (") == 1
    assert page.count(f"A percentile is {tool.rule}.") == 1


@pytest.mark.parametrize("tool", ["vllm", "aiperf", "mlperf"])
def test_a_figure_of_few_samples_is_marked_in_the_terminal(write, tmp_path, tool):
    summary = make([write(n=60)], tmp_path, tool=tool).summary
    ttft = next(
        line
        for line in summary.splitlines()
        if re.match(r"(TTFT|Time to First Token|First Token)", line)
    )

    assert re.search(r"\d\*+( |$)", ttft)
    assert re.search(r"^\*+ ", summary, re.MULTILINE)
    assert "too few samples" in summary


def test_the_command_takes_the_tools_that_have_formulas(write, tmp_path):
    folder = write(n=100)
    done = CliRunner().invoke(
        cli, ["report", str(folder), "--out", str(tmp_path), "--as", "aiperf"]
    )
    (file,) = tmp_path.glob("reports/*/report.json")

    assert tuple(TOOLS) == options.TOOLS
    assert done.exit_code == 0
    assert json.loads(file.read_text())["definitions"]["tool"] == "AIPerf"


def test_python_takes_them_too(write, tmp_path):
    run = load(write(n=100))

    assert run.report(tmp_path, tool="mlperf").data["definitions"]["tool"] == "MLPerf LoadGen"
    with pytest.raises(UsageError, match="tool='k6': choose from vllm, aiperf"):
        run.report(tmp_path, tool="k6")


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
        for gap in [
            a.first - a.role,
            *(y - x for x, y in zip(a.contents, a.contents[1:], strict=False)),
        ]
    ],
    ("vLLM bench", "E2EL"): [a.last - a.sent for a in TABLE],
    ("AIPerf", "Time to First Token"): [a.first - a.sent for a in TABLE],
    ("AIPerf", "Time to First Output Token"): [a.text - a.sent for a in TABLE],
    ("AIPerf", "Time to Second Token"): [
        a.contents[1] - a.first for a in TABLE if len(a.kinds) > 1
    ],
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
    ("genai-bench", "Output Inference Speed"): [
        1000 * (a.tokens - 1) / (a.end - a.first) for a in PACED
    ],
    ("genai-bench", "End-to-End Latency"): [a.end - a.sent for a in TABLE],
}
BY_RANK = {
    ("MLPerf LoadGen", "First Token latency"): [a.first for a in TABLE],
    ("MLPerf LoadGen", "Time per Output Token"): [
        (a.last - a.first) / (a.tokens - 1) for a in PACED
    ],
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
    ("MLPerf LoadGen", "Completed tokens per second"): 1000
    * TOKENS
    / (LAST_DUE.due + LAST_DUE.last),
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
    return translated(run.write(tmp_path / "run"), tmp_path)


def test_every_figure_is_what_the_tool_would_have_said(of_table):
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

    assert of_table.keys() == expected.keys() | PER_S.keys()
    for key, (mean, quantiles) in expected.items():
        assert of_table[key]["mean"] == pytest.approx(mean), key
        assert list(of_table[key]["percentiles"].values()) == pytest.approx(quantiles), key
        counted = AS_NUMPY.get(key) or BY_RANK.get(key) or WEIGHTED[key]
        assert of_table[key]["n"] == len(counted), key
    for key in PER_S:
        assert (of_table[key]["percentiles"], of_table[key]["n"]) == (None, len(TABLE)), key
    assert {key: of_table[key]["mean"] for key in PER_S} == pytest.approx(PER_S)


def test_a_translated_table_carries_the_marks(mixed, tmp_path):
    """Half of the answers have tokens that were never streamed; the others alone would be too few for a p99."""
    run = mixed(duration_s=10)
    for i in range(80):
        tokens = 5 + (i % 2) * 45
        run.request(
            i * 100, [{"first": 100 + 10 * tokens, "kinds": "xxxxx", "output_tokens": tokens}]
        )
    folder = run.write(tmp_path / "run")
    made = make([folder], tmp_path, tool="aiperf")
    rows = {row["name"]: row for row in made.data["definitions"]["metrics"]}
    page = made.markdown.read_text()

    assert set(rows["Inter Token Latency"]["marks"].values()) == {"misleading"}
    assert rows["Request Latency"]["marks"]["p99"] == "too few samples"
    assert rows["Request Latency"]["our_percentiles"]["p99"] is None
    assert rows["Request Latency"]["percentiles"]["p99"] > 0
    line = next(line for line in page.splitlines() if line.startswith("| Inter Token Latency"))
    assert line.count("misleading") >= 3
