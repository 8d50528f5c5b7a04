"""What a row makes of the Server-Timing header."""

from __future__ import annotations

import json

import pytest

from tailgauge.worker.attempt_row import _phases


class Result:
    """What the phases look at of an exchange."""

    def __init__(self, *headers: bytes) -> None:
        self.sent_at_ns = 1000
        self.headers = [(b"Server-Timing", header) for header in headers]

    def header(self, name: bytes) -> bytes:
        return next((value for key, value in self.headers if key.lower() == name), b"")


class Decoded:
    """What the phases look at of a decoder."""

    def __init__(self, **phases: int) -> None:
        self.phases = phases


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([b"db;dur=53.2"], {"db;dur": 53_200_000}),
        ([b'db;desc="a, b; dur=9";dur=53.2, cache ; DUR = "2" , miss'], {"db;dur": 53_200_000, "cache;dur": 2_000_000}),
        ([b"a;dur=1", b"b;dur=2"], {"a;dur": 1_000_000, "b;dur": 2_000_000}),
        ([b"a;dur=", b"b;dur=x", b"c;dur=-1", b"d;dur=1e99", b"e;dur=nan", b";;;,,,", b'"', b""], None),
    ],
)  # fmt: skip
def test_durations_of_the_header_are_nanoseconds(headers, expected):
    facts = _phases(Result(*headers), Decoded())

    assert (facts and json.loads(facts)) == expected


def test_a_phase_begins_at_a_time_since_sent():
    assert json.loads(_phases(Result(), Decoded(retrieval=1500)) or "") == {"retrieval": 500}
