"""The end of a run in the terminal of plain Locust: each table once, then the result, then one exit code.

Locust goes on with its tables while the report is made, prints the last ones below everything else, and each of its
processes names an exit code of its own.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

from click import unstyle
from locust.stats import StatsEntry

from tailgauge.errors import Exit
from tailgauge.live import screen
from tailgauge.live.terminal import fold
from tailgauge.locust_app.client import HEADERS, TOTAL

log = logging.getLogger("tailgauge")
TABLES = logging.getLogger("locust.stats_logger")
MAIN = logging.getLogger("locust.main")
INDENT = " " * 10  # of the result's lines below their first
EXIT_CODE = "Shutting down (exit code"  # begins Locust's message


class Console:
    """Prints the results of a Locust process that leads runs. `stays`: for a page, after each run; else at the end only.

    The last result goes to standard output, unless Locust's --json is there.
    """

    def __init__(self, environment: Any, *, stays: bool) -> None:
        self._environment = environment
        self._stays = stays
        self._has_pause = False
        self._is_quitting = False
        self._result = ""  # of the last run, or why it has none
        self.stream: TextIO = sys.stdout
        if getattr(environment.parsed_options, "json", False):
            self.stream = sys.stderr
        MAIN.addFilter(names_no_exit_code)
        TABLES.addFilter(lambda _: not self._has_pause)
        environment.events.quitting.add_listener(self._on_quitting)
        environment.events.quit.add_listener(self._on_quit)

    def pause(self) -> None:
        """Print no tables of Locust's from the end of the load on, but its last ones."""
        self._has_pause = not (self._stays or self._is_quitting)

    def show(self, summary: str, *, is_of_tasks: bool = False) -> None:
        """Print the result of a run, below Locust's last tables too.

        Where tasks made the requests it has an HttpUser's response time. That is taken now: what Locust's --json prints is
        no longer in its statistics.
        """
        lines = [summary]
        if is_of_tasks:
            for line in http_user_lines(self._environment.stats):
                lines += fold(line, screen.columns(), INDENT)
        self._result = "\n".join(lines)
        if self._stays and not self._is_quitting:
            TABLES.info("%s", f"\n{unstyle(self._result)}\n")  # the page shows it, too

    def fail(self, reason: str) -> None:
        """Log why a run has no result, and print it below Locust's last tables too."""
        log.error("%s", reason)
        self._result = "\n".join([*self._result.splitlines(), *fold(reason, screen.columns())])

    def begin(self) -> None:
        """Forget the run before."""
        self._result = ""
        self._has_pause = False

    def _on_quitting(self, **_: Any) -> None:
        self._is_quitting = True
        self._has_pause = False

    def _on_quit(self, exit_code: int, **_: Any) -> None:
        text = f"exit code {exit_code}{self._origin(exit_code)}\n"
        if self._result:
            text = f"{self._result}\n{text}"
        self.stream.write(text)
        self.stream.flush()

    def _origin(self, exit_code: int) -> str:
        """Return where the code comes from, if it is not that of the result."""
        if exit_code and self._result and self._environment.process_exit_code in {None, Exit.OK}:
            return ": Locust counted failures; the result above alone would be 0"
        return ""


def http_user_lines(stats: Any) -> list[str]:
    """Return what an HttpUser would show as the response time of the same requests, from Locust's statistics."""
    streamed = {name for name, kind in stats.entries if kind == HEADERS}
    to_headers = StatsEntry(stats, "", HEADERS)
    to_end = StatsEntry(stats, "", TOTAL)
    for (name, kind), entry in stats.entries.items():
        if kind == HEADERS:
            to_headers.extend(entry)
        elif kind == TOTAL and name not in streamed:
            to_end.extend(entry)
    lines = []
    if to_headers.num_requests:
        lines.append(
            f"HttpUser  With stream=True, Locust shows the time to the headers: {_percentiles(to_headers)}."
            " The time to the end is shown as total."
        )
    if to_end.num_requests:
        lines.append(
            f"HttpUser  Without stream=True, Locust shows the time to the end, as total: {_percentiles(to_end)}."
        )
    return lines


def _percentiles(entry: StatsEntry) -> str:
    """Return the two that a reader remembers, rounded as Locust rounds them."""
    p50 = entry.get_response_time_percentile(0.5)
    p95 = entry.get_response_time_percentile(0.95)
    return f"p50 {p50:,} ms, p95 {p95:,} ms"


def names_no_exit_code(record: logging.LogRecord) -> bool:
    """Return whether Locust's message is about something else than its exit code."""
    return not record.getMessage().startswith(EXIT_CODE)
