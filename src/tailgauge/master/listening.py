"""Whether the targets of an experiment listen, before anything is planned: a connection to each, closed at once.

Whether they answer is tried by the preflight of each run.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from tailgauge.errors import TargetError
from tailgauge.master.progress import preflight_failure
from tailgauge.protocols.protocol import SIMULATED
from tailgauge.rows.schema import CONNECT_ERROR
from tailgauge.scenario.model import Scenario

PATIENCE_S = 5.0  # for a connection
PAUSE_S = 0.5  # between two connections
NOTE_S = 10.0  # between two notes
PORTS = {"https": 443, "http": 80}


def await_targets(scenario: Scenario, notify: Callable[[str], None]) -> None:
    """Wait until every target takes connections, for `limits.ready_s` together; TargetError where one refuses them.

    `notify` gets a sentence while a target is waited for. Only what refuses for certain ends the experiment here: other
    failures are named by the preflight of its first run. The simulated endpoint is started later.
    """
    ready_s = scenario.limits.ready_s
    begin_s = time.monotonic()
    note_at_s = 0.0
    for target in scenario.targets.values():
        if target.url == SIMULATED:
            continue
        while refusal := _refusal(target.url):
            waited_s = time.monotonic() - begin_s
            if waited_s >= ready_s:
                call = {
                    "status": None,
                    "ended": CONNECT_ERROR,
                    "error_type": "tcp",
                    "message": refusal,
                    "url": target.url,
                }
                raise TargetError(
                    preflight_failure(target.url, target.protocol, call, target, ready_s=ready_s)
                )
            if waited_s >= note_at_s:
                limit = f"{math.ceil(ready_s - waited_s)} s at most (limits.ready_s)"
                notify(f"{target.url} refuses the connection: waiting until it listens, {limit}")
                note_at_s = waited_s + NOTE_S
            time.sleep(PAUSE_S)


def _refusal(url: str) -> str:
    """Return why a connection is refused; empty where it is not, or where something else is wrong."""
    parts = urlsplit(url)
    port = parts.port or PORTS.get(parts.scheme, 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return "Connection refused"
    except OSError:
        return ""
    return ""
