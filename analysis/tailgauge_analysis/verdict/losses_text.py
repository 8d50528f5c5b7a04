"""Losses in words: which worker, since when, how many requests, due when, and what to do.

Rule: sentences from what losses.py found, the same for gates, explanations and the table of workers; no arithmetic
beyond sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tailgauge_analysis.text.formatting import clock, count, listed, plain, plural
from tailgauge_analysis.verdict.losses import Loss, Stretch

MOST_WORKERS = 3
MOST_STRETCHES = 3
SEE_LOG = "See the worker's log (memory, disk, machine, network), then run again."


def sentences(workers: Sequence[Loss], *, closed: bool) -> list[str]:
    """What is missing, a worker at a time, the one with most first. `closed`: the master had the last word."""
    bad = sorted(_bad(workers, closed=closed), key=lambda one: (-one.left, one.worker))
    said = [_sentence(one, closed=closed) for one in bad[:MOST_WORKERS]]
    if len(bad) > MOST_WORKERS:
        left = sum(one.left for one in bad[MOST_WORKERS:])
        more = f"{plural(len(bad) - MOST_WORKERS, 'more worker')} "
        said.append(more + (f"left {plural(left, 'request')} without a row" if left else "did not finish"))
    return said


def _bad(workers: Sequence[Loss], *, closed: bool) -> list[Loss]:
    gone = (one for one in workers if one.is_gone and not one.is_accounted)
    return list(
        {
            one.worker: one
            for one in (*gone, *(w for w in workers if w.left or (w.is_unheard and not closed)))
        }.values()
    )


def _sentence(one: Loss, *, closed: bool) -> str:
    said = _fate(one, closed=closed)
    if one.left:
        n, when = plural(one.left, "request"), due(one.missing)
        rows = f"{said}; {n}{when} left no row" if said else f"{n} of {_who(one)}{when} left no row"
        return rows + (f", {count(one.found)} more are in its own folder" if one.found else "")
    return f"{said}, though each request that it was given left a row" if one.state == "lost" else said


def _fate(one: Loss, *, closed: bool) -> str:
    """What became of the worker; empty where it lived to the end."""
    if one.is_unheard and not closed:
        return f"of {_who(one)} nothing is here, neither a record nor a row"
    if not closed:
        return "" if one.has_ended else f"{_who(one)} left no last word"
    if one.state == "lost" and one.lost_at_s is not None:
        return f"{_who(one)} was lost at {one.lost_at_s:,.0f} s"
    return f"{_who(one)} did not finish" if one.state in {"lost", "failed"} else ""


def _who(one: Loss) -> str:
    return f"worker {one.worker} ({plain(one.why, 200)})" if one.why else f"worker {one.worker}"


def due(missing: Sequence[Stretch]) -> str:
    """` due between 12.0 and 20.0 s`; empty where nobody knows."""
    if not missing:
        return ""
    longest = sorted(missing, key=lambda s: -s.requests)[:MOST_STRETCHES]
    shown = [_between(one) for one in sorted(longest, key=lambda s: s.from_s)]
    more = len(missing) - len(shown)
    rest = [f"in {'another stretch' if more == 1 else f'{more:,} more stretches'}"] if more else []
    return f" due {listed([*shown, *rest])}"


def _between(one: Stretch) -> str:
    if one.to_s is None:
        return f"from {one.from_s:,.1f} s on"
    same = f"{one.from_s:,.1f}" == f"{one.to_s:,.1f}"
    return f"at {one.from_s:,.1f} s" if same else f"between {one.from_s:,.1f} and {one.to_s:,.1f} s"


def advice(workers: Sequence[Loss], *, closed: bool) -> str:
    """What to do about it."""
    away = [one for one in _bad(workers, closed=closed) if one.left or one.is_unheard]
    away = [one for one in away if not one.found and not one.own_state and one.state != "failed"]
    if not away:
        return SEE_LOG
    whose = f"worker {away[0].worker} still has its" if len(away) == 1 else "these workers still have their"
    return f"If the machine of {whose} own run folder, give it too: tailgauge report RUN_DIR WORKER_DIR. Else see the worker's log and run again."


def explained(workers: Sequence[Loss]) -> Iterator[str]:
    """What is no loss: who came late, who fell silent and came back, whose rows were found."""
    for one in workers:
        who = f"worker {one.worker}"
        if one.late_s is not None:
            yield f"{who} joined at {clock(one.late_s)} and took a share of what was handed out from then on"
        silent = [s for s in one.silent if s.to_s is not None]
        if silent and not one.left:
            spans = listed(
                [f"from {clock(s.from_s)} to {clock(s.to_s or 0.0)}" for s in silent], MOST_STRETCHES
            )
            lasted = sum((s.to_s or 0.0) - s.from_s for s in silent)
            yield f"{who} was not heard of {spans} ({lasted:,.1f} s) and came back; nothing that it held is missing"
        if one.state == "lost" and one.has_ended and not one.left:
            yield f"{who} was lost to the master, ended by itself, and all that it wrote is here"


def kept(one: Loss) -> list[str]:
    """Lines below the state of a worker in tables."""
    joined = [] if one.late_s is None else [f"joined at {clock(one.late_s)}"]
    ends = ["" if s.to_s is None else f" to {clock(s.to_s)}" for s in one.silent]
    return [
        *joined,
        *(f"silent from {clock(s.from_s)}{end}" for s, end in zip(one.silent, ends, strict=True)),
    ]
