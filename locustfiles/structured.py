"""Structured output: an answer with fields, in one call or in two.

locust -f locustfiles/structured.py --headless -u 1 -t 20s --scenario scenarios/structured_two_calls.toml
"""

from tailgauge.locust_app.users import Traffic


class Structured(Traffic):
    """The scenario decides how many calls and how large; this is its default."""

    scenario = "structured"
