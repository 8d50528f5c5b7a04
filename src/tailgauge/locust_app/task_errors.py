"""Exceptions of tasks: the first of each place is logged, the others are counted, and a task that fails at once pauses.

Locust logs the traceback of each, and waits for `wait_time` only, which may be none.
"""

from __future__ import annotations

import logging
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any
from weakref import WeakKeyDictionary

import gevent

from tailgauge.locust_app.streaming_user import StreamingUser
from tailgauge.redaction import shown
from tailgauge.sanitize import plain

PAUSE_S = 0.5  # after an exception, before the user's own wait
MAX_PLACES = 20  # that are counted separately
MAX_TEXT = 200
OTHERS = "exceptions at other places"
_LOGGERS = ("locust.user.task", "locust.user.users")


class TaskErrors:
    """The exceptions of this process's StreamingUsers, by type and line."""

    def __init__(self, files: list[str]) -> None:
        self._files = {str(Path(file).resolve()) for file in files}
        self._texts: dict[tuple[str, str, int], str] = {}
        # By greenlet: an exception whose traceback Locust is about to log once more.
        self._repeated: WeakKeyDictionary[Any, BaseException | None] = WeakKeyDictionary()

    def attach(self, environment: Any) -> None:
        """Count from now on, each in the run of its user."""

        def on_user_error(
            user_instance: Any, exception: BaseException, tb: TracebackType | None
        ) -> None:
            # Locust gives the task set of a task, which has the user.
            user = getattr(user_instance, "user", user_instance)
            if not isinstance(user, StreamingUser):
                return
            text = self._note(exception, tb)
            run = user.wait_for_run()
            run.task_errors[text] = run.task_errors.get(text, 0) + 1
            gevent.sleep(PAUSE_S)

        environment.events.user_error.add_listener(on_user_error)
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self._is_first)

    def _note(self, error: BaseException, trace: TracebackType | None) -> str:
        """Return the text of an exception: that of the first one at its place."""
        file, line = self._place(trace)
        key = (type(error).__name__, file, line)
        if key in self._texts:
            self._repeated[gevent.getcurrent()] = error
            return self._texts[key]
        self._repeated[gevent.getcurrent()] = None
        text = OTHERS
        if len(self._texts) < MAX_PLACES:
            message = plain(shown(f"{type(error).__name__}: {error}", MAX_TEXT), MAX_TEXT)
            text = f"{message} ({Path(file).name}:{line})"
        self._texts[key] = text
        return text

    def _place(self, trace: TracebackType | None) -> tuple[str, int]:
        """Return file and line: the innermost of the locustfile, else the innermost of all."""
        place = ("?", 0)
        locustfile_place = None
        for frame, line in traceback.walk_tb(trace):
            place = (frame.f_code.co_filename, line)
            if str(Path(place[0]).resolve()) in self._files:
                locustfile_place = place
        return locustfile_place or place

    def _is_first(self, record: logging.LogRecord) -> bool:
        """Return whether to log this: Locust's messages with a traceback are logged inside its `except`."""
        error = sys.exc_info()[1]
        repeated = self._repeated.get(gevent.getcurrent())
        return error is None or error is not repeated or record.levelno < logging.ERROR
