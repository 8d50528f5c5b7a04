"""Tools, thinking, structured output and turns: what each section says of rows, and that it is silent without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder
from run_folders.loaded import LoadedRun

from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.build import build
from tailgauge_analysis.sections.answers import structured, thinking, tools, turns

MODULES = {"structured": structured, "tools": tools, "thinking": thinking, "turns": turns}
TRAFFIC = {
    "plain": {"prompt_tokens": 50, "output_tokens": 20},
    "agent": {"prompt_tokens": 50, "output_tokens": 60, "tools": 2},
    "thinks": {"prompt_tokens": 50, "output_tokens": 20, "thinking": "adaptive"},
    "talks": {
        "prompt_tokens": 50,
        "output_tokens": 20,
        "session": {"turns_mean": 4, "think_s": 0.5},
    },
}


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    tree = {
        "name": "answers",
        "seed": 5,
        "target": {"url": "simulated", "protocol": "anthropic"},
        "arrival": {"rate_per_s": 20.0},
        "stages": {"warmup_s": 0.5, "duration_s": 12.0},
        "traffic": TRAFFIC,
        "simulated": {
            "ttft_ms": 50,
            "ttft_sigma": 0.3,
            "chunk_gap_ms": 5,
            "content": {"tool_share": 0.6, "thinking_share": 0.4},
        },
    }
    return load([dry_run_folder(tree, tmp_path_factory.mktemp("answers"))])


def only(frames, *names):
    attempts = frames.attempts[frames.attempts["traffic"].isin(names)]
    requests = frames.requests[frames.requests["traffic"].isin(names)]
    return replace(frames, attempts=attempts, requests=requests)


def found(frames, name):
    module = MODULES[name]
    return module.section(module.compute(LoadedRun(frames)))


@pytest.mark.parametrize("name", MODULES)
def test_traffic_of_another_kind_has_no_section(frames, name):
    assert found(only(frames, "plain"), name) is None


def test_tools_are_counted_in_the_traffic_that_offers_them(frames):
    one = tools.compute(LoadedRun(frames))
    section = tools.section(one)

    assert one.calls.n == (frames.requests["traffic"] == "agent").sum() - _outside(frames, "agent")
    assert one.calls.value == 1
    assert one.first_argument[0].value < one.ready[0].value
    assert section.card.value.text == "100%"
    assert section.card.lines[0].startswith("first argument p50 ")
    silent = frames.attempts.assign(first_tool_json_at_ns=np.nan, tool_ready_at_ns=np.nan)
    none = found(replace(frames, attempts=silent), "tools")
    assert none.card.value.text == "0%"
    assert (none.card.lines, none.tables, none.figures) == ((), (), ())


def _outside(frames, name):
    requests = frames.requests[frames.requests["traffic"] == name]
    return int((requests["stage"] != "steady").sum())


def test_thinking_comes_before_the_text_and_is_a_share_of_the_tokens(frames):
    one = thinking.compute(LoadedRun(only(frames, "thinks")))
    section = thinking.section(one)
    attempts = only(frames, "thinks").attempts
    steady = attempts[attempts["stage"] == "steady"]

    assert one.answers.value == 1
    assert one.first_thinking[0].value < one.first_text[0].value
    whole = steady["thinking_tokens"].sum() / steady["output_tokens"].sum()
    assert one.tokens.value == pytest.approx(whole)
    assert section.card.detail == "median time to the first text"
    hidden = only(frames, "thinks").attempts.assign(first_thinking_at_ns=np.nan)
    card = found(replace(only(frames, "thinks"), attempts=hidden), "thinking").card
    assert "of output tokens are thinking" in card.lines[0]


def test_turns_have_a_row_each_and_the_later_ones_are_compared_with_the_first(frames):
    one = turns.compute(LoadedRun(frames))
    section = turns.section(one)

    assert [turn.turn for turn in one.turns][:4] == [1, 2, 3, 4]
    assert [row[0] for row in section.tables[0].rows][:2] == ["turn 1", "turn 2"]
    assert section.card.value.text == f"{one.later_over_first.value:.3g}x"
    slow = only(frames, "talks").attempts
    is_later = slow["request_id"] % 65536 > 0
    slow = slow.assign(
        first_content_at_ns=slow["first_content_at_ns"] + 1e9 * is_later,
        first_text_at_ns=slow["first_text_at_ns"] + 1e9 * is_later,
    )
    later = turns.compute(LoadedRun(replace(only(frames, "talks"), attempts=slow))).later_over_first
    assert later.low > 5


@pytest.mark.parametrize(("broken", "text", "tone"), [(0, "100%", ""), (3, "", "warn")])
def test_the_share_of_valid_json_is_of_the_answers_with_a_schema(frames, broken, text, tone):
    rows = only(frames, "plain")
    valid = np.where(np.arange(len(rows.attempts)) % 10 < broken, 0.0, 1.0)
    one = structured.compute(
        LoadedRun(replace(rows, attempts=rows.attempts.assign(valid_json=valid)))
    )
    section = structured.section(one)

    assert one.valid.n == (rows.attempts["stage"] == "steady").sum()
    assert one.valid.value == pytest.approx(1 - broken / 10, abs=0.05)
    assert section.answer.endswith("answers are valid JSON.")
    assert section.card.tone == tone
    assert text in section.card.value.text


@pytest.mark.slow
def test_the_report_has_a_card_for_each_pattern_and_none_for_the_others(frames):
    report = build(LoadedRun(frames))

    assert [card.label for card in report.cards] == ["tools", "thinking", "turns"]
    assert [card["label"] for card in report.data["cards"]] == ["tools", "thinking", "turns"]
