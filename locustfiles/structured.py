"""Structured output: JSON by a schema, in one call or two.

locust -f locustfiles/structured.py --headless --scenario scenarios/structured_two_calls.toml
"""

from tailgauge.locust_app.users import Traffic


class Structured(Traffic):
    """Default scenario; it sets number and size of calls."""

    scenario = "structured"
