"""A locustfile whose user computes for 100 ms in every 300 ms without yielding, as careless code does.

The file that STALLS names gets a line for each: CLOCK_MONOTONIC at its begin and at its end.
"""

import os
import time

import gevent
from locust import events

from tailgauge.locust_app.users import Traffic


class Stalling(Traffic):
    scenario = "streaming"


@events.test_start.add_listener
def block_again_and_again(**_: object) -> None:
    def block() -> None:
        with open(os.environ.get("STALLS", os.devnull), "w", buffering=1) as file:  # noqa: PTH123
            while True:
                gevent.sleep(0.2)
                began = time.monotonic_ns()
                while time.monotonic_ns() < began + 100_000_000:
                    pass
                file.write(f"{began} {time.monotonic_ns()}\n")

    gevent.spawn(block)
