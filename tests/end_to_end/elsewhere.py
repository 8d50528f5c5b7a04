"""A locustfile that makes its process one of a system whose kernel stamps nothing and has no timer to wait for."""

from tailgauge.dispatch import alarm
from tailgauge.transport import connection

connection.KERNEL_STAMPS = False  # before anyone takes it over
alarm.TIMER = False

from tailgauge.users import Traffic  # noqa: E402


class Elsewhere(Traffic):
    scenario = "streaming"
