"""Script: what plain Locust prints at the end of a run, and the command line that repeats it."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

from locust.env import Environment
from starting.script import case, print_facts

from tailgauge.errors import Exit
from tailgauge.locust_app.command import command_arguments
from tailgauge.locust_app.console import MAIN, TABLES, Console, http_user_lines, names_no_exit_code

SUMMARY = "PASS  the summary"


class Terminal:
    """A Locust process that prints its tables as Locust does."""

    def __init__(self, *, stays: bool, json: bool = False) -> None:
        self.environment = Environment(parsed_options=SimpleNamespace(json=json))
        self._text = io.StringIO()
        for logger in (TABLES, MAIN, logging.getLogger("tailgauge")):
            logger.filters.clear()
            logger.handlers = [logging.StreamHandler(self._text)]
            logger.setLevel(logging.INFO)
            logger.propagate = False
        with redirect_stdout(self._text):
            self.console = Console(self.environment, stays=stays)

    def table(self, name: str = "table") -> None:
        TABLES.info(name)

    def quit(self, code: int) -> list[str]:
        """End as Locust's main program does; returns what it printed."""
        self.environment.events.quitting.fire(environment=self.environment, reverse=True)
        MAIN.info("Shutting down (exit code %d)", code)
        self.table("last table")
        self.environment.events.quit.fire(exit_code=code)
        return self._text.getvalue().split("\n")

    @property
    def stream(self) -> str:
        """Where the last result goes."""
        return "standard error" if self.console.stream is sys.stderr else "standard output"


@case
def streams() -> dict[str, str]:
    return {
        name: Terminal(stays=False, json=json).stream
        for name, json in (("text", False), ("json", True))
    }


@case
def ends() -> dict[str, list[str]]:
    found = {}
    for name, stays in (("headless", False), ("page", True)):
        terminal = Terminal(stays=stays)
        terminal.console.begin()
        terminal.table()
        terminal.console.pause()
        terminal.table("table while the report is made")
        terminal.console.show(SUMMARY)
        found[name] = terminal.quit(0)
    return found


@case
def codes() -> dict[str, str]:
    """The last line by whose exit code it is."""
    found = {}
    for name, of_run, code in (
        ("of the run", Exit.INVALID, 3),
        ("of Locust", None, 1),
        ("none", None, 0),
    ):
        terminal = Terminal(stays=False)
        terminal.environment.process_exit_code = None if of_run is None else int(of_run)
        terminal.console.show(SUMMARY)
        *_, last, end = terminal.quit(code)
        assert end == ""
        found[name] = last
    return found


@case
def failures() -> list[str]:
    """A run without a result, after one that had one."""
    terminal = Terminal(stays=False)
    terminal.console.show(SUMMARY)
    terminal.console.begin()
    terminal.console.fail("the target could not be used " + "because of a long reason " * 4)
    terminal.console.fail("choose a longer -t")
    terminal.environment.process_exit_code = 4
    return terminal.quit(4)


def statistics(**times_ms: list[float]) -> Any:
    """Locust's statistics with entries `NAME_KIND`."""
    stats = Environment().stats
    for entry, values in times_ms.items():
        name, _, kind = entry.rpartition("_")
        for value in values:
            stats.get(name, kind).log(value, 0)
    return stats


@case
def http_user() -> dict[str, Any]:
    fast = [290.0] * 9 + [590.0]
    slow = [890.0] * 9 + [1200.0]
    terminal = Terminal(stays=False)
    terminal.environment.stats = statistics(chat_headers=fast, chat_total=slow)
    terminal.console.show(SUMMARY, is_of_tasks=True)
    scheduled = Terminal(stays=False)
    scheduled.environment.stats = statistics(chat_total=slow)
    scheduled.console.show(SUMMARY)
    return {
        "streamed": http_user_lines(statistics(chat_headers=fast, chat_total=slow, chat_TTFT=fast)),
        "whole": http_user_lines(statistics(chat_total=slow, models_GET=fast)),
        "both": http_user_lines(
            statistics(a_headers=fast, a_total=slow, b_total=[40.0], c_headers=[9.0])
        ),
        "no request": http_user_lines(statistics(models_GET=fast)),
        "printed": terminal.quit(0),
        "schedule": scheduled.quit(0),
    }


@case
def other_messages() -> list[bool]:
    texts = ("Shutting down (exit code 0)", "--run-time limit reached, shutting down")
    return [names_no_exit_code(logging.makeLogRecord({"msg": text})) for text in texts]


def arguments(shape: Any = None, host: str | None = None, **changed: Any) -> str:
    options = {
        "locustfile": "chat.py", "user_classes": [], "class_picker": False, "num_users": 6, "spawn_rate": 2.0,
        "run_time": 12, "processes": None, "master": False, "expect_workers": 1, "tags": None,
        "exclude_tags": None, "stop_timeout": 0, "scenario": "", "tailgauge_set": [], "tailgauge_plugins": [],
        "tailgauge_allow_plugins": False, "web_auth": "me:secret", "my_token": "secret",
    }  # fmt: skip
    environment = SimpleNamespace(
        parsed_options=SimpleNamespace(**(options | changed)),
        shape_class=shape,
        host=host,
        user_classes=[Terminal, Console],
    )
    return " ".join(command_arguments(environment))


@case
def commands() -> dict[str, str]:
    ours = {
        "scenario": "limits.toml",
        "tailgauge_set": ["limits.drain_s=9"],
        "tailgauge_plugins": ["p.py"],
    }
    return {
        "plain": arguments(),
        "page": arguments(
            num_users=None, spawn_rate=None, run_time=None, host="http://127.0.0.1:1"
        ),
        "processes": arguments(processes=2, master=True, expect_workers=2, stop_timeout=3),
        "workers": arguments(master=True, expect_workers=4),
        "shape": arguments(shape=object()),
        "classes": arguments(user_classes=["Chat"], tags=["a", "b"]),
        "picked": arguments(class_picker=True),
        "ours": arguments(**ours),
        "from a site": arguments(locustfile="https://files.example/chat.py?token=secret"),
    }


print_facts()
