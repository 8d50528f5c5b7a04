"""The headline: one sentence on the run, and what a reader must know of the traffic before the numbers.

Rule: sentences from the findings; no arithmetic beyond shares.
"""

from __future__ import annotations

from tailgauge.rows import schema
from tailgauge_analysis.metrics.latency import OFFERED, SUCCESSES
from tailgauge_analysis.sections.findings import Findings
from tailgauge_analysis.stats.quantiles import TOO_FEW
from tailgauge_analysis.text.formatting import percentile, plural, share
from tailgauge_analysis.text.quantile import VALUE, quantile, spoken

FIRST = ("ttft_sched", "join_sched", "turnaround")  # what a user waits for, whichever the run has

# run.json's word for how requests arrive, where it bears on what the numbers mean.
ARRIVAL = {
    "closed": "Closed loop: arrivals waited for answers; the tail is not what open traffic would see.",
    "partly open": "Partly open: sessions arrived on schedule, their later turns waited for answers.",
}


def headline(findings: Findings) -> str:
    """One sentence: how much traffic, how much of it succeeded, how long the user waited."""
    stage, n = findings.steady, len(findings.steady.requests)
    if not n:
        return "No request was scheduled in the steady stage."
    ok = int((stage.requests["ended"] == schema.OK).sum())
    said = f"{share(ok / n) if ok else 'none'} of {plural(n, 'request')} succeeded"
    left = int((stage.requests["ended"] == schema.CANCELLED).sum())
    if left:
        said += f", {share(left / n)} were given up by their users"
    if stage.seconds:
        said = f"{n / stage.seconds:,.3g} requests/s for {stage.seconds:,.3g} s: {said}"
    view = SUCCESSES if ok + left == n else OFFERED
    rows = [r for name in FIRST for r in findings.latency if (r.metric.name, r.view) == (name, view) and r.n]
    known = [q for q in rows[0].quantiles if q.mark != TOO_FEW and q.p <= 0.99] if rows else []
    if not ok or not known:
        return f"{said}."
    ends = [known[0], *known[-1:]] if len(known) > 1 else known
    shown = ends[:1] if quantile(ends[0], findings.beyond)["value_is"] != VALUE else ends
    parts = ", ".join(f"{percentile(q.p)} {spoken(quantile(q, findings.beyond))}" for q in shown)
    return f"{said}; {rows[0].metric.title}{' of everything offered' if view == OFFERED else ''}: {parts}."


def remarks(findings: Findings) -> list[str]:
    """What a reader must know of the traffic before the numbers."""
    run, found = findings.frames.run, findings.evidence.conservation.found
    said = [ARRIVAL[run["arrival"]]] if run["arrival"] in ARRIVAL else []
    if found:
        given = any(one.found for one in findings.evidence.conservation.workers)
        verb = "was" if found == 1 else "were"
        where = "found in the other folders given" if given else "written after all"
        said.insert(0, f"{plural(found, 'request')} that the master had counted as lost {verb} {where}.")
    slow = int(findings.steady.attempts["reader_paused_ns"].notna().sum())
    if slow:
        said.append(
            f"{plural(slow, 'attempt')} read slowly on purpose, reported apart: they tell of their reader, not of the target."
        )
    left = int((findings.steady.requests["ended"] == schema.CANCELLED).sum())
    if left:
        said.append(
            f"{plural(left, 'request')} given up by {'its user' if left == 1 else 'their users'} on purpose: counted, neither success nor failure of the target."
        )
    return said
