"""Attempts with planted outcomes, as the loader would hand them over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.verdict.clocks import Clocks

ONE_CLOCK = Clocks({}, ())
ROUND_TRIP_NS = 50_000_000
TEXTS = (  # columns of text that are null
    "usage_marks", "fallback", "iterations", "service_tier", "speed", "inference_geo", "stop_reason", "stop_details",
    "error_class", "tolerated", "not_understood", "cache_miss_reason", "retry_after_from",
)  # fmt: skip


def calls(
    n: int, *, every_s: float = 0.1, at_s: Any = None, refused: Any = (), message: str | None = None,
    limit_kind: str | None = "unknown", input_tokens: float = np.nan, retry_after_s: float = np.nan, **columns: Any,
) -> pd.DataFrame:  # fmt: skip
    """`n` requests of one attempt; those of `refused` got a 429. `columns` are whole columns."""
    at = np.arange(n) * every_s if at_s is None else np.asarray(at_s, np.float64)
    output = np.isin(np.arange(n), list(refused))
    sent = np.round(at * 1e9)
    frame = pd.DataFrame({
        "request_id": np.arange(n) * 65536, "leg": 0, "attempt": 0, "cause": "primary", "stage": "steady",
        "traffic": "chat", "scheduled_at_ns": sent, "dispatched_at_ns": sent, "sent_at_ns": sent,
        "headers_at_ns": sent + ROUND_TRIP_NS, "ended_at_ns": sent + ROUND_TRIP_NS,
        "first_content_at_ns": np.where(output, np.nan, sent + ROUND_TRIP_NS),
        "last_content_at_ns": np.where(output, np.nan, sent + ROUND_TRIP_NS),
        "ended": np.where(output, "rate_limited", "ok"), "status": np.where(output, 429.0, 200.0),
        "error_type": pd.Series([None] * n, dtype="str"),
        "error_body": pd.Series(np.where(output, message, None) if message is not None else [None] * n, dtype="str"),
        "limit_kind": pd.Series(np.where(output, limit_kind, None) if limit_kind is not None else [None] * n, dtype="str"),
        "retry_after_s": np.where(output, retry_after_s, np.nan), "target": "main", "asked_model": "tiny",
        "input_tokens": np.where(output, np.nan, input_tokens), "cache_creation_input_tokens": np.nan,
        "cache_read_input_tokens": np.nan, "output_tokens": np.where(output, np.nan, 4.0),
        **dict.fromkeys(TEXTS, pd.Series([None] * n, dtype="str")),
    })  # fmt: skip
    return frame.assign(**columns)


def run_of(frames: Frames, clocks: Clocks = ONE_CLOCK) -> Any:
    """What a section asks of a run of these frames."""
    return SimpleNamespace(frames=frames, record=frames.run, clocks=clocks)


def frames_of(attempts: pd.DataFrame, scenario: dict[str, Any] | None = None) -> Frames:
    """A run of these attempts; a request ended as its last attempt did."""
    last = attempts.sort_values("sent_at_ns").drop_duplicates("request_id", keep="last")
    requests = last[["request_id", "stage", "traffic", "scheduled_at_ns", "ended"]].assign(
        asked_output_tokens=4
    )
    run = {"dry_run": True, "start_at_ns": 0, "started_at": None, "scenario": scenario or {}}
    nothing = pd.DataFrame()
    return Frames(run, requests, attempts, nothing, nothing, nothing, {}, ())
