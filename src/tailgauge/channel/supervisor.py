"""Keeps up what must go on for as long as a process lives: a duty that fails is named in one line, and begins again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps

import gevent
import psutil
from locust.exception import StopTest
from locust.runners import MasterRunner, Runner, WorkerRunner

from tailgauge.errors import failure

log = logging.getLogger("tailgauge")
PAUSE_S = 1.0  # before a duty begins again
# Duties of Locust's, which it starts once and does not look after.
_LOCUST_DUTIES: dict[type, dict[str, str]] = {
    Runner: {"monitor_cpu_and_memory": "the CPU use of this process cannot be read"},
    MasterRunner: {
        "heartbeat_worker": "the workers cannot be watched",
        "client_listener": "messages of the workers cannot be read",
    },
    WorkerRunner: {
        "heartbeat": "no heartbeat can be sent",
        "heartbeat_timeout_checker": "the master cannot be watched",
        "worker": "messages of the master cannot be read",
        "stats_reporter": "Locust's statistics cannot be sent",
        "logs_reporter": "Locust's log cannot be sent",
    },
}


def supervised(duty: Callable[..., object], problem: str) -> Callable[..., None]:
    """Return `duty` as a function that begins it again after an error, and ends when it returns.

    Each error is logged once, after `problem`; between two attempts it waits. `StopTest`, by which Locust
    ends, is raised.
    """

    @wraps(duty)
    def keep_up(*arguments: object) -> None:
        logged: set[str] = set()
        while True:
            try:
                duty(*arguments)
            except StopTest:
                raise
            except Exception as error:  # noqa: BLE001 - whatever it is, the duty is needed
                kind = f"{type(error)}{error}"
                if kind not in logged:
                    logged.add(kind)
                    reason: Exception = error
                    if not isinstance(error, psutil.Error):
                        reason = failure(error)
                    log.warning("%s: %s; trying again", problem, reason)
                gevent.sleep(PAUSE_S)
            else:
                return

    return keep_up


for _runner, _duties in _LOCUST_DUTIES.items():
    for _name, _problem in _duties.items():
        setattr(_runner, _name, supervised(getattr(_runner, _name), _problem))
