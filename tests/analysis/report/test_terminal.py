"""The answer in a terminal: nothing is wider than it, and colour is an addition."""

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from click import unstyle

from tailgauge.errors import Exit
from tailgauge_analysis.report.junit import junit
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.page import html
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.text.section import (
    COMPLETED,
    FAIL,
    INCONCLUSIVE,
    NO_ANSWER,
    PASS,
    Measurement,
    ObjectiveLine,
    Report,
    Result,
)

PAGE = Path("reports/x/report.html")
LINES = (
    ObjectiveLine("ttft p95 (chat)", FAIL, "1,298 ms", "> 800 ms", "1,136-1,647"),
    ObjectiveLine(
        "error_rate (a very long name of a traffic table)", PASS, "0.2%", "< 1%", "0.0-0.7%"
    ),
    ObjectiveLine(
        "tpot p99", INCONCLUSIVE, "", "< 20 ms", why="not enough requests: 108 of the 299 needed"
    ),
)
SUMMARY = (
    ("target", "52.3 requests/s offered, 52.2 completed, 2,601 tokens/s"),
    (
        "rate-limits",
        "1.4% of attempts got 429; requests/min binds; the first 429 came 31 s after the start of it",
    ),
    ("hedging", "5.1% of calls hedged"),
    ("hedging", "p99 -31% (CI -40 to -21)"),
)


def report(outcome=FAIL, verdict="VALID", reasons=(), objectives=LINES, **changes):
    result = Result(
        outcome, changes.get("sentence", "ttft p95 (chat) 1,298 ms > 800 ms (95% CI 1,136-1,647)"), objectives,
        ("not completed: 24 still open at the end (the first for 15 s)",), "lower the rate",
    )  # fmt: skip
    reason = reasons[0][0] if reasons else "measurement error at most 0.08 ms"
    measurement = Measurement(verdict, reason, reasons)
    return Report("id", "title", (), "", False, result, measurement, SUMMARY, (), Exit.FAILED)


def text(one, width=80):
    return terminal(one, PAGE, width)


def test_the_result_comes_first_and_the_measurement_last():
    assert text(report()).splitlines() == [
        "FAIL  ttft p95 (chat) 1,298 ms > 800 ms (95% CI 1,136-1,647)",
        "  not completed: 24 still open at the end (the first for 15 s)",
        "  ✓ error_rate (a very long name of a traffic table)  0.2%  < 1%  (CI 0.0-0.7%)",
        "  ? tpot p99  not enough requests: 108 of the 299 needed",
        "next      lower the rate",
        "target    52.3 requests/s offered, 52.2 completed, 2,601 tokens/s",
        "limits    1.4% of attempts got 429; requests/min binds; the first 429 came 31 s",
        "          after the start of it",
        "hedging   5.1% of calls hedged",
        "          p99 -31% (CI -40 to -21)",
        "measured  VALID (measurement error at most 0.08 ms)",
        "report    reports/x/report.html",
    ]


URL = "http://10.0.0.9:8000/v1"
OF_SIMULATED = "nothing was sent; the times are those of a simulated endpoint"


@pytest.mark.parametrize("outcome", [PASS, FAIL, INCONCLUSIVE, NO_ANSWER, COMPLETED])
@pytest.mark.parametrize("url", ["", URL], ids=["simulated", "another target"])
def test_a_dry_run_is_no_verdict_on_its_target(outcome, url):
    one = replace(report(outcome, sentence="a sentence"), dry_run=True, instead_of=url)
    lines = text(one).splitlines()
    first = (
        [f"DRY RUN  {OF_SIMULATED}, not of", f"  {URL}"] if url else [f"DRY RUN  {OF_SIMULATED}"]
    )
    page = html(one)

    assert lines[: len(first) + 1] == [*first, f"simulated {outcome}  a sentence"]
    assert not any(line.startswith("measured") for line in lines)
    assert markdown(one).splitlines()[2].startswith(f"**DRY RUN** {OF_SIMULATED}")
    assert f'<span class="outcome">DRY RUN</span> {OF_SIMULATED}' in page
    assert '<body class="idle">' in page
    assert 'name="tailgauge: title (dry run)"' in junit(one)
    assert one.result.outcome == outcome


def test_the_plan_of_an_experiment_comes_before_what_the_simulated_endpoint_did():
    planned = ("about 6 minutes, 12 runs", "shorter: --set experiment.minutes=N")
    one = replace(report(sentence="a sentence"), dry_run=True, planned=planned)

    assert text(one).splitlines()[1:4] == [
        "planned   about 6 minutes, 12 runs",
        "          shorter: --set experiment.minutes=N",
        "simulated FAIL  a sentence",
    ]
    assert all(line in both for line in planned for both in (html(one), markdown(one)))


def test_a_plan_that_exceeds_a_limit_is_the_result_of_its_dry_run():
    sentence = "the plan exceeds --max-cost: expected 4 USD, allowed 1"
    one = replace(report(sentence=sentence), dry_run=True, plan_fails=True, planned=("a minute",))

    assert text(one).splitlines()[:2] == [f"FAIL  {sentence}", "planned   a minute"]
    assert "simulated" not in text(one)
    assert f'<span class="outcome">FAIL</span> {sentence}' in html(one)
    assert markdown(one).splitlines()[2] == f"**FAIL** {sentence}"


def test_a_dry_run_that_is_invalid_says_so_first():
    one = replace(report(PASS, "INVALID", (("rows are lost", ""),)), dry_run=True)

    assert text(one).startswith("INVALID (dry run)  do not use these numbers")


def test_a_result_that_does_not_fit_into_a_line_is_broken_before_its_brackets():
    sentence = "only 27.1% of 1,234 requests completed (objective 99%, 95% CI 24.6-29.6%)"

    assert text(report(sentence=sentence), 78).splitlines()[:2] == [
        "FAIL  only 27.1% of 1,234 requests completed",
        "  (objective 99%, 95% CI 24.6-29.6%)",
    ]
    assert text(report(sentence=sentence), 79).splitlines()[0] == f"FAIL  {sentence}"


def test_an_invalid_run_says_why_and_has_its_result_in_brackets():
    reasons = tuple((f"Worker {i} was stalled for 9 of 27 s.", f"Advice {i}.") for i in range(5))

    assert text(report(verdict="INVALID", reasons=reasons)).splitlines() == [
        "INVALID  do not use these numbers",
        *(f"  Worker {i} was stalled for 9 of 27 s." for i in range(3)),
        "  and 2 more reasons: see the report",
        "next      Advice 0.",
        "result    (FAIL)  ttft p95 (chat) 1,298 ms > 800 ms (95% CI 1,136-1,647)",
        "report    reports/x/report.html",
    ]
    assert text(report(NO_ANSWER, "INVALID", reasons)).startswith("NO ANSWER  ")


def test_a_run_of_which_some_figures_can_be_used_shows_them():
    reason = (
        "Do not use TTFT since sent p99: the client may have moved it.",
        "Use 2 workers (--workers 2).",
    )
    whole = report(verdict="INVALID", reasons=(reason,))
    measurement = replace(whole.measurement, unusable="TTFT since sent p99")
    shown = text(replace(whole, measurement=measurement)).splitlines()

    assert shown[:4] == [
        "INVALID  some figures are the client's, not the target's",
        f"  {reason[0]}",
        f"next      {reason[1]}",
        "result    (FAIL)  ttft p95 (chat) 1,298 ms > 800 ms (95% CI 1,136-1,647)",
    ]
    assert "next      lower the rate" in shown
    assert "target    52.3 requests/s offered, 52.2 completed, 2,601 tokens/s" in shown


def test_a_degraded_measurement_says_why_in_its_line():
    shown = text(
        report(
            verdict="DEGRADED", reasons=(("The clock stepped.", ""), ("Requests were dropped.", ""))
        )
    )

    assert (
        "measured  DEGRADED: The clock stepped.\n          and 1 more reason: see the report"
        in shown
    )


def test_many_objectives_are_cut_and_counted():
    many = tuple(ObjectiveLine(f"ttft p{i}", PASS, f"{i} ms", "< 99 ms") for i in range(14))
    shown = text(report(PASS, objectives=many, sentence="14 of 14 objectives met"))

    assert shown.count("✓") == 10
    assert "  and 4 more objectives: see the report" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("outcome", [PASS, FAIL, INCONCLUSIVE, NO_ANSWER, COMPLETED])
@pytest.mark.parametrize("verdict", ["VALID", "DEGRADED", "INVALID"])
def test_no_line_is_wider_than_the_terminal(width, outcome, verdict):
    reasons = (
        ()
        if verdict == "VALID"
        else (("Worker 0 was stalled for 3 of 9 s, its loop blocked. " * 3, "More."),)
    )

    assert max(map(len, text(report(outcome, verdict, reasons), width).splitlines())) <= width


def test_colour_adds_nothing_but_colour():
    for outcome, code in (
        (PASS, "32"),
        (FAIL, "31"),
        (NO_ANSWER, "31"),
        (INCONCLUSIVE, "33"),
        (COMPLETED, "36"),
    ):
        shown = terminal(report(outcome), PAGE, 80, colours=True)
        assert shown.startswith(f"\x1b[{code}m\x1b[1m{outcome}\x1b[0m")
        assert unstyle(shown) == text(report(outcome))


def test_text_of_others_moves_no_cursor():
    evil = "\x1b[2J\u202e\rname\nnext"
    shown = text(
        report(sentence=evil, objectives=(LINES[0], ObjectiveLine(evil, PASS, evil, evil, evil)))
    )

    assert not {"\x1b", "\u202e", "\r"} & set(shown)
    assert "\nnext " in shown  # the label, once
    assert shown.count("\nnext") == 1


@pytest.mark.parametrize("width", range(30, 100))
def test_a_number_and_its_unit_stay_together(width):
    shown = text(
        report(
            PASS, sentence="ttft p95 took 1,298 ms, and 31 s after that 4 MiB were left of 12 GiB"
        ),
        width,
    )

    assert not any(
        line.split()[0] in {"ms", "s", "MiB", "GiB"} for line in shown.splitlines() if line.strip()
    )


LONG_COMMANDS = (
    ["tailgauge", "run", "a scenario of mine.toml", "--set", "traffic.chat.output_tokens=20", "--dry-run"],
    ["tailgauge", "run", "quickstart", *(part for n in range(9) for part in ("--set", f"target.headers.h{n}=it's"))],
    ["tailgauge", "run", "q", "--set", 'target.sse.body={model = "{model}", stop = "x --set y \\n", a = ""}' * 3, "-q"],
)  # fmt: skip


@pytest.mark.parametrize("typed", LONG_COMMANDS)
@pytest.mark.parametrize("place", ["advice", "details", "objectives"])
@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_long_command_is_broken_between_options_and_a_shell_reads_the_same_words(
    typed, place, width
):
    message = f"Try this: {shlex.join(typed)}"
    line = ObjectiveLine("calls are refused", FAIL, "", "", why=message)
    change = {"advice": message, "details": (message,), "objectives": (line,)}[place]
    plain = report()
    changed = replace(plain, result=replace(plain.result, **{place: change}))
    lines = text(changed, width).splitlines()
    is_first = [line.lstrip().startswith("tailgauge run") for line in lines]
    command = []
    for line in lines[is_first.index(True) :]:
        command.append(line)
        if not line.endswith("\\"):
            break
    script = "\n".join(command).strip().replace("tailgauge", "printf '%s\\0'", 1)
    read = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)

    assert read.stdout.split("\0")[:-1] == typed[1:]
    for line in command:
        is_one_option = len(shlex.split(line.removesuffix("\\"))) <= 3
        assert len(line) <= width or is_one_option
