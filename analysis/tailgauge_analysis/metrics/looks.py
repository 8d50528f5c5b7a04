"""Looks at a run that goes on: what its rows say of the objectives that ask for a precision, as its report would."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tailgauge.rows import schema
from tailgauge_analysis.metrics import slo
from tailgauge_analysis.metrics.precision import is_known, sentence
from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import Frames, load
from tailgauge_analysis.stats.quantiles import at_level


def answers(folder: Path, lines: Iterable[str]) -> Iterator[str]:
    """An answer to each line, which has the values of run.json that a look changes; both as JSON."""
    for line in lines:
        look = json.loads(line)
        with at_level(look["precision"]["confidence"]):
            yield json.dumps(_look(load([folder], look), look["precision"]["requests"]))


def _look(frames: Frames, requests: int) -> dict[str, Any]:
    """What is known of the first so many requests, a text for each objective; none while rows of theirs are missing."""
    rows, calls = frames.requests, frames.attempts
    rows = rows[rows["request_id"].between(0, requests * schema.TURNS - 1)]
    made = calls["request_id"].isin(rows["request_id"]).sum()
    missing = requests - len(rows), rows["attempts"].sum() - made, calls["chunks"].sum() - len(frames.chunks)
    if max(missing) > 0:  # a worker writes the tables of a batch one after the other
        return {"known": False, "texts": []}
    stage, known, texts = steady(frames).of_target, True, []
    for one in slo.criteria(frames.run["scenario"]):
        asked = one.objective.precision
        if asked is not None:
            part = one.part(stage)
            q = one.row(part).quantiles[0]
            known &= is_known(q, asked)
            texts.append(f"{one.objective.label} {sentence(q, asked, part, is_over=False)}")
    return {"known": known, "texts": texts}
