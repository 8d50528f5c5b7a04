"""What requests have in common, so that their latencies may be alike: each a grouping of stats/dependence.py.

Of one session or user, whose requests follow each other; of one prompt or prefix; of one tag, target or worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import first_attempts
from tailgauge_analysis.stats.dependence import Grouping
from tailgauge_analysis.stats.quantiles import REQUEST
from tailgauge_analysis.text.json_values import parsed

SESSION = "session"
USER = "user"
PREFIX = "prefix"
PROMPT = "prompt"
TARGET = "target"
WORKER = "worker"
TAG = "tag"


def groupings(
    requests: pd.DataFrame, attempts: pd.DataFrame, *, is_closed: bool
) -> tuple[Grouping, ...]:
    """Return the groupings of requests in which a group has more than one; `is_closed`: their arrivals are users."""
    arrivals = requests["request_id"] // schema.TURNS
    of_arrivals = _grouping(USER if is_closed else SESSION, arrivals, follows_by_construction=True)
    primary = first_attempts(attempts)[["prefix", "target"]].reindex(requests["request_id"])
    prefix = primary["prefix"].to_numpy(np.float64)
    tables, _ = pd.factorize(requests["traffic"])
    prefixes = pd.Series(tables * 2.0**32 + prefix)
    every = [
        of_arrivals,
        _grouping(PREFIX, prefixes),
        _grouping(PROMPT, requests["name"]),
        _grouping(TARGET, primary["target"]),
        _grouping(WORKER, requests["worker"]),
        *_tags(requests["tags"]),
    ]
    return tuple(grouping for grouping in every if grouping.clusters is not None)


def of_attempts(attempts: pd.DataFrame) -> tuple[Grouping, ...]:
    """Return the groupings of attempts: those of one request, and those of one session or user."""
    ids = attempts["request_id"]
    every = (
        _grouping(REQUEST, ids, follows_by_construction=True),
        _grouping(SESSION, ids // schema.TURNS, follows_by_construction=True),
    )
    return tuple(grouping for grouping in every if grouping.clusters is not None)


def _grouping(name: str, labels: pd.Series, *, follows_by_construction: bool = False) -> Grouping:
    codes, _ = pd.factorize(labels)
    return Grouping(name, codes.astype(np.int64), follows_by_construction)


def _tags(tags: pd.Series[Any]) -> Iterator[Grouping]:
    """Yield a grouping for each key of the tags."""
    codes, texts = pd.factorize(tags)
    parsed_tags = [parsed(text) for text in texts]
    names: set[str] = set()
    for tag_values in parsed_tags:
        names.update(tag_values)
    for name in sorted(names):
        labels = pd.Series(
            [tag_values.get(name) for tag_values in parsed_tags] + [None], dtype=object
        )
        yield _grouping(f"{TAG} {name}", labels.astype(str).where(labels.notna()).iloc[codes])
