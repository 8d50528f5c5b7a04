"""Latency: the percentiles of the steady stage, among successes and of everything offered, and by kind of request.

Also here: groups, the same figures for each kind of request, by traffic table, by prompt and by tag.

Steady stage, offered view, the same estimators as the whole. A group without any value is left out. Slow readers are separate
groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, cast

import numpy as np
import pandas as pd
from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from tailgauge.rows import schema
from tailgauge_analysis.metrics import latency, pace
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES, Row, columns, shown
from tailgauge_analysis.metrics.metrics import BY_NAME, NEITHER
from tailgauge_analysis.metrics.metrics import METRICS as KNOWN
from tailgauge_analysis.metrics.steady import Steady, is_of_tasks
from tailgauge_analysis.objectives.outcome import ObjectiveResult
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import load_steps, objectives, over_time
from tailgauge_analysis.sections.ends import cut_share
from tailgauge_analysis.stats.proportions import Proportion
from tailgauge_analysis.stats.quantiles import CLIENT, TOO_FEW, Mask, Quantile
from tailgauge_analysis.text.cells import (
    quantile_cell,
    quantile_table,
    quantiles_text,
    share_cell,
    values_needed,
)
from tailgauge_analysis.text.formatting import count, percentile, plain, plural, share
from tailgauge_analysis.text.json_values import one_of, parsed
from tailgauge_analysis.text.picture import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    Dash,
    Picture,
    tail_curve,
    tail_picture,
)
from tailgauge_analysis.text.quantile import ABSENT, UNPUBLISHED, limit_text
from tailgauge_analysis.text.section import Cell, Section, Table, Value

KEY = ""
ALL = "all"
_ANSWER_TIMES = "TTFT, TPOT, chunk gap and end to end"
NARROW_PS = (0.5, 0.95, 0.99)  # what a phone has room for
METRIC_NAMES = tuple(dict.fromkeys(metric.event for metric in KNOWN))
# A plugin may add other names.
MetricName = Annotated[str, Field(json_schema_extra={"examples": list(METRIC_NAMES)})]
Count = Annotated[int, Field(ge=0)]
WHOLE = ("e2e_sched", "e2e_sent", "join_sched", "turnaround")
SINCE = {  # whether the tasks of Locust's users make the requests
    False: "“Since scheduled” starts at the planned arrival: it is the time that a user waits.",
    True: "“Since requested” starts when the task of a Locust user makes the call, as in Locust's statistics.",
}
SINCE_SENT = "“Since sent” starts when the first byte of the request leaves: it covers network and target, not this client."
GAPS = "Chunk gap: the time from one content chunk of an answer to the next, pooled over all answers. vLLM bench calls it ITL."
FAILED_TEXT = "“failed”: the percentile has no value, because too many requests failed."
NOT_OBSERVABLE_TEXT = "“not observable”: nobody waited that long."
COMPUTED = (
    "Percentiles are exact: the inverse of the empirical distribution of the raw rows of all workers. Their 95% intervals come from order statistics on the effective n.",
    "n is the number of samples. The effective n is the number of independent samples with as much information as the n samples: slow requests cluster, and requests of one session are alike.",
    "A percentile is marked (on the page with †) if it rests on fewer than 50 independent values, or on fewer than 30 sessions or users, or if the values above it came in fewer than 5 periods of the run. In such a period, these values follow each other closely. “too few”: not enough samples for a 95% interval. “?” in place of an end: only this end of the interval is unknown.",
    "“Of everything offered” includes failed and dropped requests, which count as slower than any success.",
    "Requests that were abandoned, or open at the end of the run, count as waits of at least the time until then.",
)


class Percentiles(TypedDict):
    """By label; groups have three of them."""

    p50: Quantile
    p90: Quantile
    p95: Quantile
    p99: Quantile
    p99_9: Quantile


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """One metric of one group and population."""

    group: str
    """a traffic table, or all"""
    metric: MetricName
    """a name of metrics.md, without its ending _sched or _sent: see `since`"""
    since: Annotated[str, one_of("scheduled", "sent")] | None
    """when its clock starts; null for neither"""
    population: Annotated[str, one_of("completed", "offered")]
    """offered: with failures, as slower than any success"""
    unit: Annotated[str, one_of("ms", "tokens/s")]
    n: Count
    n_eff: Count
    """effective samples of the p99"""
    mean: float | None
    """null if a request without an answer is among them"""
    percentiles: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Requests that have something in common."""

    by: str
    """traffic, slow reader, name or tag"""
    name: str
    pattern: str
    requests: int
    ok: Proportion
    """complete answers, of all offered"""
    cancelled: int
    latency: list[Any]
    """as the key `latency`, offered, with p50, p95 and p99"""
    rows: dict[str, Row] = field(metadata=UNPUBLISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Percentiles of the steady stage, and by kind of request."""

    latency: list[Latency]
    """rows with at least one sample"""
    groups: list[Group]
    """by traffic table, slow readers, name and tag"""
    smaller_groups: Count
    """number of groups that are not shown"""
    rows: Sequence[Row] = field(metadata=UNPUBLISHED)
    by_traffic: dict[str, list[Row]] = field(metadata=UNPUBLISHED)
    first_token: str = field(metadata=UNPUBLISHED)
    is_coalesced: bool = field(metadata=UNPUBLISHED)
    cut_share: float = field(metadata=UNPUBLISHED)
    """of the complete answers, those that a limit cut"""
    judged: Sequence[ObjectiveResult] = field(metadata=UNPUBLISHED)
    is_pooled: bool = field(metadata=UNPUBLISHED)
    """over the steps of the load"""
    is_closed: bool = field(metadata=UNPUBLISHED)
    """users wait for answers: what they wait for counts since sent"""
    is_of_tasks: bool = field(metadata=UNPUBLISHED)
    """of Locust's users"""
    joined: int = field(metadata=UNPUBLISHED)
    """requests that have a join instead of an answer: fan-outs"""
    fetched: int = field(metadata=UNPUBLISHED)
    """requests that have a turnaround: jobs, and those of a message batch"""


def compute(run: Run) -> Latencies:
    """Return the latencies of a run."""
    rows = run.evidence.latency
    is_closed = run.record["arrival"] == "closed"
    published = _published_rows(ALL, rows)
    by_traffic = latency.by_traffic(run.without_slow_readers, rows)
    for table, of_table in by_traffic.items():
        name = plain(table, 80)
        if table == ALL:
            name = f"{table} (traffic)"
        published += _published_rows(name, of_table)
    groups, smaller_groups = _groups(run.steady, METRICS_SENT if is_closed else METRICS)
    return Latencies(
        latency=published,
        groups=groups,
        smaller_groups=smaller_groups,
        rows=rows,
        by_traffic=by_traffic,
        first_token=run.steady.first_token,
        is_coalesced=pace.is_coalesced(run.without_slow_readers.requests),
        cut_share=cut_share(run.steady.requests),
        judged=run.result(objectives.compute).slo,
        is_pooled=run.result(load_steps.compute) is not None,
        is_closed=is_closed,
        is_of_tasks=is_of_tasks(run.record["scenario"]),
        joined=int((run.without_slow_readers.requests["answer"] == schema.JOIN).sum()),
        fetched=int((run.without_slow_readers.requests["answer"] == schema.TURNAROUND).sum()),
    )


def _published_rows(group: str, rows: Iterable[Row]) -> list[Latency]:
    """Return the rows with at least one sample."""
    published = []
    for row in rows:
        if row.n:
            published.append(_published(group, row))
    return published


def _published(group: str, row: Row) -> Latency:
    by_label = {}
    for quantile in row.quantiles:
        label = percentile(quantile.p).replace(".", "_")
        by_label[label] = quantile
    metric = row.metric
    since = None
    if metric.since != NEITHER:
        since = metric.since
    return Latency(
        group=group,
        metric=metric.event,
        since=since,
        population="offered" if row.view == OFFERED else "completed",
        unit=metric.unit,
        n=row.n,
        n_eff=by_label["p99"].n_eff,
        mean=row.mean,
        percentiles=cast("Percentiles", by_label),
    )


def section(latencies: Latencies) -> Section:
    """Return the section: percentiles of everything offered first, then among successes, by kind of request and by traffic.

    The view of everything offered has failures as slowest; there is none where all requests succeeded. Without a success
    there are no percentiles.
    """
    # Rows of one view without those that repeat another; of everything offered none where nothing failed.
    successes = shown(latencies.rows, SUCCESSES, is_coalesced=latencies.is_coalesced)
    if not successes:
        return Section(
            "latency", "Latency", "No request succeeded in the steady stage: there is no latency."
        )
    offered = shown(latencies.rows, OFFERED, is_coalesced=latencies.is_coalesced)
    pooled = ""
    if latencies.is_pooled:
        pooled = f", {load_steps.POOLED}"
    tables = []
    if offered:
        tables.append(_percentiles(f"Of everything offered{pooled}", offered))
    tables.append(_percentiles(f"Among successes{pooled}", successes))
    # Which requests have no time of an answer belongs under the first table.
    first_table = tables[0]
    tables[0] = replace(
        first_table, note=" ".join(filter(None, (*_left_out(latencies), first_table.note)))
    )
    if len(latencies.groups) > 1:
        start = "sent" if latencies.is_closed else "scheduled"
        tables.append(_by_group(latencies.groups, latencies.smaller_groups, start))
    if len(latencies.by_traffic) > 1:
        tables += _paces(latencies)
    kind = "content of any kind" if latencies.first_token == "any" else "text content"  # noqa: S105 - no secret
    notes = [f"TTFT ends at the first {kind}."]
    if offered:
        notes.append(_without_answer(offered[0]))
    if latencies.cut_share:
        cut = f"{share(latencies.cut_share)} of the complete answers were cut by a limit"
        notes.append(f"{cut}: their end to end is the time of a shorter answer.")
    answer = _answer(_main_row(offered or successes, is_closed=latencies.is_closed), pooled)
    figures = tuple(_tail(latencies.rows, latencies.judged))
    exact, *further = COMPUTED
    has_gaps = any(row.metric.name == "chunk_gap" for row in successes)
    gaps = (GAPS,) if has_gaps else ()
    return Section(
        name="latency",
        title="Latency",
        answer=answer,
        tables=tuple(tables),
        figures=figures,
        notes=tuple(notes),
        computed=(exact, f"{SINCE[latencies.is_of_tasks]} {SINCE_SENT}", *gaps, *further),
    )


def _without_answer(row: Row) -> str:
    """Return how many requests of a row have no complete answer, and how its percentiles count them."""
    left = 0
    if row.waits is not None:
        left = int((row.waits.cut & ~row.waits.seen).sum())
    failed = row.without_answer - left
    has = "has" if row.without_answer == 1 else "have"
    texts = [f"{count(row.without_answer)} of {plural(row.n, 'request')} {has} no complete answer."]
    failed_requests = _of_them(failed, row.without_answer)
    left_requests = _of_them(left, row.without_answer)
    if failed:
        counts_as = "counts" if failed == 1 else "count"
        texts.append(f"{failed_requests} failed and {counts_as} as slowest. {FAILED_TEXT}")
    if left:
        was = "was abandoned by its user" if left == 1 else "were abandoned by their users"
        counts_as = "counts as a wait" if left == 1 else "count as waits"
        texts.append(
            f"{left_requests} {was} or open at the end of the run, and {counts_as} of at least the time until then. "
            f"{NOT_OBSERVABLE_TEXT}"
        )
    return " ".join(texts)


def _of_them(number: int, total: int) -> str:
    """`12 of them`; of all `All of them`, of a single one `It`."""
    if number == total:
        return "It" if total == 1 else "All of them"
    return f"{count(number)} of them"


def _left_out(latencies: Latencies) -> Iterator[str]:
    """Yield which requests have one time instead of those of an answer."""
    if latencies.joined:
        legs = "the times of their legs are in the section Fan-out"
        yield f"{_having(latencies.joined, 'fan-out')} a join time instead of {_ANSWER_TIMES}; {legs}."
    if latencies.fetched:
        yield f"{_having(latencies.fetched, 'job')} a turnaround instead of {_ANSWER_TIMES}."


def _having(number: int, noun: str) -> str:
    """`1 job has`, `5 jobs have`."""
    return f"{plural(number, noun)} {'has' if number == 1 else 'have'}"


def _main_row(rows: Sequence[Row], *, is_closed: bool) -> Row:
    """Return the row that says what a user waits: the first, in a closed loop the first of those since sent."""
    for row in rows:
        if is_closed and row.metric.name == "ttft_sent":
            return row
    return rows[0]


def _answer(row: Row, pooled: str) -> str:
    """Return the first row in a sentence: what a user waits. `pooled`: over what."""
    reliable = [q for q in row.quantiles if q.mark != TOO_FEW and q.p <= 0.99]
    if not reliable:
        return f"{row.metric.title}: too few requests for a percentile."
    ends = reliable
    if len(reliable) > 1:
        ends = [reliable[0], *reliable[-1:]]
    population = " of all offered requests" if row.view == OFFERED else ""
    return f"{row.metric.title}{population}{pooled}: {quantiles_text(*ends)}."


def _percentiles(title: str, rows: Sequence[Row]) -> Table:
    """Return a table of these metrics with their percentiles, and with n; the effective n where it is smaller.

    `spare`: the columns that a narrow page leaves out. The note says what limits the effective n of the first row that has
    one, and how many values the missing percentiles need.
    """
    column_count = columns(rows)
    cells: list[tuple[Cell, ...]] = []
    all_quantiles: list[Quantile] = []
    note = ""
    for row in rows:
        n = Value(count(row.n))
        quantiles = row.quantiles[:column_count]
        all_quantiles += quantiles
        reliable = [q for q in quantiles if q.mark != TOO_FEW]
        least_certain = min(reliable, key=lambda q: q.n_eff, default=None)
        # Dependent requests tell less than as many independent ones.
        if least_certain is not None and least_certain.n_eff < row.n:
            n = replace(
                n,
                interval=f"effective n {count(least_certain.n_eff)} ({percentile(least_certain.p)})",
            )
            note = note or _n_eff_note(row, least_certain)
        cells.append((row.metric.title, *map(quantile_cell, quantiles), n))
    note = " ".join(filter(None, (note, values_needed(all_quantiles))))
    header = ["metric"]
    spare_columns = []
    for column, quantile in enumerate(rows[0].quantiles[:column_count], 1):
        header.append(f"{percentile(quantile.p)} (ms)")
        if quantile.p not in NARROW_PS:
            spare_columns.append(column)
    header.append("n")
    spare_columns.append(len(header) - 1)
    return Table(title, tuple(header), tuple(cells), note, spare=tuple(spare_columns))


def _n_eff_note(row: Row, quantile: Quantile) -> str:
    """Return what n_eff is, with what limits that of a quantile."""
    note = "Each row shows the smallest effective n of its percentiles."
    limit = limit_text(quantile)
    if not limit:
        return note
    return f"{note} {row.metric.title}: {limit}."


def _by_group(groups: Sequence[Group], smaller: int, start: str) -> Table:
    """Return a table of TTFT and the time of the whole request for each kind of request.

    `start`: when their clocks start, scheduled or sent. `smaller`: how many groups are not shown. A time that requests of a kind
    do not have is a dash, and the note says so.
    """
    rows = []
    has_absent = False
    for group in _without_repeated_tasks(groups):
        ttft_row = group.rows.get("ttft_sent" if start == "sent" else "ttft_sched")
        whole_row = _whole_row(group.rows)
        has_absent |= ttft_row is None or whole_row is None
        kind = group.by
        if group.by == "traffic":
            kind = f"{group.by}, {group.pattern}"
        first_cells = (Value(group.name, kind), count(group.requests), share_cell(group.ok))
        rows.append((*first_cells, *_three_cells(ttft_row), *_three_cells(whole_row)))
    header = ["group", "requests", "complete, of all offered"]
    for title in ("TTFT", "whole"):
        header += [f"{title} {percentile(p)} (ms)" for p in QUANTILES]
    note = (
        f"Times count since {start}; failures count as slowest. “Whole” is the time until the end of the answer, for a fan-out until "
        "its legs are joined, and for a batch until it is fetched."
    )
    if smaller:
        note += f" {plural(smaller, 'smaller group')} {'is' if smaller == 1 else 'are'} not shown."
    if has_absent:
        note += f" {ABSENT}: requests of this kind have no such time."
    quantiles: list[Quantile] = []
    for group in groups:
        for row in group.rows.values():
            quantiles += row.quantiles
    note = f"{note} {values_needed(quantiles)}".rstrip()
    return Table("By kind of request", tuple(header), tuple(rows), note, spare=_spare(header))


def _without_repeated_tasks(groups: Sequence[Group]) -> Iterator[Group]:
    """Yield all groups but the tasks of Locust's users that have the row of their name."""
    requests_by_name = {}
    for group in groups:
        if group.by == NAME:
            requests_by_name[group.name] = group.requests
    for group in groups:
        task = group.name.removeprefix(TASK)
        if group.by != TAG or requests_by_name.get(task) != group.requests:
            yield group


def _spare(header: Sequence[str]) -> tuple[int, ...]:
    """Return all columns but the name, the share of complete requests and the p99."""
    columns = []
    for column, title in enumerate(header):
        if column and "complete" not in title and "p99" not in title:
            columns.append(column)
    return tuple(columns)


def _whole_row(rows: dict[str, Row]) -> Row | None:
    """Return the time of whole requests of a group; None without one."""
    for name in WHOLE:
        if name in rows:
            return rows[name]
    return None


def _three_cells(row: Row | None) -> tuple[Cell, ...]:
    if row is None:
        return (ABSENT,) * len(QUANTILES)
    return tuple(map(quantile_cell, row.quantiles))


def _paces(latencies: Latencies) -> list[Table]:
    """Return how fast the answers of each traffic table arrive, as one table; none without streamed answers.

    A percentile that the client may have moved too far over all requests is marked in each traffic table too.
    """
    moved_by_client = set()
    for row in latencies.rows:
        for quantile in row.quantiles:
            if quantile.mark == CLIENT:
                moved_by_client.add((row.metric.name, row.view, quantile.p))
    named_quantiles = []
    for name, of_table in latencies.by_traffic.items():
        for row in of_table:
            if row.view != SUCCESSES or row.metric.name not in PACES or not row.n:
                continue
            # `TPOT`, but `chunk gap` behind the name of the table.
            label = row.metric.title
            if not label.isupper():
                label = label.lower()
            named_quantiles.append((f"{plain(name, 80)}, {label}", _marked(row, moved_by_client)))
    named_quantiles.sort(key=lambda row: row[0])
    note = "The values are of successful requests. Legs of a fan-out have no row."
    if not named_quantiles:
        return []
    return [quantile_table("Pace by traffic", "traffic", named_quantiles, note)]


def _marked(row: Row, moved: set[tuple[str, str, float]]) -> list[Quantile]:
    """Return the quantiles QUANTILES of a row; marked where the client `moved` that of all requests."""
    quantiles = []
    for quantile in row.quantiles:
        if quantile.p not in QUANTILES:
            continue
        is_moved = (row.metric.name, row.view, quantile.p) in moved
        if is_moved and quantile.mark != TOO_FEW:
            quantiles.append(replace(quantile, mark=CLIENT))
        else:
            quantiles.append(quantile)
    return quantiles


# --- by kind of request -------------------------------------------------------------------------------------------

QUANTILES = (0.5, 0.95, 0.99)
METRICS = ("ttft_sched", "e2e_sched", "join_sched", "turnaround")
METRICS_SENT = ("ttft_sent", "e2e_sent", "join_sched", "turnaround")  # of a closed loop
PACES = ("tpot", "chunk_gap", "chunk_gap_worst")
MOST = 20
TRAFFIC = "traffic"
NAME = "name"
TAG = "tag"
TASK = "task = "  # begins the tag that names a task of a Locust user
SLOW = "slow reader"


def _groups(steady: Steady, metrics: Sequence[str]) -> tuple[list[Group], int]:
    """Return the groups worth a row, and how many smaller ones are not shown."""
    masks = sorted(_masks(steady), key=lambda mask: -int(mask[2].sum()))
    groups: list[Group] = []
    hidden = 0
    for criterion in (TRAFFIC, SLOW, NAME, TAG):
        largest_first = [mask for mask in masks if mask[0] == criterion]
        groups += [_group(steady, metrics, *mask) for mask in largest_first[:MOST]]
        hidden += len(largest_first[MOST:])
    return groups, hidden


def _masks(steady: Steady) -> Iterator[tuple[str, str, Mask]]:
    """Yield the groups of requests: their kind, their name, and a mask of the requests in each.

    Slow readers are in groups of their own, by traffic table, and in no other. A request with several tags is in several groups.
    """
    requests = steady.requests
    is_slow = requests["slow_reader"].to_numpy(np.bool_)
    for criterion, column in ((TRAFFIC, "traffic"), (NAME, "name")):
        group_codes, names = pd.factorize(requests[column])  # -1 where there is none
        for code, name in enumerate(names):
            mask = group_codes == code
            if (mask & ~is_slow).any():
                yield criterion, plain(str(name), 80), mask & ~is_slow
            if criterion == TRAFFIC and (mask & is_slow).any():
                yield SLOW, plain(str(name), 80), mask & is_slow
    group_codes, texts = pd.factorize(requests["tags"])
    by_tag: dict[str, Mask] = {}
    # Each text is a JSON table of the tags of a request; requests with the same one are read once.
    for code, text in enumerate(texts):
        for key, value in parsed(text).items():
            tag = plain(f"{key} = {value}", 80)
            mask = (group_codes == code) & ~is_slow
            if tag in by_tag:
                mask |= by_tag[tag]
            by_tag[tag] = mask
    for tag, mask in by_tag.items():
        if mask.any():
            yield TAG, tag, mask


def _group(steady: Steady, metrics: Sequence[str], criterion: str, name: str, mask: Mask) -> Group:
    part = steady.only(mask, gaps=False)  # none of the metrics is of gaps
    ended = part.requests["ended"]
    rows = {}
    for metric in metrics:
        row = latency.row(BY_NAME[metric], part, OFFERED, QUANTILES)
        if row.n:
            rows[metric] = row
    return Group(
        by=criterion,
        name=name,
        pattern=", ".join(sorted(map(str, part.requests["pattern"].unique()))),
        requests=len(ended),
        ok=part.share(ended.isin(schema.COMPLETE).to_numpy(np.bool_)),
        cancelled=int((ended == schema.CANCELLED).sum()),
        latency=_published_rows(name, rows.values()),
        rows=rows,
    )


# --- figure -------------------------------------------------------------------------------------------------------

TAILS: dict[str, tuple[str, Dash]] = {
    "ttft_sched": (BLUE, ""),
    "ttft_sent": (GREEN, "dot"),
    "e2e_sched": (ORANGE, ""),
    "turnaround": (PURPLE, ""),
}


def _tail(rows: Sequence[Row], judged: Sequence[ObjectiveResult]) -> Iterator[Picture]:
    """Draw the share of the offered requests that took longer, with the bounds of the objectives."""
    curves = []
    bounds = []
    for row in rows:
        name = row.metric.name
        if name not in TAILS or row.waits is None:
            continue
        curve = tail_curve(*row.waits.tail(), row.metric.title, *TAILS[name])
        if len(curve.x) == 0:
            continue
        curves.append(curve)
        for objective, bound_ms in over_time.in_sight(judged, name, curve.x[-1]):
            bounds.append(
                over_time.bound_line(objective, (bound_ms, bound_ms), (min(curve.y), 1.0))
            )
    if curves:
        yield tail_picture(
            [*curves, *bounds],
            name="tail",
            title="Latency tail",
            caption=(
                "A line crosses the level of p99 at its p99. Where a line ends flat above the bottom, this share of "
                "requests had no answer by then."
            ),
            of="offered requests",
        )
