"""A locustfile whose user computes without yielding, as careless code does: STALL_S seconds (0.1) after each STALL_AFTER_S (0.2).

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
    after_s = float(os.environ.get("STALL_AFTER_S", "0.2"))
    lasts_ns = int(1e9 * float(os.environ.get("STALL_S", "0.1")))

    def block() -> None:
        with open(os.environ.get("STALLS", os.devnull), "w", buffering=1) as file:  # noqa: PTH123
            while True:
                gevent.sleep(after_s)
                began = time.monotonic_ns()
                while time.monotonic_ns() < began + lasts_ns:
                    pass
                file.write(f"{began} {time.monotonic_ns()}\n")

    gevent.spawn(block)
