"""Say why load that was due was not sent, although the run lasted to its end: who held it, and what kept it.

Nothing is lost here: no such request reached the target, and none has a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.text.formatting import count, listed, plain, plural
from tailgauge_analysis.text.json_values import Json
from tailgauge_analysis.verdict.losses import SEE_LOG, Loss, due, spans

MOST_WORKERS = 3  # in a sentence
SEE_MASTER = "Run the master where nothing suspends it and a core is free for it, then run again."
SEE_NETWORK = "See the network between the master and its workers, then run again."
AGAIN = "Run again for the full load."


@dataclass(frozen=True, slots=True)
class Cause:
    """Why some requests were not sent; `advice` is empty where workers were too slow."""

    requests: int
    text: str
    advice: str


def causes(run: Json, unsent: int, workers: Sequence[Loss]) -> list[Cause]:
    """Return why `unsent` requests were not sent, the cause of most of them first."""
    shares = []
    for loss in workers:
        if loss.unsent:
            shares.append(_cause(run["master_stalled"], loss))
    rest = unsent - sum(cause.requests for cause in shares)
    if rest > 0:
        shares.append(_not_leased(run, workers, rest))
    return sorted(shares, key=lambda cause: -cause.requests)


def _cause(master_stalled: Sequence[Stretch], loss: Loss) -> Cause:
    """Return why a worker did not send what it held: it failed, was lost, was cut off from the master, or was too slow.

    The advice is empty where it was too slow. `master_stalled`: when the master itself was stalled.
    """
    name = f"worker {loss.worker}"
    away = ""
    if loss.silent:
        away = f" {spans(loss.silent)}"
    text = f"{name} held {plural(loss.unsent, 'request')}{due(loss.missing)}"
    if loss.why:
        return Cause(loss.unsent, f"{text}: {plain(loss.why, 200)}", SEE_LOG)
    if loss.state == "lost":
        return Cause(loss.unsent, f"{text}, when the master lost it", AGAIN)
    if loss.came_late:
        text += f", of which {count(loss.came_late)} arrived too late"
        if master_stalled and not away:
            return Cause(loss.unsent, f"{text}: {_stalled(master_stalled)}", SEE_MASTER)
        return Cause(
            loss.unsent,
            f"{text}: the link between the master and {name} was away{away}",
            SEE_NETWORK,
        )
    if away:
        return Cause(loss.unsent, f"{text}: it was silent{away}", SEE_NETWORK)
    return Cause(loss.unsent, f"{text}, and could not send them in time", "")


def _stalled(stretches: Sequence[Stretch]) -> str:
    return f"the master was stalled {spans(stretches)}"


def _not_leased(run: Json, workers: Sequence[Loss], requests: int) -> Cause:
    text = f"no worker got {plural(requests, 'request')}{due(run['not_leased'])}"
    if run["master_stalled"]:
        return Cause(requests, f"{text}: {_stalled(run['master_stalled'])}", SEE_MASTER)
    silent = []
    for loss in workers:
        if loss.silent:
            silent.append(f"worker {loss.worker} was silent {spans(loss.silent)}")
    if silent:
        text += f": {listed(silent[:MOST_WORKERS])}"
    return Cause(requests, text, SEE_NETWORK)
