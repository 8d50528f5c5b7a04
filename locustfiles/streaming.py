"""Streaming chat: one streamed call per request. Sends any other scenario that --scenario names.

locust -f locustfiles/streaming.py --headless --scenario scenarios/structured.toml
"""

from tailgauge.locust_app.users import Traffic


class Streaming(Traffic):
    """Default scenario; it sets rate, sizes and target."""

    scenario = "streaming"
