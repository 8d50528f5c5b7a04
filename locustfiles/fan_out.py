"""Fan-out: several calls that make up one request.

locust -f locustfiles/fan_out.py --headless --set traffic.search.fan_out.at_once=3
"""

from tailgauge.locust_app.users import Traffic


class FanOut(Traffic):
    """Default scenario; it sets legs, join and limits."""

    scenario = "fan_out"
