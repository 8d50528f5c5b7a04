"""A process that starts a thread that reads, as root or as nobody, and prints who goes first."""

import json
import os
import resource
import sys
from pathlib import Path

from tailgauge.transport.reader import Reader, _core

TASKS = Path("/proc/self/task")
resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))
if sys.argv[1] == "nobody" and not os.geteuid():
    os.setuid(65534)
before = os.getpriority(os.PRIO_PROCESS, 0)
tasks = set(TASKS.iterdir())
reader = Reader()
reader._sockets = _core.Sockets()
(thread,) = set(TASKS.iterdir()) - tasks
print(
    json.dumps(
        {
            "before": before,
            "loop": os.getpriority(os.PRIO_PROCESS, os.getpid()),
            "thread": os.getpriority(os.PRIO_PROCESS, int(thread.name)),
            "is_first": os.sched_getscheduler(int(thread.name)) == os.SCHED_FIFO,
            "recorded": reader.priority,
        }
    )
)
