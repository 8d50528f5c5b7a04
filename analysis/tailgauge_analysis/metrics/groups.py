"""Groups: the same figures for each kind of request, by traffic table, by prompt and by tag.

Steady stage, offered view, the same estimators as the whole. A group without any value is left out. Slow readers are separate
groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import OFFERED, Row, row
from tailgauge_analysis.metrics.metrics import BY_NAME
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.proportions import Proportion, proportion
from tailgauge_analysis.stats.quantiles import Mask
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import parsed

PS = (0.5, 0.95, 0.99)
METRICS = ("ttft_sched", "e2e_sched", "join_sched", "turnaround")
MOST = 20
TRAFFIC, NAME, TAG, SLOW = "traffic", "name", "tag", "slow reader"


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that have something in common."""

    by: str
    name: str
    pattern: str
    requests: int
    ok: Proportion
    cancelled: int
    latency: tuple[Row, ...]


def groups(steady: Steady) -> tuple[list[Group], int]:
    """The groups worth a row, and how many smaller ones are not shown."""
    masks = list(_masks(steady))
    shown, hidden = list[Group](), 0
    for by in (TRAFFIC, SLOW, NAME, TAG):
        of = sorted((m for m in masks if m[0] == by), key=lambda m: -int(m[2].sum()))
        shown += [_group(steady, *mask) for mask in of[:MOST]]
        hidden += len(of[MOST:])
    return shown, hidden


def _masks(steady: Steady) -> Iterator[tuple[str, str, Mask]]:
    """Kind of group, its name, and which requests are in it."""
    requests = steady.requests
    slow = requests["slow_reader"].to_numpy(np.bool_)
    for by, column in ((TRAFFIC, "traffic"), (NAME, "name")):
        codes, names = pd.factorize(requests[column])  # -1 where there is none
        for code, name in enumerate(names):
            of = codes == code
            if (of & ~slow).any():
                yield by, plain(str(name), 80), of & ~slow
            if by == TRAFFIC and (of & slow).any():
                yield SLOW, plain(str(name), 80), of & slow
    codes, texts = pd.factorize(requests["tags"])
    by_tag: dict[str, Mask] = {}
    for code, text in enumerate(texts):
        for key, value in parsed(text).items():
            tag = plain(f"{key} = {value}", 80)
            of = (codes == code) & ~slow
            by_tag[tag] = by_tag[tag] | of if tag in by_tag else of
    yield from ((TAG, tag, of) for tag, of in by_tag.items() if of.any())


def _group(steady: Steady, by: str, name: str, mask: Mask) -> Group:
    part = steady.only(mask, gaps=False)  # none of METRICS is of gaps
    ended = part.requests["ended"]
    rows = (row(BY_NAME[metric], part, OFFERED, PS) for metric in METRICS)
    return Group(
        by=by,
        name=name,
        pattern=", ".join(sorted({str(p) for p in part.requests["pattern"].unique()})),
        requests=len(ended),
        ok=proportion((ended == schema.OK).to_numpy(np.bool_)),
        cancelled=int((ended == schema.CANCELLED).sum()),
        latency=tuple(found for found in rows if found.n),
    )
