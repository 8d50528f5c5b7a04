"""The result of a run is the last thing that plain Locust prints, and its exit code is named once."""

from __future__ import annotations

import io
import logging
import sys
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any

import pytest
from locust.env import Environment

from tailgauge.errors import Exit
from tailgauge.locust_app.command import command_arguments
from tailgauge.locust_app.console import MAIN, TABLES, Console, http_user_lines, names_no_exit_code

pytestmark = pytest.mark.gevent

SUMMARY = "PASS  the summary"
LOGGERS = (TABLES, MAIN, logging.getLogger("tailgauge"))


@pytest.fixture(autouse=True)
def loggers_as_before():
    before = [(one, one.filters[:], one.handlers[:], one.level, one.propagate) for one in LOGGERS]
    yield
    for logger, filters, handlers, level, propagates in before:
        logger.filters[:] = filters
        logger.handlers = handlers
        logger.setLevel(level)
        logger.propagate = propagates


class Terminal:
    """A Locust process that prints its tables as Locust does."""

    def __init__(self, *, stays: bool, json: bool = False) -> None:
        self.environment = Environment(parsed_options=SimpleNamespace(json=json))
        self._text = io.StringIO()
        for logger in LOGGERS:
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


@pytest.mark.parametrize("json", [False, True])
def test_the_result_is_on_standard_output_unless_the_json_of_locust_is_there(json):
    console = Terminal(stays=False, json=json).console

    assert (console.stream is sys.stderr) == json


@pytest.mark.parametrize(
    ("stays", "lines"),
    [
        (False, ["table", "last table", SUMMARY, "exit code 0", ""]),
        (
            True,
            [
                "table",
                "table while the report is made",
                "",
                SUMMARY,
                "",
                "last table",
                SUMMARY,
                "exit code 0",
                "",
            ],
        ),
    ],
)
def test_the_result_stands_below_the_last_table_which_is_not_repeated(stays, lines):
    """With a page it is printed when the run has ended too."""
    terminal = Terminal(stays=stays)
    terminal.console.begin()
    terminal.table()
    terminal.console.pause()
    terminal.table("table while the report is made")
    terminal.console.show(SUMMARY)

    assert terminal.quit(0) == lines


@pytest.mark.parametrize(
    ("of_run", "code", "last"),
    [
        (int(Exit.INVALID), 3, "exit code 3"),
        (None, 1, "exit code 1: Locust counted failures; the result above alone would be 0"),
        (None, 0, "exit code 0"),
    ],
)
def test_the_exit_code_is_the_last_word_and_says_whose_it_is(of_run, code, last):
    terminal = Terminal(stays=False)
    terminal.environment.process_exit_code = of_run
    terminal.console.show(SUMMARY)

    assert terminal.quit(code)[-2:] == [last, ""]


def test_why_there_is_no_result_stands_below_the_tables_too():
    """Of a run without a result, after one that had one."""
    terminal = Terminal(stays=False)
    terminal.console.show(SUMMARY)
    terminal.console.begin()
    terminal.console.fail("the target could not be used " + "because of a long reason " * 4)
    terminal.console.fail("choose a longer -t")
    terminal.environment.process_exit_code = 4
    lines = terminal.quit(4)
    logged = lines[: lines.index("last table")]
    *printed, code, end = lines[len(logged) + 1 :]

    assert [line[:10] for line in logged] == ["the target", "choose a l"]
    assert printed[0].startswith("the target could not be used because")
    assert printed[-1] == "choose a longer -t"
    assert all(len(line) <= 80 for line in printed)
    assert (code, end) == ("exit code 4", "")


def statistics(**times_ms: list[float]) -> Any:
    """Locust's statistics with entries `NAME_KIND`."""
    stats = Environment().stats
    for entry, values in times_ms.items():
        name, _, kind = entry.rpartition("_")
        for value in values:
            stats.get(name, kind).log(value, 0)
    return stats


FAST = [290.0] * 9 + [590.0]
SLOW = [890.0] * 9 + [1200.0]
TO_HEADERS = (
    "HttpUser  With stream=True, Locust shows the time to the headers: p50 290 ms, p95 590 ms."
)
TO_END = "HttpUser  Without stream=True, Locust shows the time to the end, as total:"


@pytest.mark.parametrize(
    ("times_ms", "lines"),
    [
        ({"chat_headers": FAST, "chat_total": SLOW, "chat_TTFT": FAST}, [f"{TO_HEADERS} The time to the end is shown as total."]),
        ({"chat_total": SLOW, "models_GET": FAST}, [f"{TO_END} p50 890 ms, p95 1,200 ms."]),
        ({"models_GET": FAST}, []),
    ],
    ids=["streamed", "whole", "no request"],
)  # fmt: skip
def test_an_http_user_would_show_another_response_time(times_ms, lines):
    assert http_user_lines(statistics(**times_ms)) == lines


def test_calls_of_both_kinds_are_distinct():
    times_ms = {"a_headers": FAST, "a_total": SLOW, "b_total": [40.0], "c_headers": [9.0]}
    first, second = http_user_lines(statistics(**times_ms))

    assert first.startswith(TO_HEADERS[:64])
    assert second.startswith(TO_END[:64])
    assert second.endswith("p50 40 ms, p95 40 ms."), "of the calls without it alone"


@pytest.mark.parametrize("is_of_tasks", [True, False])
def test_the_result_of_tasks_ends_with_the_response_time_that_an_http_user_shows(is_of_tasks):
    terminal = Terminal(stays=False)
    terminal.environment.stats = statistics(chat_headers=FAST, chat_total=SLOW)
    terminal.console.show(SUMMARY, is_of_tasks=is_of_tasks)
    *printed, code, end = terminal.quit(0)

    assert (code, end) == ("exit code 0", "")
    if is_of_tasks:
        assert printed[-2].startswith("HttpUser  With stream=True")
        assert printed[-1].startswith("          ")
    else:
        assert not any("HttpUser" in line for line in printed)


def test_the_response_time_that_an_http_user_shows_is_taken_before_locusts_json_empties_its_statistics():
    terminal = Terminal(stays=False)
    terminal.environment.stats = statistics(chat_headers=FAST, short_total=SLOW)
    terminal.console.show(SUMMARY, is_of_tasks=True)
    terminal.environment.stats.serialize_stats()  # as --json does before the end

    printed = "\n".join(terminal.quit(0))
    assert "HttpUser  With stream=True" in printed
    assert "HttpUser  Without stream=True" in printed


def test_only_the_exit_code_is_left_to_the_master():
    texts = ("Shutting down (exit code 0)", "--run-time limit reached, shutting down")

    assert [names_no_exit_code(logging.makeLogRecord({"msg": text})) for text in texts] == [
        False,
        True,
    ]


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


LOAD = "--headless -u 6 -r 2 -t 12s"
OURS = {
    "scenario": "limits.toml",
    "tailgauge_set": ["limits.drain_s=9"],
    "tailgauge_plugins": ["p.py"],
}


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({}, f"locust -f chat.py {LOAD}"),
        ({"num_users": None, "spawn_rate": None, "run_time": None, "host": "http://127.0.0.1:1"},
         "locust -f chat.py --headless -u 1 -r 1 --host http://127.0.0.1:1"),
        ({"processes": 2, "master": True, "expect_workers": 2, "stop_timeout": 3}, f"locust -f chat.py {LOAD} --processes 2 -s 3"),
        ({"master": True, "expect_workers": 4}, f"locust -f chat.py {LOAD} --master --expect-workers 4"),
        ({"shape": object()}, "locust -f chat.py --headless -t 12s"),
        ({"user_classes": ["Chat"], "tags": ["a", "b"]}, f"locust -f chat.py Chat {LOAD} -T a b"),
        ({"class_picker": True}, f"locust -f chat.py Terminal Console {LOAD}"),
        (OURS, f"locust -f chat.py {LOAD} --scenario limits.toml --set limits.drain_s=9 --plugin p.py"),
        ({"locustfile": "https://files.example/chat.py?token=secret"}, f"locust -f https://files.example/chat.py {LOAD}"),
    ],
    ids=["plain", "page", "processes", "workers", "shape", "classes", "picked", "ours", "from a site"],
)  # fmt: skip
def test_the_command_that_repeats_a_run_has_its_load_and_no_secret(options, line):
    assert arguments(**options) == line
