"""The end of a run in the terminal of plain Locust: each table once, then the result, then one exit code.

Locust goes on with its tables while the report is made, prints the last ones below everything else, and each of its
processes names an exit code of its own.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, TextIO

from click import unstyle

from tailgauge.errors import Exit
from tailgauge.live import screen
from tailgauge.live.terminal import fold

log = logging.getLogger("tailgauge")
TABLES = logging.getLogger("locust.stats_logger")
MAIN = logging.getLogger("locust.main")
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

    def show(self, summary: str) -> None:
        """Print the result of a run, below Locust's last tables too."""
        self._result = summary
        if self._stays and not self._is_quitting:
            TABLES.info("%s", f"\n{unstyle(summary)}\n")  # the page shows it, too

    def fail(self, why: str) -> None:
        """Log why a run has no result, and print it below Locust's last tables too."""
        log.error("%s", why)
        self._result = "\n".join([*self._result.splitlines(), *fold(why, screen.columns())])

    def begin(self) -> None:
        """Forget the run before."""
        self._result = ""
        self._has_pause = False

    def _on_quitting(self, **_: Any) -> None:
        self._is_quitting = True
        self._has_pause = False

    def _on_quit(self, exit_code: int, **_: Any) -> None:
        lines = [self._result] if self._result else []
        lines.append(f"exit code {exit_code}{self._origin(exit_code)}")
        self.stream.write("".join(f"{line}\n" for line in lines))
        self.stream.flush()

    def _origin(self, exit_code: int) -> str:
        """Whose code it is, where it is not that of the result."""
        if exit_code and self._result and self._environment.process_exit_code in {None, Exit.OK}:
            return ": Locust counted failures; the result above alone would be 0"
        return ""


def names_no_exit_code(record: logging.LogRecord) -> bool:
    """Whether Locust's message is about something else than its exit code."""
    return not record.getMessage().startswith(EXIT_CODE)
