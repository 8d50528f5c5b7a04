"""The first chunks of a run's answers beside the simulated endpoint's own log of when it wrote them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from run_folders.run_data import RunData

CLOSE_MS = 3.0  # to the server log, at p99 of exactly stamped first chunks


@dataclass(frozen=True)
class Firsts:
    """First chunks of a run's answers: the time to each since sent, as reported and as it was, in ms."""

    reported: Any
    logged: Any
    low: Any  # NaN where it is exact
    exact: Any

    @classmethod
    def of(cls, run: RunData) -> Firsts:
        attempts = run.attempts()
        server_log = run.table("target")[["request_id", "leg", "attempt", "chunk_sent_at_ns"]]
        rows = attempts.merge(
            server_log, on=["request_id", "leg", "attempt"], validate="one_to_one"
        )
        rows = rows[rows.first_content_at_ns.notna()]
        written = rows.chunk_sent_at_ns.map(lambda sent: sent[0])
        reported, logged, low = (
            ((at - rows.sent_at_ns) / 1e6).to_numpy(np.float64)
            for at in (rows.first_content_at_ns, written, rows.first_content_low_at_ns)
        )
        return cls(reported, logged, low, np.isnan(low))

    @property
    def error_ms(self) -> float:
        """Of the p99 over exact stamps, and of no exact stamp's own p99 less."""
        reported, logged = self.reported[self.exact], self.logged[self.exact]
        of_p99 = abs(np.quantile(reported, 0.99) - np.quantile(logged, 0.99))
        return float(max(of_p99, np.quantile(np.abs(reported - logged), 0.99)))

    @property
    def contained(self) -> float:
        """Share of the intervals that contain the logged time."""
        low, logged, reported = (one[~self.exact] for one in (self.low, self.logged, self.reported))
        return float(((low < logged) & (logged <= reported)).mean()) if len(low) else 1.0

    def __str__(self) -> str:
        return (
            f"{self.exact.sum()} of {len(self.reported)} first chunks exact ({self.exact.mean():.1%}), their p99 within "
            f"{self.error_ms:.3f} ms of the server log; {self.contained:.1%} of the intervals contain it"
        )
