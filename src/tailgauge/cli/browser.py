"""`--open`: a report in the user's browser. Which report that is, each command decides."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from tailgauge import interpreter
from tailgauge.live import screen
from tailgauge.rows.object_store import is_remote, renamed

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")  # variables of which Linux needs one


def open_pages(pages: Iterable[str]) -> None:
    """Open reports; where there is no browser, or no local file, print where they are."""
    for page in pages:
        place = renamed(page)
        if is_remote(place):
            screen.show(f"tailgauge: --open: the report is at {place}", err=True)
        elif not _has_display():
            screen.show(f"tailgauge: --open: no display here; the report is {place}", err=True)
        else:
            _start(Path(page).resolve().as_uri())


def _has_display() -> bool:
    """Return whether a browser has somewhere to appear."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in DISPLAYS)


def _start(url: str) -> None:
    """Start the browser in a process of its own, which gevent's loop does not know."""
    command = interpreter.command("-m", "webbrowser", url)
    silent = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    os.posix_spawn(command[0], command, os.environ, file_actions=silent)
