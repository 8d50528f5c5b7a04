"""Streams that are cut and resumed by the id of the last event.

locust -f locustfiles/resume.py --headless -u 1 -t 20s --scenario scenarios/resume.toml
"""

from tailgauge.locust_app.users import Traffic


class Resume(Traffic):
    """Default scenario; it sets when streams are cut."""

    scenario = "resume"
