"""A locustfile with a listener that computes for 25 ms at the end of each request, as careless code does."""

import time

from locust import events

from tailgauge.locust_app.users import Traffic

BURDEN_S = 0.025


class Burdened(Traffic):
    scenario = "streaming"


@events.request.add_listener
def compute(**_: object) -> None:
    until = time.thread_time() + BURDEN_S
    while time.thread_time() < until:
        pass
