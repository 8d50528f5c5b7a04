"""A locustfile that makes its process one of a system whose kernel stamps nothing and has no timer to wait for."""

from tailgauge.transport import connection
from tailgauge.worker import timers

connection.KERNEL_STAMPS = False  # before anyone takes it over
timers.TIMER = False

from tailgauge.locust_app.users import Traffic  # noqa: E402


class Elsewhere(Traffic):
    scenario = "streaming"
