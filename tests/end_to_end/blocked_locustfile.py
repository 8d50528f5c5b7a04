"""A locustfile with a listener that blocks the hub for 6 s, once, early in the run: no message leaves, and no heartbeat."""

from itertools import count

from gevent import monkey
from locust import events

from tailgauge.locust_app.users import Traffic

really_sleep = monkey.get_original("time", "sleep")
AT_REQUEST, BLOCKED_S = 15, 6
ended = count()


class Blocked(Traffic):
    scenario = "streaming"


@events.request.add_listener
def block_once(**_: object) -> None:
    if next(ended) == AT_REQUEST:
        really_sleep(BLOCKED_S)
