"""How late requests leave, from logs whose lateness is known; the native client replays arrivals."""

import dataclasses
import os

import numpy as np
import pytest

MS, SECOND = 1_000_000, 1_000_000_000


@pytest.fixture
def log():
    """The server's log of 100 requests, 10 ms apart, each 1 ms late, the last one 8 ms."""
    from reference_server import RequestLog

    began_ns = SECOND + np.arange(100) * 10 * MS + 1 * MS
    began_ns[-1] += 7 * MS
    return RequestLog(np.arange(100), began_ns, np.ones(100, np.int64), began_ns + 50 * MS)


def due(numbers):
    from sending import Due

    return Due(len(numbers), numbers, SECOND + numbers * 10 * MS, "VALID")


def test_lateness_is_of_the_requests_that_count(log):
    from sending import lateness

    sent = lateness(due(np.arange(100)), log)

    assert (sent.p50, sent.p99, sent.latest, sent.requests, sent.verdict) == (
        1.0,
        1.0,
        8.0,
        100,
        "VALID",
    )
    assert lateness(due(np.arange(50)), log).latest == 1.0


def test_a_request_that_did_not_come_is_counted(log):
    from reference_server import RigError
    from sending import lateness

    sent = lateness(due(np.arange(103)), log)

    assert (sent.requests, sent.planned) == (100, 103)
    with pytest.raises(RigError, match="none of 5 requests came"):
        lateness(due(np.arange(200, 205)), log)


def test_a_herd_of_which_some_never_left_has_no_time():
    """A client that drops what is late would look fast."""
    import sending

    native = [sending.Sent(1.0, 2.0, 20.0, 2000, 2000, "")]
    ours = [sending.Sent(1.0, 2.0, 5.0, 512, 2000, "INVALID")]

    rows = sending._herd_rows(2000, {"reference": native, "tailgauge": ours})

    assert rows[1] == "| 2,000 | Tailgauge | - | - | 512 of 2,000 | INVALID 1 |"


@pytest.mark.slow
def test_the_native_client_sends_no_request_before_it_is_due(cc, monkeypatch):
    import sending

    monkeypatch.setattr(sending, "HERD_AT_S", sending.WARMUP_S)
    herd = sending.run("reference", sending.herd(40))
    poisson = sending.run("reference", sending.poisson(100.0, 2, 0.5))

    assert (herd.requests, herd.verdict) == (40, "")
    assert 20 < poisson.requests < 90
    assert herd.p50 > 0
    assert poisson.p50 > 0


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="server and client need a core each")
def test_ours_replays_a_herd_at_one_instant(cc):
    import sending

    sent = sending.run("tailgauge", sending.herd(30))

    assert sent.requests == sent.planned == 30
    assert sent.p50 > 0


def test_the_page_has_ratios_within_a_repetition():
    import sending
    from measure import Result

    fast = [sending.Sent(0.1, 0.2, latest, 10, 10, "") for latest in (10.0, 40.0, 20.0)]
    slow = [sending.Sent(0.2, 0.4, latest, 10, 10, "VALID") for latest in (20.0, 40.0, 60.0)]
    runs = {"reference": fast, "tailgauge": slow}
    native = Result(**{**dict.fromkeys(Result.__dataclass_fields__, 0.5), "rate": 30_000.0})
    closed = {"reference": [native], "tailgauge": [dataclasses.replace(native, rate=15_000.0)]}

    text = sending.page({"400/s, 1 chunk": runs}, {2000: runs}, closed, 3)

    assert "| 400/s, 1 chunk | VALID 3 | 0.400 | 40.000 | 0.200 | 20.000 |" in text
    assert "| 2,000 | C reference | 20.0 | 1.00 | 10 | - |" in text
    assert "| 2,000 | Tailgauge | 40.0 | 2.00 | 10 | VALID 3 |" in text
    assert "| 64 | Tailgauge | 15,000 | 0.50 | 50% | 50% |" in text
