"""A locustfile whose user blocks the hub for 100 ms in every 300 ms, as careless code does."""

import gevent
from gevent import monkey
from locust import events

from tailgauge.users import Traffic

really_sleep = monkey.get_original("time", "sleep")


class Stalling(Traffic):
    scenario = "streaming"


@events.test_start.add_listener
def block_again_and_again(**_: object) -> None:
    def block() -> None:
        while True:
            gevent.sleep(0.2)
            really_sleep(0.1)

    gevent.spawn(block)
