"""The pace of an answer against the pace that was planted: hidden, summarised and shown thinking, wrong counts."""

import numpy as np
import pandas as pd
import pytest
from run_folders.by_request import START_AT_NS
from run_folders.dry_runs import dry_run_report
from run_folders.loaded import LoadedRun
from run_folders.run_data import edited_run

from tailgauge_analysis.metrics.definitions import TOOLS, translate
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.pace import HIDDEN, REASONS, missing
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.metrics.throughput import Throughput
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.sections import objectives
from tailgauge_analysis.sections.streaming import streams

MS = 1e6
PACE_MS = 8.0


@pytest.fixture(scope="module")
def thinking_run(tmp_path_factory):
    """A dry run of answers of 200 tokens, 8 ms each, of which a share is thinking."""

    def run(share, display, protocol, pace_ms=PACE_MS, tokens=200):
        content = {"thinking_share": share, "thinking_display": display}
        tree = {
            "arrival": {"process": "constant", "rate_per_s": 20.0},
            "stages": {"duration_s": 10.0, "warmup_s": 0.0},
            "target": {"protocol": protocol},
            "simulated": {"ttft_ms": 300.0, "chunk_gap_ms": pace_ms, "content": content},
            "slo": {"pace": "tpot p95 < 6ms"},
            "traffic": {
                "main": {"prompt_tokens": 50, "output_tokens": tokens, "thinking": "adaptive"}
            },
        }
        return dry_run_report(tree, tmp_path_factory.mktemp("thinking")).report

    return run


def values(report, metric):
    rows = [row for row in report["latency"] if row["metric"] == metric and row["group"] == "all"]
    return [row["percentiles"][p]["value"] for row in rows for p in ("p50", "p95")]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
@pytest.mark.parametrize(
    ("share", "display"),
    [(0.4, "omitted"), (0.9, "omitted"), (0.98, "omitted"), (0.4, "summarised"), (0.9, "summarised"), (0.4, "shown")],
)  # fmt: skip
def test_thinking_does_not_make_an_answer_look_faster(thinking_run, share, display, protocol):
    report = thinking_run(share, display, protocol)

    found = values(report, "tpot")
    assert found == pytest.approx([PACE_MS] * len(found), rel=0.01)
    assert len(found) >= 2
    assert [slo["outcome"] for slo in report["slo"]] == ["fail"]


@pytest.mark.slow
def test_thinking_of_any_share_and_pace(thinking_run, sampling):
    """The pace within 1%, or none and a reason, for answers drawn at random."""
    runs, rng = sampling(3, 3, 40)
    for _ in range(runs):
        share, pace_ms, tokens = (
            rng.uniform(0, 1),
            float(rng.uniform(2, 60)),
            int(rng.integers(20, 400)),
        )
        display, protocol = (
            rng.choice(["omitted", "summarised", "shown"]),
            rng.choice(["anthropic", "openai"]),
        )
        report = thinking_run(share, str(display), str(protocol), pace_ms, tokens)
        found = values(report, "tpot")

        drawn = (share, display, protocol, pace_ms, tokens)
        assert found == pytest.approx([pace_ms] * len(found), rel=0.01), drawn
        if not found:
            assert report["tpot_missing"]["answers"] or round(tokens * share) > tokens - 2, drawn


# --- each reason ------------------------------------------------------------------------------------------------

ANSWERS = {  # an attempt whose chunks come every 10 ms, its TPOT, or why it has none
    "plain": ({"kinds": "xxxxxx"}, 10.0),
    "a chunk for each token, the thinking not counted": ({"kinds": "tttxxx"}, 10.0),
    "thinking shown in chunks of 4 tokens": ({"kinds": "tttxxx", "output_tokens": 24, "thinking_tokens": 12}, 20 / 11),
    "thinking summarised": ({"kinds": "ttxxxxx", "output_tokens": 55, "thinking_tokens": 50}, 10.0),
    "thinking hidden": ({"kinds": "xxxxx", "output_tokens": 55, "thinking_tokens": 50}, 10.0),
    "hidden before a tool's input": ({"kinds": "jjxxx", "output_tokens": 55, "thinking_tokens": 50}, 10.0),
    "no thinking, and it says so": ({"kinds": "xxxxx", "thinking_tokens": 0}, 10.0),
    "asked for thinking, did not think": ({"kinds": "xxxxx", "traffic": "thinks"}, 10.0),
    "asked for thinking, nothing reported": ({"kinds": "xxxxx", "output_tokens": 40, "traffic": "thinks"}, "thinking"),
    "thinking without a count": ({"kinds": "ttxxxxx", "output_tokens": 55}, "thinking"),
    "thinking between texts": ({"kinds": "xxtxx", "output_tokens": 24, "thinking_tokens": 20}, "interleaved"),
    "thinking between texts, a chunk for each token": ({"kinds": "xxtxx", "thinking_tokens": 1}, 10.0),
    "nothing but thinking": ({"kinds": "ttt", "output_tokens": 40, "thinking_tokens": 40}, None),
    "thinking shown and counted as none": ({"kinds": "ttxxxxx", "output_tokens": 55, "thinking_tokens": 0}, "thinking"),
    "hidden and never reported": ({"kinds": "xxxxx", "output_tokens": 100}, "not_streamed"),
    "no counts": ({"kinds": "xxxxx", "output_tokens": None}, "no_usage"),
    "counts that cannot be": ({"kinds": "xxxxx", "output_tokens": None, "error_type": "malformed_usage"}, "malformed_usage"),
    "counts beyond the request": ({"kinds": "xxxxx", "output_tokens": 9000, "usage_marks": "output"}, "beyond_request"),
    "input counts beyond what was sent": ({"kinds": "xxxxx", "usage_marks": "input"}, 10.0),
    "in one chunk": ({"kinds": "x", "output_tokens": 12}, "at_once"),
    "one token": ({"kinds": "x"}, None),
    "held back": ({"kinds": "x" * 12, "gap": 0.01}, "buffered"),
    "short after a long wait": ({"kinds": "x" * 12, "first": 60_000}, 10.0),
    "held back by the client": ({"kinds": "x" * 12, "gap": 0.01, "first_content_low_at_ns": START_AT_NS}, "read_late"),
    "not streamed": ({"kinds": "x", "output_tokens": 12, "streamed": False}, None),
}  # fmt: skip


@pytest.fixture
def planted(mixed, tmp_path):
    """A stage of these answers, of which a traffic table may ask for thinking."""

    def stage(answers, name="run", **scenario):
        run = mixed(duration_s=100.0)
        for i, answer in enumerate(answers):
            traffic = answer.get("traffic", "chat")
            attempt = {key: value for key, value in answer.items() if key != "traffic"}
            run.request(i * 300, [{"first": 100, **attempt}], traffic=traffic)
        folder = run.write(tmp_path / name)
        with edited_run(folder) as record:
            record["scenario"]["traffic"] = {"chat": {}, "thinks": {"thinking": "adaptive"}}
            record["scenario"] |= scenario
        return load([folder])

    return stage


def test_every_answer_has_its_pace_or_a_reason(planted):
    found = steady(planted([answer for answer, _ in ANSWERS.values()]))
    tpot, reasons = BY_NAME["tpot"].ns(found) / MS, found.requests["pace_missing"]
    seen = dict(zip(ANSWERS, zip(tpot, reasons, strict=True), strict=True))

    for name, (value, reason) in seen.items():
        expected = ANSWERS[name][1]
        assert (None if pd.isna(reason) else reason) == (
            expected if isinstance(expected, str) else None
        ), name
        assert value == pytest.approx(
            expected if isinstance(expected, float) else np.nan, nan_ok=True
        ), name
    assert set(REASONS) - {HIDDEN} == set(reasons.dropna())


def test_what_a_body_lacks_is_named_only_where_a_task_may_have_left_it_out(planted):
    silent = steady(planted([{"kinds": "xxxxx", "output_tokens": None}] * 3)).requests
    counted = steady(planted([{"kinds": "xxxxx"}] * 3, "counted")).requests
    hint = '"stream_options": {"include_usage": true}'

    assert hint in missing(silent, has_usage_option=False)["sentence"]
    assert hint not in missing(silent)["sentence"]
    assert missing(counted, has_usage_option=False)["sentence"] == ""


@pytest.mark.slow
def test_what_hangs_on_the_pace_is_of_the_same_span(planted):
    """Summarised thinking of 100 of 160 tokens, a token every 150 ms, a silent minute before the text of which is no stall."""
    answer = {"kinds": "t" + "x" * 60, "gap": 150, "output_tokens": 160, "thinking_tokens": 100}
    frames = planted([answer] * 40)
    for row in range(40):  # the silence lies between the thinking and the text
        frames.chunks.arrived_at_ns[61 * row] -= 60_000 * int(MS)
    stage = steady(frames)
    flow = streams(stage)

    assert flow.tokens_per_chunk_p50 == 1.0
    assert flow.user_tokens_per_s_p50 == pytest.approx(1000 / 150)
    assert BY_NAME["tpot_c"].ns(stage) / MS == pytest.approx(150)
    assert flow.stalls == 0
    reasons = {
        metric.name: metric.why
        for tool in TOOLS
        for metric in translate(tool, stage, [], Throughput()).metrics
        if "Misleading here for 40 of 40 answers" in metric.why
    }
    assert set(reasons) == {
        "TPOT", "ITL", "Inter Token Latency", "Time per Output Token", "Output Token Throughput Per User", "Output Inference Speed",
    }  # fmt: skip


@pytest.mark.slow
def test_no_objective_is_built_on_counts_that_cannot_be(planted):
    """100,000 tokens for 10 requested passed an objective on TPOT; with half of the counts gone nothing is known either."""
    slo = {"pace": "tpot p90 < 30ms"}
    wrong = {"kinds": "xxxxx", "output_tokens": None, "error_type": "malformed_usage"}
    good = {"kinds": "xxxxx"}
    for share, outcome in ((1.0, "inconclusive"), (0.5, "inconclusive"), (0.01, "pass")):
        answers = [wrong if i < share * 200 else good for i in range(200)]
        run = LoadedRun(planted(answers, str(share), slo=slo))
        found = run.result(objectives.compute)

        assert [one.outcome for one in found.slo] == [outcome]
        assert ("impossible token counts" in found.slo[0].why) == (outcome != "pass")
        assert (found.goodput is None) == (outcome != "pass")
        rate = run.evidence.throughput.output_tokens_per_s
        assert rate == (None if share == 1.0 else pytest.approx(5 * 200 / 100, rel=0.05))
