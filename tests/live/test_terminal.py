"""What a terminal shows during a run: the lines at many widths, and the cells of a terminal of 80 columns."""

from __future__ import annotations

import errno
import io
import logging
import sys

import pytest
from live.counters import objective, progress
from starting.programs import scripts_path
from starting.terminal import Screen, run_in_terminal

from tailgauge.cli.run import settings_of
from tailgauge.live.terminal import NARROW, Display, lines, plan_lines
from tailgauge.master.objectives import IN_REPORT, MET, MISSED, TOO_FEW
from tailgauge.master.progress import Progress
from tailgauge.plan.resolve import resolve
from tailgauge.scenario.model import override

EARLY = progress(0.0, 30)
HEALTHY = progress(
    18.2, 30, sent=938, in_flight=34, ttft_ms=[201.4] * 290 + [352.0] * 30, requests={"ok": 904}
)
BUSY = progress(
    5400.5, 9000, sent=1_234_567, in_flight=12_345, dropped=4_321,
    requests={"ok": 900_000, "timeout": 98_765, "rate_limited": 1_234}, attempts={"ok": 900_000, "rate_limited": 345_678},
    ttft_ms=[201.4] * 290 + [1234.6] * 30, verdict="INVALID",
    reason="23,456 of 1,234,567 requests dropped at the in-flight cap; worker 3 is at 97% of its core",
)  # fmt: skip
SHOW = """
import sys
from live.test_terminal import BUSY, HEALTHY
from tailgauge.live.terminal import Display
import logging

logging.basicConfig(stream=sys.stderr)
display = Display()
display.print_line("expected: 1,566 requests, 313,200 input and up to 78,300 output tokens")
for state in (HEALTHY, BUSY, BUSY):
    display.show(state)
display.print_line("note: " + "worker 1 was lost 3 s into the run, and nobody knows why that is so " * 3)
logging.warning("something that a library has to say")
display.show(BUSY, phase="draining")
display.conclude(BUSY)
print("FAIL")
"""


class Terminal(io.StringIO):
    """A stream that says it is a terminal; its width is not known."""

    def isatty(self) -> bool:
        return True


def texts(state: Progress, width: int, phase: str = "") -> list[str]:
    return ["".join(text for text, _ in line) for line in lines(state, 2590.0, phase, width)]


@pytest.mark.parametrize(
    ("scenario", "sets", "end"),
    [
        ("quickstart", ["stages.duration_s=15"], " 50 requests/s for 15s, 13.5 s measured"),
        ("quickstart", ["stages={duration_s = 15, warmup_s = 0}"], " 50 requests/s for 15s"),
        ("closed", ["stages={duration_s = 20, warmup_s = 4, cooldown_s = 1}"], " 12 users for 20s, 15 s measured"),
    ],
)  # fmt: skip
def test_the_plan_says_how_much_of_the_run_counts(tmp_path, scenario, sets, end):
    settings = settings_of(scenario, {}, sets, out=tmp_path, sends=False)
    title = plan_lines(settings, 1)[0]

    assert title.endswith(end)
    assert len(title) <= 80


@pytest.mark.parametrize("width", [24, 40, 59, 60, 79, 120, 200])
@pytest.mark.parametrize("state", [EARLY, HEALTHY, BUSY], ids=["early", "healthy", "busy"])
@pytest.mark.parametrize("phase", ["", "draining"])
def test_no_line_is_longer_than_the_terminal_and_errors_and_429s_stay(width, state, phase):
    found = texts(state, width, phase)
    end = f"  {state.failed:,} err  {state.limited:,} 429"

    assert found[0].endswith(end)
    assert max(map(len, found)) <= max(width, len(f"1h30m  {phase}{end}"))
    assert (len(found) == 1) == (width < NARROW)


def test_at_eighty_columns_there_is_a_bar_and_everything_else():
    assert texts(HEALTHY, 79) == [
        " 18s " + "━" * 19 + "─" * 12 + " 30s  938 sent  34 open  0 err  0 429",
        "     ttft p50 202  p95 354 ms   2,590 tok/s",
    ]
    assert texts(BUSY, 79) == [
        "1h30m ━━━━━━━━───── 2h30m  1,234,567 sent  12,345 open  99,999 err  345,678 429",
        "     4,321 dropped   ttft p50 202  p95 1,224 ms   2,590 tok/s",
        "     INVALID so far: 23,456 of 1,234,567 requests dropped at the in-flight cap;",
        "     worker 3 is at 97% of its core",
    ]


@pytest.mark.parametrize(
    ("objectives", "added"),
    [
        ([], []),
        ([objective(TOO_FEW)], []),
        ([objective(MET)], ["   objective met so far"]),
        (
            [objective(MET), objective(TOO_FEW, "error_rate"), objective(IN_REPORT, "goodput")],
            [
                "   1 of 3 objectives met so far",
                "     not judged yet: error_rate (too few requests), goodput (in the report)",
            ],
        ),
        (
            [objective(MET), objective(MISSED, "error_rate", "2.1%")],
            [
                "   1 of 2 objectives met so far",
                "     missed so far: error_rate 2.1% (objective < 800 ms)",
            ],
        ),
        (
            [objective(MISSED, f"ttft p95 ({name * 9})", "1,298 ms") for name in "abcde"],
            [
                "   0 of 5 objectives met so far",
                *(
                    f"     missed so far: ttft p95 ({name * 9}) 1,298 ms (objective < 800 ms)"
                    for name in "abc"
                ),
            ],
        ),
    ],
)
def test_objectives_are_summed_up_and_the_first_missed_ones_named(objectives, added):
    state = progress(9, 30, sent=100, output_tokens=5, objectives=tuple(objectives))
    met, *missed = added or [""]

    assert texts(state, 79)[1:] == [f"     2,590 tok/s{met}", *missed]
    assert len(texts(state, NARROW - 1)) == 1


@pytest.mark.parametrize(
    ("waiting", "slot_wait_s", "shown"),
    [
        (0, 0.0, ""),
        (1, 0.04, "1 wait for a slot, up to 0.0 s"),
        (12, 9.94, "12 wait for a slot, up to 9.9 s"),
        (450, 150.2, "450 wait for a slot, up to 2m30s"),
    ],
)
def test_those_that_wait_for_a_slot_are_shown_with_the_longest_wait(waiting, slot_wait_s, shown):
    state = progress(
        30, 60, sent=100, slots=8, waiting=waiting, slot_wait_s=slot_wait_s, ttft_ms=[201.4] * 60
    )
    (_, second) = texts(state, 79)

    assert second.strip() == f"{shown}   ttft p50 202  p95 202 ms   2,590 tok/s".strip()


@pytest.mark.parametrize(
    ("answers", "shown"),
    [(5, ""), (6, "ttft p50 202 ms"), (59, "ttft p50 202 ms"), (60, "ttft p50 202  p95 202 ms")],
)
def test_a_percentile_is_shown_from_enough_answers_on(answers, shown):
    (_, second) = texts(progress(9, 30, sent=100, ttft_ms=[201.4] * answers), 79)

    assert second.strip() == f"{shown}   2,590 tok/s".strip()


@pytest.mark.parametrize(
    ("ended", "failed"),
    [
        ({}, 0),
        ({"ok": 5, "empty": 1, "cancelled": 2, "rate_limited": 3}, 4),
        ({"ok": 5, "timeout": 2, "server_error": 1, "overloaded": 4}, 7),
    ],
)
def test_requests_that_ended_otherwise_than_well_have_failed_a_last_429_included(ended, failed):
    assert progress(0, 1, requests=ended).failed == failed


def test_in_a_terminal_of_eighty_columns_nothing_wraps_and_every_message_stays(tmp_path):
    code, screen = run_in_terminal([sys.executable, "-c", SHOW], tmp_path, scripts_path())

    assert (code, screen.wrapped) == (0, [])
    assert screen.lines == [
        "expected: 1,566 requests, 313,200 input and up to 78,300 output tokens",
        "note: worker 1 was lost 3 s into the run, and nobody knows why that is so",
        "  worker 1 was lost 3 s into the run, and nobody knows why that is so worker 1",
        "  was lost 3 s into the run, and nobody knows why that is so",
        "WARNING:root:something that a library has to say",
        "1h30m of 2h30m  drained  1,234,567 sent  12,345 open  99,999 err  345,678 429",
        "FAIL",
        "",
    ]
    assert any("99,999 err  345,678 429" in line and "━" in line for line in screen.shown)
    assert {"31", "33"} <= screen.colours


def test_without_a_terminal_there_is_a_plain_line_every_five_seconds():
    stream = io.StringIO()
    display = Display(stream)
    for passed in (0.0, 0.3, 4.9, 5.0, 5.2, 31.0):
        state = progress(passed, 30, sent=9, verdict="DEGRADED", reason="it stood")
        display.show(state, phase="draining" if passed > 30 else "")
    display.print_line("note: something")
    display.conclude(progress(31.0, 30, sent=9))

    assert stream.getvalue().splitlines() == [
        "  0s of 30s  9 sent  0 open  0 err  0 429   DEGRADED so far: it stood",
        "  5s of 30s  9 sent  0 open  0 err  0 429   DEGRADED so far: it stood",
        " 30s of 30s  draining  9 sent  0 open  0 err  0 429   DEGRADED so far: it stood",
        "note: something",
        " 30s of 30s  drained  9 sent  0 open  0 err  0 429",
    ]


def test_without_a_terminal_missed_objectives_are_named_without_their_values():
    stream = io.StringIO()
    objectives = (objective(MISSED, "ttft p95"), objective(MET), objective(TOO_FEW, "error_rate"))
    Display(stream).show(progress(9, 30, objectives=objectives))

    assert stream.getvalue().splitlines() == [
        "  9s of 30s  0 sent  0 open  0 err  0 429   1 of 3 objectives met so far",
        "      missed so far: ttft p95   not judged yet: error_rate (too few requests)",
    ]


@pytest.mark.parametrize("columns", [80, 50])
def test_without_a_terminal_no_line_is_wider_than_one_would_be(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    display = Display(stream)
    display.show(HEALTHY)
    display.show(BUSY, phase="draining")
    display.conclude(BUSY)

    shown = stream.getvalue().splitlines()
    assert max(len(line) for line in shown) <= columns
    assert all(line.startswith("      ") for line in shown if " sent" not in line), (
        "continuations are indented"
    )
    text = " ".join(" ".join(shown).split())
    assert "ttft p50 202 p95 354 ms" in text
    assert "99,999 err 345,678 429" in text
    assert BUSY.reason in text


@pytest.mark.parametrize(
    "scenario", ["retry_storm", "fallback", "resume", "job", "closed", "steps", "cached"]
)
def test_the_plan_fits_a_terminal_and_names_its_seed(scenario, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    plan = plan_lines(resolve(scenario, [override("seed=7")], tmp_path), 1)
    text = " ".join(plan)

    assert max(map(len, plan)) <= 80
    drawn = "think times" if scenario == "closed" else "arrivals"
    assert f"seed 7 draws the same {drawn} and sizes in every run; --seed N draws others" in text
    assert "hedges, retries" not in text


def test_tokens_per_second_are_of_the_last_ten_seconds():
    stream = io.StringIO()
    display = Display(stream)
    for second in range(31):
        display.show(progress(float(second), 30, output_tokens=100 * min(second, 20)))

    rates = [line.rpartition("   ")[2] for line in stream.getvalue().splitlines()]
    assert rates[1:] == ["100 tok/s"] * 4 + [
        "50 tok/s",
        " 30s of 30s  0 sent  0 open  0 err  0 429",
    ]


def test_a_note_cannot_move_the_cursor():
    stream = io.StringIO()
    Display(stream).print_line(
        "note: preflight -1 ended as empty: \x1b[2J\x1b[Hgone\r\u202e\nVALID"
    )

    assert stream.getvalue() == "note: preflight -1 ended as empty: [2J[Hgone VALID\n"


def test_the_lines_are_taken_away_and_log_messages_go_back_to_the_stream():
    stream = Terminal()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    try:
        display = Display(stream)
        assert handler.stream is display
        display.show(BUSY)
        display.close()
        assert handler.stream is stream
    finally:
        logging.getLogger().removeHandler(handler)
    assert Screen().feed(stream.getvalue()).lines == [""]


def test_a_display_that_cannot_be_written_ends_no_run():
    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def flush(self) -> None:
            self.write("")

    display = Display(Full())
    display.print_line("note: one")
    display.show(progress(9, 30))
    display.conclude(progress(30, 30))
