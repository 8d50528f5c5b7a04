"""The section on answers that do not come over one connection: streams that were resumed, and jobs that were polled.

Figures are of the steady stage. The time to resume runs from a cut to the first content after it that had not come before;
connections without content in between are a part of it. A cut after which none came, or whose stream was not resumed where
it was cut, counts as slower than any. A poll is wasted if it brought no news: neither the end of the job, nor its loss.
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
        "Times count since scheduled. Streams that broke off count as slowest.",
    ),
    JOBS: (
        "Turnaround",
        "Times count since scheduled. A job ended between the two curves. Lost jobs count as slowest.",
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
    "The time to resume runs from a cut to the first content that had not come before. Failures, and jobs that were given up, count as slower than any other.",
    "A wasted poll brought no news of its job.",
    "A job ends between two polls, so that the interval of a turnaround begins at the earliest possible end.",
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
    times = quantiles(_resume_times_ms(attempts, set(damage.index)), QUANTILES)
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


def _resume_times_ms(attempts: pd.DataFrame, damaged: set[int]) -> Floats:
    """Return of each cut after content the ms to the next content, or to the end mark where nothing was left; inf where none came.

    `attempts`: connections in order, by request. `damaged`: requests whose stream was not resumed where it was cut: their
    last cut counts as never resumed.
    """
    times: list[float] = []
    for request, rows in attempts.groupby("request_id", sort=False):
        of_request: list[float] = []
        cut_ns = None
        news_ns = None
        ended = ""
        calls = rows[["first_content_at_ns", "ended_at_ns", "ended"]].itertuples(index=False)
        for content_ns, end_ns, ended in calls:
            news_ns = None
            if pd.notna(content_ns):
                news_ns = content_ns
            elif ended in schema.COMPLETE:
                news_ns = end_ns
            if news_ns is None:
                continue  # nothing came over this connection
            # It brought content again: the cut before is over, and its own end may be the next.
            if cut_ns is not None:
                of_request.append(news_ns - cut_ns)
            cut_ns = end_ns
        if request in damaged:
            of_request[-1:] = [_NEVER]
        # The last connection brought nothing, or broke off.
        elif cut_ns is not None and (news_ns is None or ended in _CUT):
            of_request.append(_NEVER)
        times += of_request
    return np.asarray(times, np.float64) / NS_PER_MS


def _jobs(name: str, requests: pd.DataFrame, attempts: pd.DataFrame) -> Transport:
    """Return what became of the jobs of a traffic table, how many polls they took, and their turnaround.

    `attempts`: in order, by request: submissions, polls and fetches. A job that ended between two polls has an interval of
    its turnaround. Failed jobs count as slower than any.
    """
    polls = attempts[attempts["cause"] == schema.POLL]
    last_polls = by_request(polls, "last")
    # The poll that brought the end of each job has its state as stop reason.
    ending_polls = by_request(polls[polls["stop_reason"].notna()], "last")
    state_by_job = ending_polls["stop_reason"].to_dict()
    status_by_job = last_polls["status"].to_dict()
    class_by_job = last_polls["ended"].to_dict()

    def outcome(job: int, end: str) -> str:
        """Return what became of a job, whose request ended as `end`."""
        if end in schema.COMPLETE:
            return FETCHED
        if job in state_by_job:
            if class_by_job[job] not in schema.COMPLETE:
                return NOT_FETCHED
            return str(state_by_job[job])
        return LOST.get(status_by_job.get(job, 0)) or WITHOUT_STATE.get(end, end)

    outcomes = list(map(outcome, requests["request_id"], requests["ended"]))
    has_news = polls["stop_reason"].notna() | polls["status"].isin(LOST)
    # A poll after that one fetches the result: it is no poll to be counted.
    is_fetch = polls["attempt"] > polls["request_id"].map(ending_polls["attempt"])
    is_complete = requests["ended"].isin(schema.COMPLETE)
    turnaround_ms = (requests["ended_at_ns"] - requests["scheduled_at_ns"]).to_numpy(
        np.float64
    ) / NS_PER_MS
    latest_ms = np.where(is_complete, turnaround_ms, _NEVER)
    times = quantiles(latest_ms, QUANTILES)
    groups = {"turnaround": latest_ms}
    if "ended_low_at_ns" in requests:
        earliest_ns = (
            requests["ended_low_at_ns"].fillna(requests["ended_at_ns"])
            - requests["scheduled_at_ns"]
        )
        earliest_ms = np.where(is_complete, earliest_ns.to_numpy(np.float64) / NS_PER_MS, _NEVER)
        groups = {"earliest end": earliest_ms, "seen by a poll": latest_ms}
        # Each quantile with the interval that the polls leave open.
        times = list(within_polls(times, quantiles(earliest_ms, QUANTILES)))
    return Transport(
        traffic=name,
        kind=JOBS,
        requests=len(requests),
        outcomes=_ordered(pd.Series(outcomes)),
        calls=len(polls) - int(is_fetch.sum()),
        wasted=int((~has_news & ~is_fetch).sum()),
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
