"""The section on answers that do not come over one connection: streams that were resumed, and jobs that were polled.

Steady stage. The time to resume runs from a cut to the first content after it that had not come before; connections without
content in between are a part of it. A cut after which none came, or whose stream was not resumed where it was cut, counts as
slower than any. A poll is wasted if it brought no news: neither the end of the job, nor its loss.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tailgauge.protocol_violations import DAMAGES
from tailgauge.rows import schema
from tailgauge_analysis.metrics.answers import by_request
from tailgauge_analysis.metrics.latency import within_polls
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.waiting import Groups, waiting
from tailgauge_analysis.stats.quantiles import TOO_FEW, Floats, Quantile, quantiles
from tailgauge_analysis.text.cells import quantile_cell, quantile_table, values_text
from tailgauge_analysis.text.formatting import count, plain, plural
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Card, Section, Table

KEY = "transports"
STREAMS = "streams"
JOBS = "jobs"
TIMES = {STREAMS: "time to resume", JOBS: "turnaround"}
DRAWN = {
    STREAMS: (
        "How long users waited for the whole answer",
        "Since scheduled; streams that broke off are slowest.",
    ),
    JOBS: (
        "Turnaround",
        "Since scheduled; a job ended between the two curves. Jobs that were lost are slowest.",
    ),
}
QUANTILES = (0.5, 0.95)
COMPLETE = "complete"
INCOMPLETE = "broken off"
FETCHED = "fetched"
NOT_FETCHED = "ended, not fetched"
WITHOUT_STATE = {schema.CANCELLED: "given up", schema.TIMEOUT: "past the deadline"}
NS_PER_MS = 1e6
LOST = {404: "lost (404)", 410: "dropped (410)"}
COMPUTED = (
    "The time to resume: from a cut to the first content that had not come before. Failures, and jobs that were given up, count as slower than any.",
    "A wasted poll brought no news of its job.",
    "A job ended between two polls: an interval of the turnaround begins where its jobs can have ended at the earliest.",
)
_NEVER = float("inf")
_CUT = (schema.CANCELLED, schema.TRUNCATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """The streams or the jobs of one traffic table. `outcomes` are requests, the most frequent first."""

    traffic: str
    kind: str
    """streams or jobs"""
    requests: int
    outcomes: dict[str, int]
    calls: int
    """reconnections, or polls"""
    wasted: int
    """of the polls, without news; 0 for streams"""
    times: list[Quantile]
    """time to resume, or turnaround, in ms"""
    groups: Groups = field(metadata=UNPUBLISHED)


def compute(run: Run) -> list[Transport]:
    """Return resumed streams and jobs by traffic table."""
    requests = run.without_slow_readers.requests
    attempts = run.without_slow_readers.attempts
    transports = []
    for answer, make in ((schema.PIECES, _streams), (schema.TURNAROUND, _jobs)):
        of_answer = requests[
            (requests["answer"] == answer) & (requests["ended"] != schema.CLIENT_DROP)
        ]
        for name, rows in of_answer.groupby("traffic"):
            calls = attempts[attempts["request_id"].isin(rows["request_id"])]
            transports.append(
                make(plain(str(name), 80), rows, calls.sort_values(["request_id", "attempt"]))
            )
    return transports


def _streams(name: str, requests: pd.DataFrame, attempts: pd.DataFrame) -> Transport:
    damage = by_request(attempts[attempts["error_type"].isin(DAMAGES)], "last")["error_type"]
    kinds = requests["request_id"].map(damage.map(DAMAGES))
    ok = requests["ended"].isin(schema.COMPLETE)
    rest = pd.Series(COMPLETE, requests.index).where(ok, INCOMPLETE)
    outcomes = _ordered(kinds.where(kinds.notna(), rest))
    resumed = int((attempts["cause"] == schema.RESUME).sum())
    times = quantiles(_resume_ns(attempts, set(damage.index)), QUANTILES)
    return Transport(
        traffic=name,
        kind=STREAMS,
        requests=len(requests),
        outcomes=outcomes,
        calls=resumed,
        wasted=0,
        times=times,
        groups=_by_cut(requests, attempts),
    )


def _by_cut(requests: pd.DataFrame, attempts: pd.DataFrame) -> Groups:
    """Return the waits for the whole answer of streams that were cut, and of the others."""
    cut = attempts.loc[attempts["cause"] == schema.RESUME, "request_id"]
    is_cut = requests["request_id"].isin(cut).to_numpy(np.bool_)
    is_complete = requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
    took_ms = (requests["whole_at_ns"] - requests["scheduled_at_ns"]).to_numpy(
        np.float64
    ) / NS_PER_MS
    waits_ms = np.where(is_complete, took_ms, _NEVER)
    return {"never cut": waits_ms[~is_cut], "resumed": waits_ms[is_cut]}


def _resume_ns(attempts: pd.DataFrame, damaged: set[int]) -> Floats:
    """Return of each cut after content the time to the next content, or to the end mark where nothing was left."""
    times: list[float] = []
    for request, rows in attempts.groupby("request_id", sort=False):
        of_request: list[float] = []
        cut_ns = None
        at_ns = None
        ended = ""
        calls = rows[["first_content_at_ns", "ended_at_ns", "ended"]].itertuples(index=False)
        for content, end, ended in calls:
            at_ns = None
            if pd.notna(content):
                at_ns = content
            elif ended in schema.COMPLETE:
                at_ns = end
            if at_ns is None:
                continue  # nothing came over this connection
            if cut_ns is not None:
                of_request.append(at_ns - cut_ns)
            cut_ns = end
        if request in damaged:
            of_request[-1:] = [_NEVER]
        elif cut_ns is not None and (at_ns is None or ended in _CUT):
            of_request.append(_NEVER)
        times += of_request
    return np.asarray(times, np.float64) / NS_PER_MS


def _jobs(name: str, requests: pd.DataFrame, attempts: pd.DataFrame) -> Transport:
    polls = attempts[attempts["cause"] == schema.POLL]
    last_polls = by_request(polls, "last")
    ended = by_request(polls[polls["stop_reason"].notna()], "last")
    states = ended["stop_reason"].to_dict()
    statuses = last_polls["status"].to_dict()
    classes = last_polls["ended"].to_dict()

    def outcome(job: int, end: str) -> str:
        if end in schema.COMPLETE:
            return FETCHED
        if job in states:
            if classes[job] not in schema.COMPLETE:
                return NOT_FETCHED
            return str(states[job])
        return LOST.get(statuses.get(job, 0)) or WITHOUT_STATE.get(end, end)

    outcomes = list(map(outcome, requests["request_id"], requests["ended"]))
    news = polls["stop_reason"].notna() | polls["status"].isin(LOST)
    fetched = polls["attempt"] > polls["request_id"].map(ended["attempt"])
    ok = requests["ended"].isin(schema.COMPLETE)
    took = (requests["ended_at_ns"] - requests["scheduled_at_ns"]).to_numpy(np.float64) / NS_PER_MS
    latest = np.where(ok, took, _NEVER)
    times = quantiles(latest, QUANTILES)
    groups = {"turnaround": latest}
    if "ended_low_at_ns" in requests:
        early = (
            requests["ended_low_at_ns"].fillna(requests["ended_at_ns"])
            - requests["scheduled_at_ns"]
        )
        earliest = np.where(ok, early.to_numpy(np.float64) / NS_PER_MS, _NEVER)
        groups = {"earliest end": earliest, "seen by a poll": latest}
        times = list(within_polls(times, quantiles(earliest, QUANTILES)))
    return Transport(
        traffic=name,
        kind=JOBS,
        requests=len(requests),
        outcomes=_ordered(pd.Series(outcomes)),
        calls=len(polls) - int(fetched.sum()),
        wasted=int((~news & ~fetched).sum()),
        times=times,
        groups=groups,
    )


def _ordered(outcomes: pd.Series[str]) -> dict[str, int]:
    counts = {}
    for name, n in Counter(outcomes).most_common():
        counts[plain(str(name), 60)] = n
    return counts


def section(transports: list[Transport]) -> Section | None:
    """Return what became of streams and jobs, and how long it took."""
    if not transports:
        return None
    columns = (
        ("traffic", lambda transport: transport.traffic),
        ("outcomes", _outcomes),
        ("calls", _calls),
        ("wasted polls per job", _wasted),
    )
    answers = []
    times = []
    for transport in transports:
        answers.append(f"{transport.traffic}: {_outcomes(transport)}.")
        times.append((f"{transport.traffic}: {TIMES[transport.kind]}", transport.times))
    main = _main(transports)
    return Section(
        name="transport",
        title="Resumed streams and jobs",
        answer=" ".join(answers),
        tables=(Table.of("", transports, columns, prose=(1, 2)), quantile_table("", "time", times)),
        figures=tuple(waiting("transport", *DRAWN[main.kind], main.groups)),
        computed=COMPUTED,
        card=_card(transports),
    )


def _main(transports: list[Transport]) -> Transport:
    """Return that of the traffic table with most requests."""
    return max(transports, key=lambda transport: transport.requests)


def _card(transports: list[Transport]) -> Card | None:
    """Return the median time of the traffic table with most requests, its p95 and outcomes; None where it has no time."""
    main = _main(transports)
    median = quantile_cell(main.times[0])
    if main.times[0].mark == TOO_FEW:
        return None
    unit = " ms" if median.text[:1].isdigit() else ""
    lines = [values_text(main.times[1:]), _outcomes(main)]
    for transport in transports:
        if transport is not main:
            times = values_text(transport.times)
            lines.append(f"{transport.traffic}: {TIMES[transport.kind]} {times}")
    return Card(
        label="resume" if main.kind == STREAMS else "jobs",
        value=replace(median, text=f"{median.text}{unit}"),
        detail=f"median {TIMES[main.kind]}",
        lines=tuple(lines),
    )


def _outcomes(transport: Transport) -> str:
    texts = ", ".join(f"{count(n)} {name}" for name, n in transport.outcomes.items())
    return f"{plural(transport.requests, transport.kind[:-1])}: {texts}"


def _wasted(transport: Transport) -> str:
    if transport.kind != JOBS:
        return "–"
    return f"{transport.wasted / transport.requests:.3g}"


def _calls(transport: Transport) -> str:
    if transport.kind == STREAMS:
        return plural(transport.calls, "reconnection")
    return f"{plural(transport.calls, 'poll')}, {count(transport.wasted)} wasted"
