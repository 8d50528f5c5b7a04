"""The legs of a traffic table's requests as arrays: when each began, when it was over, and how. The section is in section.py.

Arrays have a row per request, in order of scheduled time, and a column per leg. The time of a leg is from the first byte
sent of its first attempt to the last content of the attempt that answered: retries and hedges are included, waiting for a
free slot before it, and what follows the content, are not. NaN where the leg got no answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import LEFT, whole_at_ns
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.stats.quantiles import Floats, Ints, Mask
from tailgauge_analysis.text.json_values import Json, table, tables

ALL = "all"
SEQUENTIAL = "sequential"


@dataclass(frozen=True, slots=True)
class Legs:
    """One traffic table's legs; times in ms, `began_ms` and `ended_ms` since scheduled."""

    traffic: str
    settings: Json  # its table [traffic.NAME.fan_out]
    requests: pd.DataFrame
    kinds: Ints  # of each leg, from 0
    began_ms: Floats
    ended_ms: Floats
    times_ms: Floats
    failed: Mask  # sent, not answered, and not closed by us
    closed: Mask  # closed at the join, or still open at the end
    retries: int
    copies: int

    @property
    def join(self) -> str:
        """Return all, first_k or deadline."""
        return str(self.settings.get("join", ALL))

    @property
    def is_sequential(self) -> bool:
        """Return whether legs run one after the other."""
        return self.settings.get("order") == SEQUENTIAL

    @property
    def is_bounded(self) -> bool:
        """Return whether the legs at once are limited."""
        limits = (self.settings.get("at_once"), self.settings.get("at_once_per_worker"))
        return limits != (None, None)

    @property
    def ok(self) -> Mask:
        """Return which requests have a complete answer."""
        return self.requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)

    @property
    def complete(self) -> Mask:
        """Return which requests have a complete answer of every leg."""
        return self.ok & ~np.isnan(self.times_ms).any(axis=1)


def legs(scenario: Json, steady: Steady) -> list[Legs]:
    """Return every traffic table with fan-outs, by name."""
    traffic = tables(scenario, "traffic")
    requests = steady.requests[steady.requests["answer"] == schema.JOIN]
    by_name = dict(iter(steady.attempts.groupby("traffic", observed=True)))
    fan_outs = []
    for name, rows in requests.groupby("traffic", observed=True):
        if name in by_name:
            settings = table(traffic.get(str(name)), "fan_out")
            fan_outs.append(_legs(str(name), settings, rows.reset_index(drop=True), by_name[name]))
    return fan_outs


def _legs(name: str, settings: Json, requests: pd.DataFrame, attempts: pd.DataFrame) -> Legs:
    """Return the legs of one traffic table as arrays with a row per request and a column per leg.

    `requests`: its rows, numbered from 0, in order of scheduled time. `attempts`: those of its traffic. A leg began with the
    first byte of its first attempt, and is over with the last content of the attempt that answered; NaN without one.
    """
    attempts = attempts[attempts["request_id"].isin(requests["request_id"])]
    leg_count = 0
    if len(attempts):
        leg_count = int(attempts["leg"].max()) + 1
    # One for each leg of the scenario, also of legs that no request sent.
    kinds = _kinds(settings, leg_count)
    # The place of each attempt in the arrays read row by row.
    request_row = pd.Index(requests["request_id"]).get_indexer(attempts["request_id"])
    cell = request_row * len(kinds) + attempts["leg"].to_numpy(np.int64)
    ended = attempts["ended"]
    is_answered = ended.isin(schema.WITH_ANSWER).to_numpy(np.bool_)
    is_closed = ended.isin(LEFT).to_numpy(np.bool_)
    scheduled_ns = requests["scheduled_at_ns"].to_numpy(np.float64)[:, None]
    began_ns, finished_ns = np.full((2, len(requests), len(kinds)), np.nan)
    # Several attempts may belong to one leg: the earliest sending, the latest content.
    np.fmin.at(began_ns.ravel(), cell, attempts["sent_at_ns"].to_numpy(np.float64))
    np.fmax.at(
        finished_ns.ravel(),
        cell[is_answered],
        whole_at_ns(attempts)[is_answered].to_numpy(np.float64),
    )
    was_sent, was_closed = np.zeros((2, len(requests), len(kinds)), np.bool_)
    was_sent.flat[cell] = was_closed.flat[cell[is_closed]] = True
    cause_counts = attempts["cause"].value_counts()
    return Legs(
        traffic=name,
        settings=settings,
        requests=requests,
        kinds=kinds,
        began_ms=(began_ns - scheduled_ns) / 1e6,
        ended_ms=(finished_ns - scheduled_ns) / 1e6,
        times_ms=(finished_ns - began_ns) / 1e6,
        failed=was_sent & np.isnan(finished_ns) & ~was_closed,
        closed=was_closed & np.isnan(finished_ns),
        retries=int(cause_counts.get(schema.RETRY, 0)),
        copies=int(cause_counts.get(schema.HEDGE, 0)),
    )


def _kinds(settings: Json, leg_count: int) -> Ints:
    """Return the kind of each leg, as the scenario lists them; one kind without it."""
    listed = settings.get("kinds") or []
    counts = [int(kind.get("count", 1)) for kind in listed]
    if not counts:
        counts = [int(settings.get("legs") or leg_count)]
    kinds = np.repeat(np.arange(len(counts)), counts)
    if len(kinds) >= leg_count:
        return kinds
    return np.zeros(leg_count, np.int64)
