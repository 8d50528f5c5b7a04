"""The gates that ask whether all is here: the run ended, no worker and no row is lost.

Rule: as in gates.py; which worker, which seconds and how many requests come from losses_told.py.
"""

from __future__ import annotations

from tailgauge.thresholds import DEGRADED, INVALID
from tailgauge_analysis.load.problems import MASTER
from tailgauge_analysis.text.formatting import count, listed, plain, plural, sentence
from tailgauge_analysis.text.json_values import table
from tailgauge_analysis.verdict import losses_text
from tailgauge_analysis.verdict.verdict import Evidence, Said

LEFT_OUT = "leave_out"  # of limits.lost_share: nobody gets what a lost worker would have got


def lost(e: Evidence) -> Said | None:
    """Workers or requests are missing."""
    c, run = e.conservation, e.frames.run
    said = losses_text.sentences(c.workers, closed=run["closed"])
    more = c.lost - sum(one.left for one in c.workers)
    if more > 0:
        other = "other " if len(said) and more < c.lost else ""
        said.append(f"{plural(more, f'{other}scheduled request')}{losses_text.due(c.unseen)} left no row")
    elif c.unseen:
        said.append(f"what left no row was{losses_text.due(c.unseen)}")
    if said:
        text = ". ".join([said[0], *map(sentence, said[1:])])
        return INVALID, f"Missing: {text}.", losses_text.advice(c.workers, closed=run["closed"])
    return _left_out(e) or _unvouched(e)


def _left_out(e: Evidence) -> Said | None:
    """Nothing is missing, but less was sent than planned."""
    c, run = e.conservation, e.frames.run
    quiet = [one for one in c.workers if one.silent or one.state == "lost"]
    held = sum(one.not_sent for one in c.workers)
    leaves_out = table(run["scenario"], "limits").get("lost_share") == LEFT_OUT and run["state"] == "complete"
    away = max(0, c.not_reached - held) if leaves_out and quiet else 0
    if not held + away:
        return None
    names = listed(str(one.worker) for one in quiet if away or one.not_sent)
    who = f"{'workers' if ' ' in names else 'worker'} {names}"
    parts = [f"{plural(held, 'request')} that it held were not sent"] if held else []
    parts += (
        [f"{plural(away, 'request')} of its share were left out, as limits.lost_share asks"] if away else []
    )
    text = f"While {who} could not be reached, {' and '.join(parts)}: the load was lower than planned."
    return DEGRADED, text, "What is here is sound. Run again for the whole load."


def _unvouched(e: Evidence) -> Said | None:
    """Every request has its row, and nobody says that the rest is complete."""
    workers = [one for one in e.conservation.workers if one.is_accounted and not one.has_ended]
    if not workers:
        return None
    names = listed(str(one.worker) for one in workers)
    who = f"{'Worker' if len(workers) == 1 else 'Workers'} {names} {'was' if len(workers) == 1 else 'were'}"
    text = f"{who} lost and left no last word. Each request has its row; that no call of them is missing nobody can say."
    return DEGRADED, text, losses_text.SEE_LOG


def written(e: Evidence) -> Said | None:
    """Rows were recorded that could not be written."""
    if not e.conservation.unwritten:
        return None
    tables = listed(f"{count(n)} of {plain(name, 40)}" for name, n in e.conservation.unwritten.items())
    workers = [one for one in e.conservation.workers if one.unwritten]
    whose = listed(str(one.worker) for one in workers)
    why = next((f" ({plain(one.why, 200)})" for one in workers if one.why), "")
    return (
        INVALID,
        f"Rows that {'worker' if len(workers) == 1 else 'workers'} {whose} recorded could not be written: {tables}{why}.",
        "Make room on the disk of these workers, or choose another folder with --out, then run again.",
    )


def finished(e: Evidence) -> Said | None:
    """The run did not end as planned, or its master did not see its end."""
    run, state = e.frames.run, e.frames.run["state"]
    master = next((p.text for p in e.frames.problems if p.kind == MASTER), None)
    if state == "unusable":
        said = [plain(str(p["message"]), 300) for p in run["preflight"] if p.get("message")]
        text = f"The target could not be used: {said[-1].rstrip('.') if said else 'the preflight request failed'}."
        return INVALID, text, "Check address, protocol, key and model of the target."
    if state == "failed":
        return INVALID, "The run failed before its end.", "See the notes and the log of the run."
    if master is not None:
        return DEGRADED, f"{master}.", "Give every folder of the run, if its workers ran on several machines."
    if state == "running":
        return _orphaned(e)
    if state in {"interrupted", "guarded"}:
        why = "The run was interrupted" if state == "interrupted" else "A guard ended the run"
        text = f"{why}; {plural(e.conservation.not_reached, 'request')} were not reached."
        return DEGRADED, text, "What is here is sound; it is less than was planned."
    return None


def _orphaned(e: Evidence) -> Said:
    workers = e.conservation.workers
    if not workers or not all(one.has_ended for one in workers):
        return (
            DEGRADED,
            "The run had not ended when this was read, or its master died.",
            "Report it again when it has ended, or give every worker's own folder too.",
        )
    reached = e.conservation.not_reached
    rest = f"; {plural(reached, 'request')} were not reached" if reached else ""
    return (
        DEGRADED,
        f"The run's master died before its workers had ended: the counts are those of its {plural(len(workers), 'worker')}{rest}.",
        "What is here is sound; see the master's log for why it died.",
    )
