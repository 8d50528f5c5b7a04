"""A fast model's short answer beside the large model's long one.

locust -f locustfiles/progressive.py --headless -u 1 -t 20s --scenario scenarios/progressive.toml
"""

from tailgauge.locust_app.users import Traffic


class Progressive(Traffic):
    """The scenario decides models, sizes and targets; this is its default."""

    scenario = "progressive"
