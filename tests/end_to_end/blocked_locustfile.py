"""A locustfile whose worker blocks the hub for 6 s, once, in the middle of the run: no message leaves, and no heartbeat."""

import gevent
from gevent import monkey
from locust import events
from locust.runners import MasterRunner

from tailgauge.locust_app.users import Traffic

really_sleep = monkey.get_original("time", "sleep")
AFTER_S, BLOCKED_S = 5, 6


class Blocked(Traffic):
    scenario = "streaming"


def block_once() -> None:
    gevent.sleep(AFTER_S)
    really_sleep(BLOCKED_S)


@events.spawning_complete.add_listener
def begin(**_: object) -> None:
    gevent.spawn(block_once)


@events.init.add_listener
def only_workers(environment: object, **_: object) -> None:
    if isinstance(environment.runner, MasterRunner):
        events.spawning_complete.remove_listener(begin)
