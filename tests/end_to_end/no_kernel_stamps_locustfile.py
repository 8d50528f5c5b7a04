"""A locustfile that makes its process one of a system that is not Linux: its kernel stamps nothing, has no timer to wait
for and no counters of a connection's losses, and the reader is not compiled.
"""

import sys

sys.modules["tailgauge.transport._core"] = None  # type: ignore[assignment] # cannot be imported

from tailgauge.transport import connection, losses, reader  # noqa: E402
from tailgauge.worker import timers  # noqa: E402

assert not reader.COMPILED
connection.KERNEL_STAMPS = False  # before anyone takes it over
losses.HAS_TCP_INFO = False
timers.TIMER = False

from tailgauge.locust_app.users import Traffic  # noqa: E402


class Elsewhere(Traffic):
    scenario = "streaming"
