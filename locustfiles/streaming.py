"""Streaming chat: one streamed call per request.

locust -f locustfiles/streaming.py --headless --scenario scenarios/quickstart.toml
"""

from tailgauge.locust_app.users import Traffic


class Streaming(Traffic):
    """Default scenario; it sets rate, sizes and target."""

    scenario = "streaming"
