"""A locustfile whose user blocks the hub for 8 s, once, 4 s after the start of the test: no message leaves, no heartbeat."""

import gevent
from gevent import monkey
from locust import events
from locust.runners import MasterRunner

from tailgauge.locust_app.users import Traffic

really_sleep = monkey.get_original("time", "sleep")


class Blocked(Traffic):
    scenario = "streaming"


@events.test_start.add_listener
def block_once(environment: object, **_: object) -> None:
    if not isinstance(environment.runner, MasterRunner):
        gevent.spawn_later(4, really_sleep, 8)
