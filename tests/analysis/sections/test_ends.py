"""How answers ended: planted ends, and what the report, its first line and the exit code make of them."""

import pytest

from tailgauge.errors import Exit
from tailgauge_analysis.report.report import make
from tailgauge_analysis.text.section import FAIL, PASS

OK = {"first": 100, "stop_reason": "end_turn", "output_tokens": 20}
CUT = {"first": 100, "stop_reason": "max_tokens", "output_tokens": 2, "ended": "cut"}
REFUSED = {
    "first": 100,
    "kinds": "x",
    "stop_reason": "refusal",
    "output_tokens": 3,
    "ended": "refused",
    "stop_details": "cyber",
}
FILTERED = {"first": 100, "stop_reason": "content_filter", "ended": "filtered"}
ABORTED = {"first": 100, "stop_reason": "abort", "error_type": "abort", "ended": "aborted"}
UNNAMED = {"first": 100, "error_type": "no_finish_reason", "ended": "aborted"}
UNKNOWN = {**UNNAMED, "stop_reason": "paused", "error_type": "unknown_finish_reason"}
LIMITED = {"ended": "rate_limited", "status": 429}


@pytest.fixture
def report(folder_of, tmp_path):
    """The report of requests with these attempts, one every 100 ms; keywords change the scenario."""
    return lambda *attempts, **scenario: make([folder_of(*attempts, **scenario)], tmp_path)


def section_of(report, name):
    return next(section for section in report.report.sections if section.name == name)


def first_line(report):
    return report.summary.splitlines()[0]


def cells(table):
    return [tuple(getattr(cell, "text", cell) for cell in row) for row in table.rows]


# --- the first line and the exit code -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempt", "cause", "advice"),
    [
        (
            REFUSED,
            "50% of 20 requests were refused",
            "look at the prompts, the model and its content filter",
        ),
        (
            FILTERED,
            "50% of 20 requests were filtered",
            "look at the prompts, the model and its content filter",
        ),
        (ABORTED, "50% of 20 requests were aborted by the engine", "look at the engine's log"),
        (
            UNNAMED,
            "50% of 20 requests got an answer without a finish reason",
            "the answers end without a finish reason, SDK users get null: other answers name one",
        ),
        (
            UNKNOWN,
            "50% of 20 requests got an answer with an unknown finish reason ('paused')",
            "look up what the finish reason 'paused' means at this target",
        ),
    ],
)
def test_half_without_an_answer_fails_by_the_default_objective_and_is_named(
    report, attempt, cause, advice
):
    found = report(*[OK, attempt] * 10)

    assert found.report.result.sentence.startswith(f"{cause}: only 50.0% of 20 requests")
    assert found.report.result.outcome == FAIL
    assert found.exit_code == Exit.FAILED
    assert found.report.result.advice.startswith(advice)
    assert "headroom" not in found.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "line", "code"),
    [
        ([OK, OK, REFUSED, FILTERED] * 5, "FAIL  50% of 20 requests were refused or filtered: only 50.0% of 20", Exit.FAILED),
        # Other failures prevail where they are more.
        ([OK, REFUSED, LIMITED, LIMITED] * 5, "FAIL  only 25.0% of 20 requests completed", Exit.FAILED),
        # Too short to fail.
        ([OK] * 5 + [REFUSED], "COMPLETED  16.7% of 6 requests were refused: 5 of 6 requests completed, 1 failed", Exit.OK),
        ([REFUSED] * 20, "NO ANSWER  100% of 20 requests were refused: none of 20 requests completed", Exit.TARGET),
        # A cut answer is complete.
        ([OK] * 13 + [CUT] * 7, "COMPLETED  20 of 20 requests completed, 35% of them cut, 0 failed", Exit.OK),
    ],
)  # fmt: skip
def test_the_first_line_names_the_ends_that_decide(report, attempts, line, code):
    found = report(*attempts)

    assert first_line(found).startswith(line)
    assert found.exit_code == code
    assert "address" not in found.report.result.advice


def test_a_cut_answer_counts_in_latencies_and_its_section_says_so(report):
    found = report(*[OK, CUT] * 40)
    ttft = next(one for one in found.data["latency"] if one["metric"] == "ttft")

    assert (ttft["n"], ttft["percentiles"]["p50"]["value"]) == (80, 100)
    assert any(
        "50.0% of the complete answers were cut" in note
        for note in section_of(found, "latency").notes
    )


@pytest.mark.slow("attempt1", "attempt2")
@pytest.mark.parametrize("attempt", [REFUSED, FILTERED, ABORTED])
def test_a_fast_refusal_is_slower_than_any_answer(report, attempt):
    """A quarter of the requests got one: the p95 of all that was offered lies among them."""
    found = report(*[OK, OK, OK, attempt] * 30)
    rows = {(one["metric"], one["population"], one["since"]): one for one in found.data["latency"]}

    assert rows["ttft", "completed", "scheduled"]["n"] == 90
    assert rows["ttft", "offered", "scheduled"]["percentiles"]["p95"]["value_is"] == "failed"
    assert rows["e2e", "offered", "scheduled"]["percentiles"]["p50"]["value_is"] == "value"
    assert found.data["run"]["completed_per_s"] == pytest.approx(90 / 100)
    assert found.data["run"]["steady_ok"] == found.data["run"]["steady_complete"] == 90


@pytest.mark.slow
def test_the_errors_name_the_reason_of_an_answer_without_an_error(report):
    found = report(*[OK] * 20, *[REFUSED] * 3, *[UNNAMED] * 2)

    assert [(one["ended"], one["error_type"], one["attempts"]) for one in found.data["errors"]] == [
        ("refused", "refusal", 3), ("aborted", "no_finish_reason", 2),
    ]  # fmt: skip


@pytest.mark.slow
def test_several_objectives_that_are_met_do_not_hide_what_was_cut(report):
    slo = {"quick": "ttft p50 < 1000ms"}
    found = report(*[OK, CUT] * 40, slo=slo | {"errors": "error_rate < 0.2"})

    assert first_line(found) == "PASS  2 of 2 objectives met, 50% of the complete answers were cut"


# --- objectives ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "attempts", "outcome"),
    [
        ("answered > 90%", [OK, CUT], "FAIL"),
        ("answered > 90%", [OK, REFUSED], "FAIL"),
        ("answered > 40%", [OK], "PASS"),
        ("complete > 40%", [OK, CUT], "PASS"),
        ("complete > 90%", [OK, FILTERED], "FAIL"),
        ("refused < 10%", [OK, REFUSED, FILTERED, OK], "FAIL"),
        ("refused < 80%", [OK, REFUSED, FILTERED, OK], "PASS"),
        ("refused < 10%", [OK, CUT], "PASS"),
        ("cut < 10%", [OK, CUT], "FAIL"),
        ("cut < 90%", [OK, CUT], "PASS"),
        ("error_rate < 10%", [OK, CUT], "PASS"),
        ("error_rate < 10%", [OK, ABORTED], "FAIL"),
    ],
)
def test_an_objective_counts_the_ends_that_it_is_about(report, objective, attempts, outcome):
    found = report(*(attempts * 40)[:60], slo={"o": objective})
    line = next(
        line for line in found.report.result.objectives if line.name == objective.split()[0]
    )

    assert line.outcome == outcome
    assert [one["outcome"] for one in found.data["slo"]] == [outcome.lower()]
    in_junit = f'name="{line.name}"' in found.junit.read_text(encoding="utf-8")
    assert in_junit


@pytest.mark.slow
def test_an_overload_inside_a_200_is_in_the_share_of_overloads(report):
    inside = {
        "ended": "overloaded",
        "error_type": "overloaded_error",
        "error_class": "overloaded",
        "status": 200,
    }
    with_status = {"ended": "overloaded", "status": 529}
    found = report(*[OK, OK, inside, with_status] * 30, slo={"few": "529_rate < 10%"})

    assert [(one["value"], one["outcome"]) for one in found.data["slo"]] == [(0.5, "fail")]


@pytest.mark.slow
def test_an_objective_on_whole_answers_replaces_the_default_one_and_names_what_was_cut(report):
    found = report(*[OK, CUT] * 20, slo={"whole": "answered > 90%"})

    assert [line.name for line in found.report.result.objectives] == ["answered"]
    assert first_line(found).startswith(
        "FAIL  50% of the complete answers were cut: answered 50.0% < 90%"
    )
    assert "raise output_tokens" in found.report.result.advice


@pytest.mark.slow
def test_an_objective_on_refusals_leaves_the_default_one(report):
    found = report(*[OK, REFUSED] * 20, slo={"few": "refused < 80%"})

    assert {line.name: line.outcome for line in found.report.result.objectives} == {
        "complete": FAIL,
        "refused": PASS,
    }


@pytest.mark.slow("cut < 5%-attempt1")
@pytest.mark.parametrize(("objective", "attempt"), [("refused < 5%", REFUSED), ("cut < 5%", CUT)])
def test_an_objective_on_an_end_that_fails_says_what_to_do(report, objective, attempt):
    slo = {"o": objective, "few": "error_rate < 90%"}
    advice = report(*[OK, attempt] * 30, slo=slo).report.result.advice

    assert advice.startswith("look at the prompts" if attempt is REFUSED else "raise output_tokens")


@pytest.mark.slow
def test_the_advice_on_cut_answers_depends_on_how_they_should_end(report):
    natural = {"chat": {"ends": "natural", "output_tokens": 200}}
    found = report(*[OK, CUT] * 30, slo={"o": "cut < 5%"}, traffic=natural)

    assert (
        found.report.result.advice == "raise output_tokens, so that answers can end by themselves"
    )


# --- the section --------------------------------------------------------------------------------------------------


def test_a_healthy_run_has_one_sentence_and_no_line_in_the_terminal(report):
    found = report(*[OK] * 20)
    section = section_of(found, "ends")

    assert section.answer == "All 20 answers ended ok."
    assert (section.facts, section.notes, section.brief) == ((), (), ())
    assert cells(section.tables[0]) == [("end_turn", "ok", "20", "100%", "requested 200, got 20")]


def test_stop_reasons_have_class_share_and_tokens(report):
    found = report(*[OK] * 8, *[CUT] * 6, *[REFUSED] * 4, UNNAMED, LIMITED)
    section = section_of(found, "ends")

    assert section.answer == (
        "1 of 20 calls received no whole answer: rate-limited; "
        "42.1% of 19 answers ended ok, 31.6% were cut, 21.1% were refused, 5.3% named no finish reason."
    )
    assert cells(section.tables[0]) == [
        ("end_turn", "ok", "8", "42.1%", "requested 200, got 20"),
        ("max_tokens", "cut", "6", "31.6%", "requested 200, got 2"),
        ("refusal", "refused", "4", "21.1%", "requested 200, got 3"),
        ("none named", "aborted", "1", "5.3%", "–"),
    ]
    assert section.facts == (("Stop details", "cyber (4)"),)
    assert "How answers ended" in found.markdown.read_text(encoding="utf-8")
    assert "42.1% of 19 answers ended ok" in " ".join(found.summary.split())


@pytest.mark.slow("attempts1", "attempts2", "attempts3")
@pytest.mark.parametrize(
    ("attempts", "answer"),
    [
        ([UNNAMED] * 3, "All 3 answers named no finish reason."),
        ([UNKNOWN] * 3, "All 3 answers named an unknown finish reason."),
        ([ABORTED] * 3, "All 3 answers were aborted."),
        ([UNKNOWN, UNNAMED], "All 2 answers named no known finish reason."),
    ],
)
def test_aborted_answers_are_named_by_what_was_seen(report, attempts, answer):
    assert section_of(report(*attempts), "ends").answer == answer


def test_errors_inside_a_200_are_listed_by_class_and_place(report):
    before = {
        "ended": "overloaded",
        "error_type": "overloaded_error",
        "error_class": "overloaded",
        "status": 200,
    }
    after = {
        "ended": "stream_error", "first": 100, "error_type": "api_error", "error_class": "server_error", "status": 200,
    }  # fmt: skip
    with_status = {"ended": "overloaded", "error_type": "overloaded_error", "status": 529}
    section = section_of(report(*[OK] * 20, *[before] * 3, *[after] * 2, with_status), "ends")

    assert cells(section.tables[1]) == [
        ("overloaded_error", "overloaded", "overloaded", "3"),
        ("api_error", "server_error", "stream_error", "2"),
    ]
    assert [row[0].interval for row in section.tables[1].rows] == [
        "before content",
        "after content",
    ]


DONE = {**OK, "tolerated": "done_after_stop"}
HEADER = {**OK, "not_understood": "header x-foo-limit"}
MALFORMED = {**OK, "error_type": "malformed_usage"}
IN_NO_FIGURE = "they are in no figure of cache, cost, TPOT or tokens per second"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("attempts", "name", "text"),
    [
        (
            [OK] * 10 + [UNKNOWN] * 4 + [ABORTED] * 2 + [UNNAMED], "Unknown finish reasons",
            "'paused' (4): not in the table of vendors, so counted as aborted",
        ),
        (
            [{**OK, "tolerated": "done_after_stop,empty_data"}] * 3 + [DONE] * 7 + [OK] * 10, "Read as the SDK reads it",
            "[DONE] after message_stop: 10 of 20 answers; events with empty data: 3 of 20 answers",
        ),
        # A name that nobody knows stands for itself.
        ([{**OK, "tolerated": "something_new"}] * 20, "Read as the SDK reads it", "something_new: 20 of 20 answers"),
        (
            [{**OK, "not_understood": "header x-foo-limit, usage.foo_tokens"}] * 5 + [HEADER] * 5 + [OK] * 10, "Not understood",
            "header x-foo-limit: 10 of 20 responses; usage.foo_tokens: 5 of 20 responses",
        ),
        (
            [{**OK, "usage_marks": "input"}] * 12 + [OK] * 8, "Token counts not used",
            f"input counts beyond what was sent: 12 of 20 answers; {IN_NO_FIGURE}",
        ),
        (
            [{**OK, "usage_marks": "output"}] * 12 + [OK] * 8, "Token counts not used",
            f"output counts beyond what was requested: 12 of 20 answers; {IN_NO_FIGURE}",
        ),
        (
            [MALFORMED] * 12 + [OK] * 8, "Token counts not used",
            f"usage contradicts the request or the answer: 12 of 20 answers; {IN_NO_FIGURE}",
        ),
        (
            [{**MALFORMED, "error_body": "output_tokens = 0 beside content"}] * 12 + [OK] * 8, "Token counts not used",
            f"usage contradicts the request or the answer (output_tokens = 0 beside content): 12 of 20 answers; {IN_NO_FIGURE}",
        ),
    ],
)  # fmt: skip
def test_what_is_odd_in_answers_is_named_with_counts_and_leaves_the_run_valid(
    report, attempts, name, text
):
    found = report(*attempts)

    assert dict(section_of(found, "ends").facts) == {name: text}
    assert found.verdict == "VALID"


def test_texts_of_a_target_are_harmless(report):
    hostile = "<script>alert(1)</script>\x1b[31m\u202e" + "x" * 5000
    found = report(
        *[{**OK, "stop_reason": hostile, "stop_details": hostile, "tolerated": hostile}] * 20
    )
    page = found.html.read_text(encoding="utf-8")

    assert "<script>alert(1)" not in page
    assert "\x1b" not in found.summary + page
    assert "x" * 200 not in page


@pytest.mark.slow
def test_polls_of_a_job_are_no_answers(mixed, tmp_path):
    run = mixed()
    for number in range(20):
        poll = {"attempt": 1, "cause": "poll", "stop_reason": "succeeded", "status": 200}
        run.request(100 * number, [{**OK}, poll])
    found = make([run.write(tmp_path / "run")], tmp_path)

    assert found.data["ends"]["answers"] == 20
    assert [row["stop_reason"] for row in found.data["ends"]["stop_reasons"]] == ["end_turn"]
