"""The client's benchmark as a user starts it, in its short form."""

import os
import re

import pytest


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="server and client need a core each")
def test_the_short_form_compares_our_client_with_the_native_one(cc, full_size, command, checkout):
    if not full_size:
        pytest.skip("two minutes of load: make verify")
    done = command(["python", checkout / "bench" / "client.py", "--quick"], timeout_s=300)

    assert done.returncode == 0, done.stderr
    rows = re.findall(
        r"\| (50|500) \| (C reference|Tailgauge, kernel stamps) \| [\d,]+ \| ([\d.]+) ", done.stdout
    )
    cost = {(int(streams), name): float(us) for streams, name, us in rows}
    assert len(cost) == 4
    for streams in (50, 500):
        assert cost[streams, "C reference"] < cost[streams, "Tailgauge, kernel stamps"]
