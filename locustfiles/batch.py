"""Message batches: submitted, polled, fetched.

locust -f locustfiles/batch.py --headless --scenario scenarios/batch.toml
"""

from tailgauge.locust_app.users import Traffic


class Batch(Traffic):
    """Default scenario; it sets sizes and deadlines."""

    scenario = "batch"
