"""A locustfile under a trace function, as a debugger or a coverage tool sets one: every line of Python costs more."""

import sys
import threading
from types import FrameType
from typing import Any

from locust import events

from tailgauge.locust_app.users import Traffic


class Traced(Traffic):
    scenario = "streaming"


def follow(_frame: FrameType, _event: str, _arg: Any) -> Any:
    return follow


@events.test_start.add_listener
def trace(**_: object) -> None:
    threading.settrace(follow)
    sys.settrace(follow)
