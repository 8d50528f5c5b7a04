"""Jobs: submitted, polled, fetched.

locust -f locustfiles/job.py --headless --scenario scenarios/job.toml
"""

from tailgauge.locust_app.users import Traffic


class Job(Traffic):
    """Default scenario; it sets intervals and deadlines."""

    scenario = "job"
