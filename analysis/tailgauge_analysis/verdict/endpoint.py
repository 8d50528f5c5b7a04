"""Judge whether the simulated endpoint was late itself.

It logs when the first and the last chunk of a call were due and when it wrote them: by how much that moves a percentile is
its own slowness, not the client's, and not a setting.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge.thresholds import DEGRADED
from tailgauge_analysis.reading.frames import CALL
from tailgauge_analysis.stats.quantiles import TOO_FEW, quantiles
from tailgauge_analysis.text.formatting import ms, percentile
from tailgauge_analysis.verdict.client_error import allowed_ms
from tailgauge_analysis.verdict.verdict import Evidence, Fault

LEAST_MS = 2.0
FIGURES = {"first": "TTFT since sent", "last": "time to the last content"}
QUANTILES = (0.5, 0.99)


def has_log(evidence: Evidence) -> bool:
    """Return whether the target is the simulated endpoint, and its log is here."""
    return not evidence.frames.server_log.empty


def lateness(evidence: Evidence) -> Fault | None:
    """Return a fault if the lateness of the simulated endpoint moved a median or p99 by more than the limit, of the worst one.

    The times as measured are compared with what they would have been had each chunk been written when its log says that it
    was due. None without that log.
    """
    calls = _logged_calls(evidence)
    worst_excess = 1.0
    fault = None
    for event, title in FIGURES.items():
        took_ms = (calls[f"{event}_content_at_ns"] - calls["sent_at_ns"]) / 1e6
        late_ms = ((calls[f"{event}_chunk_sent_at_ns"] - calls[f"{event}_due_at_ns"]) / 1e6).clip(
            lower=0.0
        )
        as_due = quantiles((took_ms - late_ms).to_numpy(np.float64), QUANTILES)
        for measured, expected in zip(
            quantiles(took_ms.to_numpy(np.float64), QUANTILES), as_due, strict=True
        ):
            if measured.mark == TOO_FEW or measured.value is None or expected.value is None:
                continue
            moved_ms = measured.value - expected.value
            limit_ms = allowed_ms(measured, LEAST_MS)
            if moved_ms / limit_ms > worst_excess:
                worst_excess = moved_ms / limit_ms
                late = f"chunks up to {ms(late_ms.max())} ms after they were due"
                figure = f"{title} {percentile(measured.p)} ({ms(measured.value)} ms)"
                moved = f"{figure} by {ms(moved_ms)} ms ({ms(limit_ms)} ms is allowed)"
                text = (
                    f"Endpoint saturated: the simulated endpoint sent {late}, which moved {moved}."
                )
                fault = Fault(DEGRADED, text)
    return fault


def _logged_calls(evidence: Evidence) -> pd.DataFrame:
    """Attempts that answered, with what the endpoint's log has of them."""
    attempts = evidence.without_slow_readers.attempts
    answers = attempts[
        attempts["ended"].isin(schema.COMPLETE) & attempts["first_content_at_ns"].notna()
    ]
    columns = []
    for event in FIGURES:
        columns += [f"{event}_due_at_ns", f"{event}_chunk_sent_at_ns"]
    log = evidence.frames.server_log[[*CALL, *columns]].dropna(subset=[*CALL, "first_due_at_ns"])
    in_order = answers.sort_values("sent_at_ns", kind="stable")
    return in_order.merge(log.drop_duplicates([*CALL]), on=[*CALL])
