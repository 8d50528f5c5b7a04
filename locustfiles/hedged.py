"""Hedging: a second copy of a call whose first content is late.

locust -f locustfiles/hedged.py --headless -u 1 -t 20s --scenario scenarios/hedged_adaptive.toml
"""

from tailgauge.locust_app.users import Traffic


class Hedged(Traffic):
    """The scenario decides policy, delay and budget; this is its default."""

    scenario = "hedged"
