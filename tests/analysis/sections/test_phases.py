"""Time breakdown: the server log, status events and Server-Timing, each separate and adding up."""

import json

import pytest
from run_folders.dry_runs import dry_run_of

from tailgauge_analysis.report.report import make
from tailgauge_analysis.sections.phases import (
    BEFORE,
    DECODE,
    DELIVERY,
    FIRST_TOOL,
    INSIDE,
    LAST_TOOL,
    NETWORK,
    PREFILL,
    QUEUE,
    parse,
)


def recorded(**entries):
    return json.dumps({name.replace("__", ";"): round(ms * 1e6) for name, ms in entries.items()})


def medians(parts):
    return {part["name"]: part["quantiles"][0]["value"] for part in parts}


@pytest.fixture
def reported(mixed, tmp_path):
    """100 answers, sent at 0: search at 10, write at 130, first content at 150, last at 230; Server-Timing db 40, rank 5."""
    run = mixed(duration_s=3)
    for i in range(100):
        phases = recorded(write=130, search=10, db__dur=40, rank__dur=5)
        run.request(
            i * 25, [{"sent": 0, "first": 150, "gap": 20, "kinds": "xxxxx", "phases": phases}]
        )
    run.request(
        2990,
        [{"sent": 0, "ended": "server_error", "phases": recorded(search=999)}],
        ended="server_error",
        winner=None,
    )
    return make([run.write(tmp_path / "run")], tmp_path)


def test_a_phase_lasts_until_the_next_and_all_add_up_to_the_answer(reported):
    parts = reported.data["phases"]["events"]

    assert medians(parts) == {BEFORE: 10, "search": 120, "write": 100}
    assert [part["share"] for part in parts] == pytest.approx([10 / 230, 120 / 230, 100 / 230])
    assert {part["n"] for part in parts} == {100}


def test_server_timing_is_a_duration_and_no_point_in_time(reported):
    parts = reported.data["phases"]["timings"]

    assert medians(parts) == {"db": 40, "rank": 5}
    assert [part["share"] for part in parts] == pytest.approx([40 / 150, 5 / 150])


@pytest.mark.slow
def test_both_tables_are_on_the_page_and_in_markdown(reported):
    page, text = reported.html.read_text(), reported.markdown.read_text()

    assert "The largest part of the time to the last content is: search (52.2%)." in page
    for title in ("Phases reported by the target", "Durations in Server-Timing"):
        assert title in page
    assert "| search | 52.2% | 120 (120 – 120) |" in text


@pytest.fixture
def tools(mixed, tmp_path):
    """100 answers with one tool call, ready 100 ms after sending, or with these attempts in turn."""

    def of(*attempts):
        run = mixed(duration_s=30)
        for number in range(100):
            attempt = attempts[number % len(attempts)]
            run.request(number * 200, [{"sent": 0, "first": 50, "kinds": "xxxxx", **attempt}])
        return make([run.write(tmp_path / "run")], tmp_path)

    return of


def test_the_first_and_the_last_tool_call_of_an_answer_have_their_times(tools):
    several = {"tool_ready": recorded(call_1=100, call_3=300, call_2=200)}
    single = {"tool_ready": recorded(call_1=120)}
    found = tools(several, single, {}).data["phases"]

    assert medians(found["tools"]) == {FIRST_TOOL: 100, LAST_TOOL: 300}
    assert (found["tool_calls"], found["tool_answers"]) == (34 * 3 + 33, 67)


def test_where_no_answer_has_several_tool_calls_there_is_one_row(tools):
    report = tools({"tool_ready": recorded(call_1=120)})

    assert medians(report.data["phases"]["tools"]) == {FIRST_TOOL: 120}
    assert "Tool calls ready" in report.markdown.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("text", ["not json", "[1]", "{}", '{"call": "soon"}', '{"call": null}'])
def test_times_of_tool_calls_that_cannot_be_read_are_none(tools, text):
    assert tools({"tool_ready": text}).data["phases"] is None


def test_server_tools_are_phases_of_their_own_and_counted(tools):
    """A search streams its own input before any text."""
    searched = {
        "server_tool_calls": 2,
        "phases": json.dumps({"server_tool:web_search": 10_000_000, "content": 40_000_000}),
    }
    report = tools(searched, {})
    section = next(one for one in report.report.sections if one.name == "phases")

    assert medians(report.data["phases"]["events"]) == {
        BEFORE: 10, "server_tool:web_search": 30, "content": 50,
    }  # fmt: skip
    assert section.facts == (("Calls of server tools", "100 in 50 of 100 answers"),)


@pytest.mark.slow
def test_without_an_engine_the_target_is_one_part(made):
    report = made(n=300)
    parts = report.data["phases"]["split"]

    assert medians(parts) == pytest.approx({NETWORK: 100, INSIDE: 99.95, DECODE: 190}, abs=0.2)
    assert sum(part["share"] for part in parts) == pytest.approx(1)


@pytest.mark.slow
def test_without_phases_there_is_no_section(made):
    report = made(n=200, server_log=False)

    assert report.data["phases"] is None
    assert "Time breakdown" not in report.html.read_text() + report.markdown.read_text()


@pytest.mark.parametrize(
    "text", ["", "[1]", '{"a": "b", "c": true, "d": null}', '{"a": 1e999}', "no json"]
)
def test_other_text_has_no_phases(text):
    assert parse(text) == ({}, {})


@pytest.mark.slow
def test_an_engine_reports_queue_prefill_and_decode(tmp_path):
    pairs = [
        ("target.url", "simulated"),
        ("simulated.profile", "haiku"),
        ("stages.duration_s", 20.0),
    ]
    report = make([dry_run_of("streaming", pairs, tmp_path)], tmp_path)
    parts = report.data["phases"]["split"]

    assert [part["name"] for part in parts] == [NETWORK, QUEUE, PREFILL, DELIVERY, DECODE]
    assert sum(part["share"] for part in parts) == pytest.approx(1)
    assert medians(parts)[NETWORK] == 0
