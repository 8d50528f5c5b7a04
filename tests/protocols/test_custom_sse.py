"""Where the jobs of an application are called: never on another host, which would get the key."""

import pytest

from tailgauge.protocols.custom_sse import CustomSse
from tailgauge.protocols.table import Target


@pytest.mark.parametrize(
    ("job", "url"),
    [
        ("/v1/jobs/7", "http://app:8000/v1/jobs/7"),
        ("http://app:8000/v1/jobs/7?x=1", "http://app:8000/v1/jobs/7?x=1"),
        ("job_7", "http://app:8000/base/ask/job_7"),  # a name stands below the path of the calls
    ],
)
def test_a_job_is_where_the_target_says(job, url):
    wire = CustomSse(Target(protocol="sse", sse={"path": "/ask"}), "http://app:8000/base")

    assert wire._job_url("http://app:8000/base/", job) == url


@pytest.mark.parametrize(
    "job", ["http://evil/7", "https://app:8000/7", "//evil/7", "http://app:9/7", "http://x@app:8000/7"]
)
def test_a_job_on_another_host_is_never_called(job):
    wire = CustomSse(Target(protocol="sse"), "http://app:8000")

    with pytest.raises(ValueError, match="another host"):
        wire._job_url("http://app:8000", job)
