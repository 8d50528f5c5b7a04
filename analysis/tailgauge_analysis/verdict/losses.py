"""Say which worker lost what: its requests without a row, when they were due, and what was found after all.

A row counts more than the master's count of losses: a request that it counted as lost is found if its row is in a given
folder. What a worker held and never sent is not lost either: its final counts tell (unsent.py says why). A worker that was
killed leaves no final counts: it was given what the master says or, if that died too, what its last health row says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from tailgauge.rows import schema
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.reading.run_record import ENDED
from tailgauge_analysis.text.formatting import clock, count, listed, plain, plural
from tailgauge_analysis.text.json_values import Json, whole

NEAR_S = 1.0  # missing arrivals that are closer than this are one stretch
MOST_WORKERS = 3  # in a sentence
MOST_STRETCHES = 3
SEE_LOG = "See the worker's log (memory, disk, machine, network), then run again."


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One worker's share. `leased` is None if unknown; `lost`: its requests without a row; `found`: rows in another folder
    than the master's; `not_sent`: held and not sent; `not_due`: of these, later turns of sessions that were not to be
    sent; `came_late`: of these, overdue when they arrived from the master. `is_closed`: the master recorded the end.
    """

    worker: int
    state: str
    recorded_state: str
    why: str
    leased: int | None
    rows: int
    lost: int
    found: int
    not_sent: int
    not_due: int
    came_late: int
    missing: tuple[Stretch, ...]
    silent: tuple[Stretch, ...]
    late_s: float | None
    unwritten: dict[str, int]
    is_closed: bool

    @property
    def unsent(self) -> int:
        """Requests that it should have sent."""
        return max(0, self.not_sent - self.not_due)

    @property
    def lost_at_s(self) -> float | None:
        """Since when it was silent for good, or else the first second that it left out."""
        if self.silent and self.silent[-1].to_s is None:
            return self.silent[-1].from_s
        if not self.missing:
            return None
        return self.missing[0].from_s

    @property
    def has_ended(self) -> bool:
        """The worker's own record says how it ended."""
        return self.recorded_state in ENDED

    @property
    def is_unconfirmed(self) -> bool:
        """The master lost it, all its requests have rows in its own folder, and it never confirmed that these are all."""
        return self.state == "lost" and bool(self.found) and not self.lost and not self.has_ended

    @property
    def is_absent(self) -> bool:
        """The master died, and neither a record nor a row of it is here."""
        return not self.is_closed and not self.recorded_state and not self.rows

    @property
    def is_bad(self) -> bool:
        """Requests of it have no row, or it did not finish."""
        is_gone = self.state == "failed" or (self.state == "lost" and not self.has_ended)
        return bool(self.lost) or self.is_absent or (is_gone and not self.is_unconfirmed)


def losses(frames: Frames, requests: pd.DataFrame) -> tuple[Loss, ...]:
    """Return one entry per worker. `requests`: without the preflight."""
    by_worker = dict(iter(requests.drop_duplicates("request_id").groupby("worker")))
    no_rows = requests[:0]
    entries = []
    for worker in frames.run["workers"]:
        rows = by_worker.get(worker["worker"], no_rows)
        entries.append(_loss(frames, worker, rows))
    return tuple(entries)


def _loss(frames: Frames, worker: Json, rows: pd.DataFrame) -> Loss:
    """Return what one worker lost, and what it held and never sent.

    `worker`: its entry in run.json; `rows`: of its requests, once each, without the preflight. It was given `leased` requests:
    if its master died and no record says how many, as many as its last health row says.
    """
    number = worker["worker"]
    is_closed = frames.run["closed"]
    # Rows that are in another folder than the master's.
    recovered = rows[:0]
    if is_closed:
        recovered = rows[rows["folder"] > 0]
    leased = worker["leased"]
    if leased is None and not is_closed:
        leased = _leased_by_health(frames.health, number, len(rows))
    not_sent = _not_sent(worker, leased or 0)
    unread = worker["rows"].get("requests", 0) - frames.rows.get(("requests", number), 0)
    unwritten = worker["unwritten"].get("requests", 0)
    # By three counts: rows that no part has, rows that were not written, requests that left none.
    lost = max(0, unread, unwritten, (leased or 0) - len(rows) - not_sent)
    missing: tuple[Stretch, ...] = ()
    if lost or not_sent:
        missing = _unrecovered(worker["missing"], recovered)
    return Loss(
        worker=number,
        state=worker["state"],
        recorded_state=worker["recorded_state"],
        why=worker["why"],
        leased=leased,
        rows=len(rows),
        lost=lost,
        found=len(recovered),
        not_sent=not_sent,
        not_due=min(not_sent, whole(worker["counts"].get("not_due")) or 0),
        came_late=min(not_sent, whole(worker["counts"].get("came_late")) or 0),
        missing=missing,
        silent=tuple(worker["silent"]),
        late_s=worker["late_s"],
        unwritten=worker["unwritten"],
        is_closed=is_closed,
    )


def _leased_by_health(health: pd.DataFrame, worker: int, rows: int) -> int | None:
    """Its last health row has the requests leased so far."""
    leased = health.loc[health["worker"] == worker, "scheduled"].max()
    if not leased > 0:  # nor without a health row
        return None
    return max(rows, int(leased))


def _not_sent(worker: Json, leased: int) -> int:
    """Return what it held and never sent; 0 for a worker without final counts."""
    counts = worker["counts"]
    is_final = worker["state"] != "lost" or worker["recorded_state"] in ENDED
    if not counts or not is_final:
        return 0
    dispatched = whole(counts.get("dispatched")) or 0
    dropped = whole(counts.get("client_drop")) or 0
    return max(0, leased - dispatched - dropped)


def _unrecovered(missing: Sequence[Stretch], recovered: pd.DataFrame) -> tuple[Stretch, ...]:
    """Return the master's stretches less the arrivals that were found."""
    # Later turns of a session have no planned time.
    arrivals = recovered[recovered["request_id"] % schema.TURNS == 0]
    at_s = arrivals["scheduled_at_ns"] / 1e9
    rest = []
    for stretch in missing:
        until_s = stretch.from_s if stretch.to_s is None else stretch.to_s
        inside = int(at_s.between(stretch.from_s - NEAR_S / 2, until_s + NEAR_S / 2).sum())
        if stretch.requests > inside:
            rest.append(Stretch(stretch.from_s, stretch.to_s, stretch.requests - inside))
    return tuple(rest)


# --- in sentences -------------------------------------------------------------------------------------------------


def sentences(workers: Sequence[Loss]) -> list[str]:
    """Return what is missing, worker by worker, the most first."""
    bad = [loss for loss in workers if loss.is_bad]
    bad.sort(key=lambda loss: (-loss.lost, loss.worker))
    texts = [_sentence(loss) for loss in bad[:MOST_WORKERS]]
    other_losses = bad[MOST_WORKERS:]
    if other_losses:
        lost = sum(loss.lost for loss in other_losses)
        outcome = "did not finish"
        if lost:
            outcome = f"left {plural(lost, 'request')} without a row"
        texts.append(f"{plural(len(other_losses), 'more worker')} {outcome}")
    return texts


def _sentence(loss: Loss) -> str:
    outcome = _outcome(loss)
    if not loss.lost:
        if loss.state == "lost":
            outcome += ", but all its requests have rows"
        return outcome
    requests = plural(loss.lost, "request")
    subject = f"{requests} of {_name(loss)}"
    if outcome:
        subject = f"{outcome}; {requests}"
    text = f"{subject}{due(loss.missing)} have no row"
    if loss.found:
        text += f" ({count(loss.found)} more are in the worker's folder)"
    return text


def _outcome(loss: Loss) -> str:
    """Return how the worker ended; empty for a regular end."""
    name = _name(loss)
    if loss.is_absent:
        return f"{name} has neither a record nor rows here"
    if not loss.is_closed and loss.has_ended:
        return ""
    if not loss.is_closed:
        return f"{name} left no final report"
    if loss.state == "lost" and loss.lost_at_s is not None:
        return f"{name} was lost at {loss.lost_at_s:,.0f} s"
    if loss.state in {"lost", "failed"}:
        return f"{name} did not finish"
    return ""


def _name(loss: Loss) -> str:
    name = f"worker {loss.worker}"
    if loss.why:
        name += f" ({plain(loss.why, 200)})"
    return name


def due(missing: Sequence[Stretch]) -> str:
    """` due between 12.0 and 20.0 s`; empty if unknown."""
    if not missing:
        return ""
    largest = sorted(missing, key=lambda stretch: -stretch.requests)[:MOST_STRETCHES]
    largest.sort(key=lambda stretch: stretch.from_s)
    texts = list(map(_interval, largest))
    remaining = len(missing) - len(largest)
    if remaining == 1:
        texts.append("in another interval")
    elif remaining:
        texts.append(f"in {remaining:,} more intervals")
    return f" due {listed(texts)}"


def _interval(stretch: Stretch) -> str:
    begin = f"{stretch.from_s:,.1f}"
    if stretch.to_s is None:
        return f"from {begin} s on"
    end = f"{stretch.to_s:,.1f}"
    if begin == end:
        return f"at {begin} s"
    return f"between {begin} and {end} s"


def advice(workers: Sequence[Loss]) -> str:
    """Return what to do about it."""
    away = []
    for loss in workers:
        has_folder = loss.found or loss.recorded_state or loss.state == "failed"
        if (loss.lost or loss.is_absent) and not has_folder:
            away.append(loss)
    if not away:
        return SEE_LOG
    subject = "these workers still have their"
    if len(away) == 1:
        subject = f"worker {away[0].worker} still has its"
    add = f"If the machine of {subject} run folder, add it: tailgauge report RUN_DIR WORKER_DIR."
    return f"{add} Otherwise see the worker's log and run again."


def explanations(workers: Sequence[Loss]) -> Iterator[str]:
    """Yield what is no loss: late workers, silence that ended, rows that were found."""
    for loss in workers:
        name = f"worker {loss.worker}"
        if loss.late_s is not None:
            yield f"{name} joined at {clock(loss.late_s)} and got a share of the load from then on"
        if loss.lost:
            continue
        ended = [stretch for stretch in loss.silent if stretch.to_s is not None]
        if ended:
            lasted_s = sum((stretch.to_s or 0.0) - stretch.from_s for stretch in ended)
            yield f"{name} was silent {spans(ended)} ({lasted_s:,.1f} s); none of its requests is missing"
        if loss.state == "lost" and loss.has_ended:
            yield f"{name} lost the master and ended by itself; all its rows are here"


def notes(loss: Loss) -> list[str]:
    """Notes on the state of a worker, for tables."""
    texts = [f"silent {spans([stretch])}" for stretch in loss.silent]
    if loss.late_s is not None:
        texts.insert(0, f"joined at {clock(loss.late_s)}")
    return texts


def spans(stretches: Sequence[Stretch]) -> str:
    """`from 00:04 to 00:14 and from 00:20`."""
    texts = []
    for stretch in stretches:
        text = f"from {clock(stretch.from_s)}"
        if stretch.to_s is not None:
            text += f" to {clock(stretch.to_s)}"
        texts.append(text)
    return listed(texts, MOST_STRETCHES)
