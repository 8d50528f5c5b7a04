"""The page: numbers stay in a line, nothing is repeated, the result comes before notes on the figures."""

from dataclasses import replace

import pytest
from analysis.report.test_model import SECTION, report_of

from tailgauge_analysis.report.page import html, keep_whole, prose_class, sticky_width
from tailgauge_analysis.text.section import Finding, Table


def whole(text):
    return f"<span class=whole>{text}</span>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p99 1,298 ms is late", f"p99 {whole('1,298 ms')} is late"),
        ("ttft < 800 ms", f"ttft {whole('&lt; 800 ms')}"),
        ("CI 1.53-99.03%", f"CI {whole('1.53-99.03%')}"),
        ("(95% CI 202 – ?)", f"(95% CI {whole('202 – ?')})"),
        ("2026-11-29, 16:55 UTC", f"{whole('2026-11-29')}, {whole('16:55 UTC')}"),
        ("12 requests and 3 <b>", "12 requests and 3 &lt;b&gt;"),
        ("add --set stages.duration_s=30 s", "add --set stages.duration_s=30 s"),
        ("20261129T165425Z-hedging-7762", "20261129T165425Z-hedging-7762"),
    ],
)
def test_no_line_breaks_within_a_number_with_its_unit_an_interval_or_a_date(text, expected):
    assert keep_whole(text) == expected


def test_what_is_kept_in_a_line_is_short_whatever_a_target_sends():
    shown = keep_whole("1," * 500 + " ms " + "7-" * 500)
    kept = [part.split("</span>")[0] for part in shown.split("<span class=whole>")[1:]]

    assert max(map(len, kept)) < 80


def test_the_details_of_a_result_come_before_notes_on_the_figures():
    section = replace(SECTION, findings=(Finding("Use p99 with care.", 1.0),))
    report = report_of(section)
    page = html(replace(report, result=replace(report.result, details=("36 requests got 429",))))

    assert page.index("36 requests got 429") < page.index("Use p99 with care.")


def test_a_verdict_that_a_note_states_is_not_repeated():
    report = report_of(SECTION)
    section = replace(SECTION, findings=(Finding(report.measurement.sentence, 1.0),))
    page = html(replace(report, sections=(section,)))

    assert page.count("measurement error") == 1
    assert "</b> see above</summary>" in page


def test_a_label_of_several_facts_or_plans_is_shown_once():
    section = replace(
        SECTION, facts=(("planned", "8 runs"), ("planned", "shorter"), ("took", "3 s"))
    )
    page = html(replace(report_of(section), dry_run=True, planned=("8 runs", "shorter")))

    assert page.count("<dt>planned</dt><dd>8 runs</dd><dd>shorter</dd><dt>took</dt>") == 1
    assert page.count("<b>Planned:</b>") == 1


def test_the_first_column_holds_its_longest_word():
    short, long, endless = (
        sticky_width(Table("", ("load", "n"), ((name, "1"),)))
        for name in ("2", "below_minimum", "R" * 100)
    )

    assert short < 60 < len("below_minimum") * 7.5 < long < endless < 140


def test_a_long_text_gets_a_wide_column_and_a_short_one_stays_in_a_line():
    assert [prose_class("x" * length) for length in (9, 60, 300)] == [
        "prose",
        "prose long",
        "prose very-long",
    ]
