"""Calls over one cached text, with planted usage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from tailgauge_analysis.sections.cache.calls import calls, settings

S = 1_000_000_000
REAL = {
    "target": {"simulated": False},
    "scenario": {},
    "started_at": "2026-11-21T07:47:22Z",
    "scenario_file": "",
}
NO_VALUE = dict.fromkeys((
    "cache_since_use_ns", "cache_blocks", "first_difference", "cache_creation_5m_input_tokens", "cache_creation_1h_input_tokens",
    "reader_paused_ns", "cache_missed_input_tokens",
), np.nan)  # fmt: skip


def rows(*of_calls: tuple[float, int, int, dict[str, Any]], between_ns: int = 0) -> pd.DataFrame:
    """Calls in the order of their sending: (second, read, created, other columns)."""
    out = []
    for number, (at_s, read, created, more) in enumerate(of_calls):
        sent = at_s * S
        out.append({
            **NO_VALUE, "worker": 0, "request_id": number, "leg": 0, "attempt": 0, "stage": "steady", "traffic": "main",
            "target": "main", "ended": "ok", "model": "m", "asked_model": "m", "sent_at_ns": sent,
            "first_content_at_ns": sent + 0.2 * S, "ended_at_ns": sent + 0.5 * S, "input_tokens": 10.0,
            "cache_read_input_tokens": float(read), "cache_creation_input_tokens": float(created), "output_tokens": 5.0,
            "prefix": 0.0, "prefix_hash": "a", "params_hash": "p", "cache_expected": "unknown", "cache_writers": 0.0,
            "cache_marks": 1.0, "cache_ttl": "5m", "connection_is_new": False, "cache_miss_reason": None, **more,
        })  # fmt: skip
    return calls(SimpleNamespace(attempts=pd.DataFrame(out)), settings(REAL), between_ns)
