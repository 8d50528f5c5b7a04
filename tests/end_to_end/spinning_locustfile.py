"""A locustfile whose user computes without yielding for SPIN_S seconds, SPIN_AFTER_S seconds after the start, and again."""

import os
import time

import gevent
from locust import events

from tailgauge.locust_app.users import Traffic


class Spinning(Traffic):
    scenario = "streaming"


@events.test_start.add_listener
def spin(**_: object) -> None:
    def compute() -> None:
        while True:
            gevent.sleep(float(os.environ["SPIN_AFTER_S"]))
            until = time.monotonic() + float(os.environ["SPIN_S"])
            while time.monotonic() < until:
                pass

    gevent.spawn(compute)
