"""The metrics, one row each.

Rule: a metric is a row of METRICS and nothing else: its name, unit, meaning in words, what it needs, from when its
clock runs, and the function that computes it. The tables, the SLOs and docs/metrics.md are read from these rows.

A function maps the steady stage to nanoseconds, NaN where there is no value: one a request for the level `request`,
one a new connection for `attempt`, one a pair of chunks for `chunk`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tailgauge import records
from tailgauge_analysis.quantiles import Floats
from tailgauge_analysis.steady import Steady

SCHEDULED = "scheduled"
SENT = "sent"
NEITHER = "neither"

REQUEST = "request"
ATTEMPT = "attempt"
CHUNK = "chunk"

UNIT = "ms"


@dataclass(frozen=True, slots=True)
class Metric:
    """One latency. `offered`: also counted with every request that got no answer as slower than any."""

    name: str
    title: str
    since: str
    level: str
    offered: bool
    formula: str
    needs: tuple[str, ...]
    meaning: str
    ns: Callable[[Steady], Floats]
    unit: str = UNIT


def _between(start: str, end: str) -> Callable[[Steady], Floats]:
    """Time from one event of a request to another."""

    def ns(steady: Steady) -> Floats:
        return (steady.requests[end] - steady.requests[start]).to_numpy(np.float64)

    return ns


def _tpot(steady: Steady) -> Floats:
    answers = steady.requests
    tokens = answers["output_tokens"].where(answers["output_tokens"] >= 2)
    spread = answers["last_content_at_ns"] - answers["first_content_at_ns"]
    return (spread / (tokens - 1)).to_numpy(np.float64)


def _connect(steady: Steady) -> Floats:
    new = steady.attempts[steady.attempts["connection_is_new"].astype(bool)]
    return new[["dns_ns", "connect_ns", "tls_ns"]].sum(axis=1, min_count=1).to_numpy(np.float64)


METRICS = (
    Metric(
        "ttft_sched", "TTFT since scheduled", SCHEDULED, REQUEST, True,
        "first content - scheduled",
        ("requests.scheduled_at_ns", "attempts.first_content_at_ns", "attempts.first_text_at_ns"),
        "What a user waits for the first content (with `[report] first_token = \"text\"`: the first text), "
        "the wait before sending included.",
        _between("scheduled_at_ns", "first_at_ns"),
    ),
    Metric(
        "ttft_sent", "TTFT since sent", SENT, REQUEST, True,
        "first content - sent",
        ("attempts.sent_at_ns", "attempts.first_content_at_ns", "attempts.first_text_at_ns"),
        "What the network and the target take to the first content of the attempt that answered.",
        _between("sent_at_ns", "first_at_ns"),
    ),
    Metric(
        "tpot", "TPOT", NEITHER, REQUEST, True,
        "(last content - first content) / (output tokens - 1)",
        ("attempts.first_content_at_ns", "attempts.last_content_at_ns", "attempts.output_tokens"),
        "Time per output token after the first. No value below 2 output tokens: n tokens have n - 1 gaps.",
        _tpot,
    ),
    Metric(
        "chunk_gap", "Chunk gap", NEITHER, CHUNK, False,
        "arrival of a content chunk - arrival of the one before, in one attempt",
        ("chunks.arrived_at_ns", "chunks.chunk_index"),
        "All gaps of all answers in one pool, so that long answers weigh more. A chunk is not a token.",
        lambda steady: steady.gaps_ns,
    ),
    Metric(
        "chunk_gap_worst", "Worst chunk gap", NEITHER, REQUEST, True,
        "largest chunk gap of the request's answer",
        ("chunks.arrived_at_ns", "chunks.chunk_index"),
        "The longest pause that a reader of the answer sees. No value below 2 chunks.",
        lambda steady: steady.requests["worst_gap_ns"].to_numpy(np.float64),
    ),
    Metric(
        "e2e_sched", "End to end since scheduled", SCHEDULED, REQUEST, True,
        "last content - scheduled",
        ("requests.scheduled_at_ns", "attempts.last_content_at_ns"),
        "What a user waits for the whole answer. Usage events after the last content do not extend it.",
        _between("scheduled_at_ns", "last_content_at_ns"),
    ),
    Metric(
        "e2e_sent", "End to end since sent", SENT, REQUEST, True,
        "last content - sent",
        ("attempts.sent_at_ns", "attempts.last_content_at_ns"),
        "What the network and the target take for the whole answer.",
        _between("sent_at_ns", "last_content_at_ns"),
    ),
    Metric(
        "client_delay", "Client delay", SCHEDULED, REQUEST, False,
        "sent (first attempt) - scheduled",
        ("requests.scheduled_at_ns", "attempts.sent_at_ns"),
        "What the harness itself adds: late dispatch, and opening a connection where none was idle. "
        "Of every request that was sent, however it ended.",
        _between("scheduled_at_ns", "first_sent_at_ns"),
    ),
    Metric(
        "connect", "Opening a connection", NEITHER, ATTEMPT, False,
        "name look-up + TCP connect + TLS handshake",
        ("attempts.connection_is_new", "attempts.dns_ns", "attempts.connect_ns", "attempts.tls_ns"),
        "Of the attempts that opened a connection; the others reused one.",
        _connect,
    ),
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in METRICS}


def failed(steady: Steady) -> Floats:
    """+inf for each request that got no answer, else NaN: what the offered view puts in place of a value."""
    return np.where(steady.requests["ended"] == records.OK, np.nan, np.inf)
