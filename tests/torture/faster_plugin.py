"""Takes part in every tortured run: what a worker and Locust do every few seconds happens within its two seconds."""

import sys

PATTERNS: list[type] = []

if "run" in sys.argv[1:2]:  # else Locust would be imported into the report's process, too
    from locust import runners

    from tailgauge.worker import housekeeping

    runners.CPU_MONITOR_INTERVAL = 1.0
    housekeeping.FLUSH_EVERY = 1
