"""Load that was never sent although the run lasted to its end: who held it, when it was due, and why it stayed.

Nothing is lost here: no such request reached the target, and none has a row.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge_analysis.text.formatting import count, listed, plain, plural
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict.conservation import Conservation
from tailgauge_analysis.verdict.losses import SEE_LOG, Loss, due, spans

LEFT_OUT = "leave_out"  # of limits.lost_share: the share of a lost worker is not sent
MOST = 3  # in a sentence
SEE_MASTER = "Run the master where nothing suspends it and a core is free for it, then run again."
SEE_NETWORK = "See the network between the master and its workers, then run again."
AGAIN = "Run again for the full load."


@dataclass(frozen=True, slots=True)
class Cause:
    """Why some requests were not sent; `advice` is empty where workers were too slow."""

    requests: int
    text: str
    advice: str


def causes(run: Json, counted: Conservation, *, leaves_out: bool) -> list[Cause]:
    """The largest first."""
    found = [_held(run, one) for one in counted.workers if one.unsent]
    rest = counted.unsent - sum(one.requests for one in found)
    if rest > 0:
        found.append(_not_leased(run, counted.workers, rest, leaves_out=leaves_out))
    return sorted(found, key=lambda one: -one.requests)


def _held(run: Json, one: Loss) -> Cause:
    text = f"worker {one.worker} held {plural(one.unsent, 'request')}{due(one.missing)}"
    if one.why:
        return Cause(one.unsent, f"{text}: {plain(one.why, 200)}", SEE_LOG)
    if one.state == "lost":
        return Cause(one.unsent, f"{text}, when the master lost it", AGAIN)
    if one.came_late:
        text += f", of which {count(one.came_late)} arrived too late"
        if run["master_stalled"] and not one.silent:
            return Cause(one.unsent, f"{text}: {_stalled(run)}", SEE_MASTER)
        away = f" {spans(one.silent)}" if one.silent else ""
        link = f"the link between the master and worker {one.worker} was away{away}"
        return Cause(one.unsent, f"{text}: {link}", SEE_NETWORK)
    if one.silent:
        return Cause(one.unsent, f"{text}: it was silent {spans(one.silent)}", SEE_NETWORK)
    return Cause(one.unsent, f"{text}, and could not send them in time", "")


def _stalled(run: Json) -> str:
    return f"the master was stalled {spans(run['master_stalled'])}"


def _not_leased(run: Json, workers: tuple[Loss, ...], rest: int, *, leaves_out: bool) -> Cause:
    text = f"no worker got {plural(rest, 'request')}{due(run['not_leased'])}"
    if run["master_stalled"]:
        return Cause(rest, f"{text}: {_stalled(run)}", SEE_MASTER)
    away = [one for one in workers if one.silent or one.state == "lost"]
    if leaves_out and away:
        return Cause(rest, f"{text}: the share of a lost worker is left out (limits.lost_share)", AGAIN)
    silent = [f"worker {one.worker} was silent {spans(one.silent)}" for one in away if one.silent][:MOST]
    return Cause(rest, f"{text}: {listed(silent)}" if silent else text, SEE_NETWORK)
