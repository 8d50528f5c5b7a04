"""Script: jobs that can wait."""

from __future__ import annotations

import time
from typing import Any

import gevent
from starting.script import case, print_facts

from tailgauge.worker.timers import Later


@case
def together() -> Any:
    later, done = Later(), []
    for number in range(3):
        later.add(lambda number=number: done.append(number))
    before = list(done)
    gevent.sleep(0.2)
    first = list(done)
    later.add(lambda: done.append("after"))
    gevent.sleep(0.2)
    return [before, first, done]


@case
def finished() -> Any:
    later, done = Later(), []
    later.add(lambda: later.add(lambda: done.append("of a job")))
    later.finish()
    at_once = list(done)
    gevent.sleep(0.2)
    return [at_once, done]


@case
def failing() -> Any:
    later, done = Later(), []
    later.add(lambda: 1 / 0)
    later.add(lambda: done.append("next"))
    gevent.sleep(0.4)
    later.add(lambda: done.append("later"))
    gevent.sleep(0.2)
    return done


@case
def long() -> Any:
    """Much work leaves turns to others."""
    later, turns, during = Later(), [], []

    def job() -> None:
        time.sleep(0.002)
        during.append(len(turns))

    def other() -> None:
        while True:
            turns.append(0)
            gevent.sleep(0.001)

    for _ in range(30):
        later.add(job)
    watcher = gevent.spawn(other)
    while len(during) < 30:
        gevent.sleep(0.01)
    watcher.kill()
    return during


print_facts()
