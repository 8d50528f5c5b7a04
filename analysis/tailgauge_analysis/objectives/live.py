"""Looks at a run that goes on: are the latencies known to the precision that its objectives want?

What a look finds goes to the master, which may end the run. The precision of a quantile is judged in precision.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from tailgauge.rows import schema
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.objectives.objective import criteria
from tailgauge_analysis.objectives.precision import is_known, precision_text
from tailgauge_analysis.reading.frames import Frames, load
from tailgauge_analysis.stats.quantiles import at_level
from tailgauge_analysis.text.json_values import Json


def look_answers(folder: Path, lines: Iterable[str]) -> Iterator[str]:
    """Yield an answer to each line, which has the values of run.json that a look changes; both as JSON."""
    for line in lines:
        look = json.loads(line)
        with at_level(look["precision"]["confidence"]):
            yield json.dumps(_look(load([folder], look), look["precision"]["requests"]))


def _look(frames: Frames, requests: int) -> Json:
    """Return what is known of the first so many requests, a text for each objective; none while rows of theirs are missing."""
    if not _is_whole(frames, requests):
        return {"known": False, "texts": []}
    stage = steady(frames).without_slow_readers
    is_all_known = True
    texts = []
    for criterion in criteria(frames.run["scenario"]):
        precision = criterion.objective.precision
        if precision is not None:
            part = criterion.part(stage)
            estimate = criterion.row(part).quantiles[0]
            is_all_known &= is_known(estimate, precision)
            texts.append(
                f"{criterion.objective.label} {precision_text(estimate, precision, part, is_over=False)}"
            )
    return {"known": is_all_known, "texts": texts}


def _is_whole(frames: Frames, requests: int) -> bool:
    """Return whether each of the first requests is here with its attempts and chunks: a worker writes one table after the other."""
    rows = frames.requests
    rows = rows[rows["request_id"].between(0, requests * schema.TURNS - 1)]
    attempts = frames.attempts
    of_these = attempts["request_id"].isin(rows["request_id"]).sum()
    is_missing_attempts = rows["attempts"].sum() > of_these
    is_missing_chunks = attempts["chunks"].sum() > len(frames.chunks)
    return not (len(rows) < requests or is_missing_attempts or is_missing_chunks)
