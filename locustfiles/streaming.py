"""Streaming chat: one streamed call a request.

locust -f locustfiles/streaming.py --headless -u 1 -t 20s --scenario scenarios/quickstart.toml
"""

from tailgauge.locust_app.users import Traffic


class Streaming(Traffic):
    """The scenario decides rate, sizes and target; this is its default."""

    scenario = "streaming"
