"""A locustfile whose user blocks the hub for 100 ms in every 300 ms, as careless code does.

The file that STALLS names gets a line for each: CLOCK_MONOTONIC at its begin and at its end.
"""

import os
import time

import gevent
from gevent import monkey
from locust import events

from tailgauge.locust_app.users import Traffic

really_sleep = monkey.get_original("time", "sleep")


class Stalling(Traffic):
    scenario = "streaming"


@events.test_start.add_listener
def block_again_and_again(**_: object) -> None:
    def block() -> None:
        with open(os.environ.get("STALLS", os.devnull), "w", buffering=1) as file:  # noqa: PTH123
            while True:
                gevent.sleep(0.2)
                began = time.monotonic_ns()
                really_sleep(0.1)
                file.write(f"{began} {time.monotonic_ns()}\n")

    gevent.spawn(block)
