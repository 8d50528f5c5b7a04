"""A short answer of a fast model, then the long one of a large model.

locust -f locustfiles/progressive.py --headless --scenario scenarios/progressive.toml
"""

from tailgauge.locust_app.users import Traffic


class Progressive(Traffic):
    """Default scenario; it sets models, sizes and targets."""

    scenario = "progressive"
