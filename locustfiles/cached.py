"""Prompt caching: calls that share a marked prefix of tools, system prompt and examples.

locust -f locustfiles/cached.py --headless --scenario scenarios/cached_multi_turn.toml
"""

from tailgauge.locust_app.users import Traffic


class Cached(Traffic):
    """Default scenario; it sets prefixes, marks and target."""

    scenario = "cached"
