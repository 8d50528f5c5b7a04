"""A report of plain values on the page and in Markdown: everything of it is shown, once, and as text."""

import re
from dataclasses import replace

import pytest

from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html, is_wide
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.text.section import (
    FAIL,
    PASS,
    Finding,
    Measurement,
    ObjectiveLine,
    Report,
    Result,
    Section,
    Table,
    Value,
)

EVIL = "<script>alert(1)</script> | `a` ~~b~~"


def report_of(*sections, outcome=FAIL, verdict="VALID", text="13% of 28 requests completed"):
    objectives = (
        ObjectiveLine("ttft p95 (chat)", FAIL, "1,298 ms", "< 800 ms", "1,136 – 1,647", "too slow"),
        ObjectiveLine("error_rate", PASS, "0.2%", "< 1%"),
    )
    result = Result(outcome, text, objectives, ("24 requests were open",), "tailgauge run curve")
    reasons = (("Worker 1 was stalled", "Give it a core."),)
    measurement = Measurement(verdict, "measurement error < 0.1 ms", reasons, ("Closed loop.",))
    return Report(
        "run-1", "overload", ("http://10.0.0.9", "30 s"), "2026-11-22", False, result, measurement,
        (("cache", "87% of tokens read"),), sections, 1,
    )  # fmt: skip


SECTION = Section(
    "cache", "Prompt cache", "87% of tokens were read.", (("Tokens", "12 read"),),
    (Table("Misses", ("cause", "calls", "what to do"), (("expired", Value("12", "8 – 15", "few episodes", share=0.5), "raise the TTL"),), "Note.", (2,)),),
    (), ("By call.",), ("read / total",),
)  # fmt: skip


@pytest.mark.parametrize("render", [html, markdown])
def test_everything_of_a_report_is_shown(render):
    shown = (
        re.sub(r"</?span[^>]*>", "", render(report_of(SECTION)))
        .replace("\\", "")
        .replace("&lt;", "<")
    )

    for text in (
        "overload", "FAIL", "13% of 28 requests completed", "24 requests were open", "tailgauge run curve", "http://10.0.0.9",
        "VALID", "measurement error < 0.1 ms", "Worker 1 was stalled", "Give it a core.", "Closed loop.", "ttft p95 (chat)",
        "1,298 ms", "< 800 ms", "1,136 – 1,647", "too slow", "87% of tokens read", "Prompt cache", "87% of tokens were read.",
        "12 read", "Misses", "cause", "expired", "12", "8 – 15", "few episodes", "raise the TTL", "Note.", "By call.", "read / total",
    ):  # fmt: skip
        assert text in shown, text


@pytest.mark.parametrize(
    ("advice", "code"),
    [
        ("find it: tailgauge run 'a b.toml' --set x.y=1", "<span>tailgauge run &#39;a b.toml&#39;</span> <span>--set x.y=1</span>"),
        ('it says "tailgauge run \'x": look at its log', ""),
        (f"it says {EVIL}: tailgauge run a", "<span>tailgauge run a</span>"),
    ],
)  # fmt: skip
def test_a_command_of_an_advice_is_code_and_a_text_that_only_names_one_is_not(advice, code):
    report = report_of()
    report = replace(report, result=replace(report.result, advice=advice))
    page = html(report)

    assert ('<code class="command">' in page) == bool(code)
    assert code in page
    assert "<script>alert" not in page
    assert ("`tailgauge run" in markdown(report)) == bool(code)
    assert "next" in terminal(report, None, 80, colours=False)


def test_the_page_says_its_outcome_in_title_icon_and_colour():
    failed, passed = html(report_of()), html(report_of(outcome=PASS))

    assert "<title>FAIL · overload · Tailgauge</title>" in failed
    assert '<body class="bad">' in failed
    assert "<title>PASS · overload · Tailgauge</title>" in passed
    assert '<body class="good">' in passed
    icons = [re.search(r'rel="icon" href="(data:[^"]+)"', page)[1] for page in (failed, passed)]
    assert icons[0] != icons[1]


def test_the_result_of_an_invalid_run_is_struck_out_and_not_the_headline():
    report = report_of(outcome=PASS, verdict="INVALID")
    page, text = html(report), markdown(report)

    assert "<title>INVALID · overload" in page
    assert '<body class="bad">' in page
    assert "<s><b>PASS</b> 13% of 28 requests completed</s>" in page
    assert "~~**PASS** 13% of 28 requests completed~~" in text
    assert text.index("INVALID") < text.index("PASS")


def test_markdown_begins_with_a_summary_that_fits_a_comment():
    text, heading, _ = markdown(report_of(SECTION)).partition("\n## ")

    assert heading
    assert text.splitlines() == [
        "# overload",
        "",
        "**FAIL** 13% of 28 requests completed",
        "",
        "- 24 requests were open",
        "",
        "**Next:** `tailgauge run curve`",
        "",
        "http://10.0.0.9 · 30 s",
        "",
        "| outcome | objective | value | required | 95% interval | why |",
        "|---|---|---:|---:|---:|---|",
        "| FAIL | ttft p95 (chat) | 1,298 ms | < 800 ms | 1,136 – 1,647 | too slow |",
        "| PASS | error_rate | 0.2% | < 1% |  |  |",
        "",
        "- **cache** 87% of tokens read",
        "",
        "Measurement: **VALID** measurement error < 0.1 ms",
        "",
        "- Worker 1 was stalled Give it a core.",
        "",
        "Closed loop.",
    ]


@pytest.mark.parametrize("verdict", ["INVALID", "DEGRADED", "VALID"])
def test_markdown_states_each_reason_and_note_once(verdict):
    reason = "The client may have moved p95."
    cause = "worker 0 had an event loop 21 ms late"
    measurement = Measurement(
        verdict, reason, ((reason, f"Look at the cause: {cause}."), ("B.", "")), (cause, "Slow.")
    )
    remarks = (("steady", "Latency rises."), ("", "It rises."), ("steady", "Slow."))
    text = markdown(
        replace(report_of(), measurement=measurement, about=("here", ""), remarks=remarks)
    )

    assert [text.count(part) for part in (reason, cause, "B.", "Slow.")] == [1, 1, 1, 1]
    assert "- **steady** Latency rises. It rises. Slow.\n" in text
    assert "\nhere\n" in text


def test_a_finding_that_is_the_verdict_is_stated_once():
    finding = Finding("A cache answered.", 3.0)
    reason = (finding.text, "Clear it.")
    report = report_of(replace(SECTION, findings=(finding,)))
    first = markdown(replace(report, measurement=Measurement("DEGRADED", finding.text, (reason,))))
    reasons = (("Rows are lost.", ""), reason, (finding.text, ""))
    second = markdown(
        replace(report, measurement=Measurement("DEGRADED", "Rows are lost.", reasons))
    )

    assert [first.count(finding.text), second.count(finding.text)] == [1, 1]
    assert "Measurement: **DEGRADED** see the note above. Clear it." in first
    assert "Measurement: **DEGRADED** Rows are lost.\n\n- Clear it.\n\n" in second


def test_untrusted_text_stays_text():
    section = Section(
        EVIL,
        EVIL,
        EVIL,
        ((EVIL, EVIL),),
        (Table(EVIL, (EVIL,), ((Value(EVIL, EVIL, EVIL),),), EVIL),),
    )
    report = report_of(section, text=EVIL)

    assert "<script>alert" not in html(report)
    assert "<script" not in markdown(report)
    assert "\n~~" not in markdown(report)


def test_words_stand_left_and_numbers_right():
    text = markdown(report_of(SECTION))

    assert "| cause | calls | what to do |\n|---|---:|---|" in text


def test_a_wide_table_takes_the_whole_width_and_a_narrow_one_a_column():
    wide = Table(
        "Wide", tuple(f"column {i}" for i in range(12)), (tuple("1,234,567" for _ in range(12)),)
    )
    page = html(report_of(Section("a", "A", tables=(wide, SECTION.tables[0]))))

    assert [is_wide(table) for table in (wide, SECTION.tables[0])] == [True, False]
    assert page.index("Misses") < page.index("Wide")
