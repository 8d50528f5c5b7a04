"""Hedging: a second copy of a call without content.

locust -f locustfiles/hedged.py --headless --set traffic.chat.hedge.policy=adaptive
"""

from tailgauge.locust_app.users import Traffic


class Hedged(Traffic):
    """Default scenario; it sets policy, delay and budget."""

    scenario = "hedged"
