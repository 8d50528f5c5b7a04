"""Why requests of the steady stage did not complete: kinds of failure by what the rows show, and what to do about each.

A request has the kind of its last attempt that ended as it did. A rate is blamed only for what load can cause.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tailgauge.ends import NO_FINISH_REASON, UNKNOWN_FINISH_REASON
from tailgauge.protocol_violations import DAMAGES, VIOLATIONS
from tailgauge.rows import schema
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import ends, errors
from tailgauge_analysis.sections.ends import name_or_none, percent
from tailgauge_analysis.text.formatting import listed, plain, plural
from tailgauge_analysis.text.json_values import text

CHECK_TARGET = "check the target's address, protocol, key and model"
REFUSED_ADVICE = "look at the prompts, the model and its content filter: see How answers ended"
ENGINE_ADVICE = "look at the engine's log: it gave up these answers itself"
STILL_OPEN = "still open at the end"
NAMES = 3  # in a sentence

# The kinds. Of two that are equally frequent the first one is named.
CONTENT = "content"
UNNAMED_END = "unnamed end"
UNKNOWN_END = "unknown end"
ENGINE = "engine"
EMPTY = "empty"
KEY = "key"
REDIRECT = "redirect"
ADDRESS = "address"
REQUEST = "request"
PROTOCOL = "protocol"
BROKEN_OFF = "broken off"
INSIDE = "inside"
LOAD = "load"
SLOW = "slow"
CONNECTION = "connection"
LEFT = "left"
CLIENT = "client"
PLUGIN = "plugin"
KINDS = (
    CONTENT, UNNAMED_END, UNKNOWN_END, ENGINE, EMPTY, KEY, REDIRECT, ADDRESS, REQUEST, PROTOCOL, BROKEN_OFF, INSIDE,
    LOAD, SLOW, CONNECTION, LEFT, CLIENT, PLUGIN,
)  # fmt: skip

_BY_CLASS = {
    schema.REFUSED: CONTENT, schema.FILTERED: CONTENT, schema.EMPTY: EMPTY, schema.RATE_LIMITED: LOAD,
    schema.OVERLOADED: LOAD, schema.SERVER_ERROR: SLOW, schema.TIMEOUT: SLOW, schema.CENSORED: LOAD,
    schema.CONNECT_ERROR: CONNECTION, schema.TRUNCATED: BROKEN_OFF, schema.CANCELLED: LEFT,
    schema.CLIENT_DROP: CLIENT, schema.PLUGIN_ERROR: PLUGIN,
}  # fmt: skip
_BY_STATUS = {401: KEY, 403: KEY, 404: ADDRESS, 405: ADDRESS}  # of a client error; the others: REQUEST
_BY_NAME = {NO_FINISH_REASON: UNNAMED_END, UNKNOWN_FINISH_REASON: UNKNOWN_END}  # of an aborted answer
_LABELS = {
    schema.REFUSED: "refused", schema.FILTERED: "filtered", schema.EMPTY: "empty",
    schema.CANCELLED: "abandoned by their users", schema.RATE_LIMITED: "rejected (429)",
    schema.OVERLOADED: "rejected (overloaded)", schema.SERVER_ERROR: "server errors",
    schema.CONNECT_ERROR: "not connected", schema.TIMEOUT: "timed out", schema.STREAM_ERROR: "broken streams",
    schema.TRUNCATED: "truncated", schema.PLUGIN_ERROR: "ended by an error of a plugin",
    schema.CENSORED: STILL_OPEN, schema.CLIENT_DROP: "dropped by the client",
}  # fmt: skip
_COLUMNS = ["ended", "status", "error_type", "error_class", "stop_reason"]
_NOT_THE_PROTOCOL = VIOLATIONS.keys() | DAMAGES.keys()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The requests without a complete answer that look alike."""

    ended: str
    status: int | None
    error_type: str | None
    error_class: str | None
    """of an error inside the answer: the class that its status would have"""
    stop_reason: str | None
    requests: int

    @property
    def kind(self) -> str:
        """Return what the rows show to be the matter."""
        if self.ended == schema.ABORTED:
            return _BY_NAME.get(self.error_type or "", ENGINE)
        if self.ended == schema.CLIENT_ERROR:
            return self._kind_of_client_error()
        if self.ended == schema.STREAM_ERROR:
            return self._kind_of_stream_error()
        return _BY_CLASS.get(self.ended, INSIDE)

    @property
    def label(self) -> str:
        """Return the end behind a number of requests: `3 rejected (401)`."""
        if self.ended == schema.ABORTED:
            return self._label_of_abort()
        if self.kind == PROTOCOL:
            return "with an answer that is not the protocol's"
        if self.ended == schema.CLIENT_ERROR and self.kind == REDIRECT:
            return f"redirected ({self.status})"
        if self.ended == schema.CLIENT_ERROR:
            return f"rejected ({self.status})" if self._has_error_status else "rejected (in a 200)"
        return _LABELS.get(self.ended, self.ended)

    @property
    def _has_error_status(self) -> bool:
        return self.status is not None and self.status >= 300

    def _kind_of_client_error(self) -> str:
        if self.status is not None and self._has_error_status:
            return REDIRECT if self.status < 400 else _BY_STATUS.get(self.status, REQUEST)
        return PROTOCOL if self.error_type in _NOT_THE_PROTOCOL else REQUEST

    def _kind_of_stream_error(self) -> str:
        if self.error_type in _NOT_THE_PROTOCOL:
            return PROTOCOL
        if self.error_class == schema.CLIENT_ERROR:
            return REQUEST
        return _BY_CLASS.get(self.error_class or "", INSIDE)

    def _label_of_abort(self) -> str:
        if self.kind == UNNAMED_END:
            return "without a finish reason"
        if self.kind == UNKNOWN_END:
            return f"with the unknown finish reason {self.stop_reason!r}"
        return f"aborted by the engine ({self.error_type or self.stop_reason or 'no name'})"


@dataclass(frozen=True, slots=True)
class Cause:
    """What most failures have in common. `sentence`: for the first line, empty where the list of ends says it all."""

    kind: str
    sentence: str
    advice: str


def failures(run: Run, fine: Iterable[str]) -> list[Failure]:
    """Return the requests of the steady stage that did not end in one of these classes, the most frequent first."""
    requests = run.steady.requests
    failed = requests.loc[~requests["ended"].isin(fine), ["request_id", "ended"]]
    attempts = run.steady.attempts.drop_duplicates(["request_id", "ended"], keep="last")
    details = attempts[["request_id", *_COLUMNS]]
    rows = failed.merge(details, how="left", on=["request_id", "ended"])
    groups = rows.groupby(_COLUMNS, dropna=False, observed=True).size()
    found = [_failure(values, int(number)) for values, number in groups.items()]
    return sorted(found, key=lambda failure: -failure.requests)


def _failure(values: Any, requests: int) -> Failure:
    ended, status, error_type, error_class, stop_reason = values
    return Failure(
        ended=str(ended),
        status=None if pd.isna(status) else int(str(status).partition(".")[0]),
        error_type=name_or_none(error_type),
        error_class=name_or_none(error_class),
        stop_reason=name_or_none(stop_reason),
        requests=requests,
    )


def list_of_ends(run: Run) -> Counter[str]:
    """Return how many requests without a complete answer ended how, the most frequent first."""
    counts: Counter[str] = Counter()
    for failure in failures(run, schema.COMPLETE):
        counts[failure.label] += failure.requests
    return Counter(dict(counts.most_common()))


def prevailing(run: Run, fine: Iterable[str] = schema.COMPLETE) -> Cause | None:
    """Return the kind that most of the failed requests have, None where nothing failed."""
    found = failures(run, fine)
    counts: Counter[str] = Counter()
    for failure in found:
        counts[failure.kind] += failure.requests
    if not counts:
        return None
    kind = min(counts, key=lambda name: (-counts[name], KINDS.index(name)))
    of_kind = [failure for failure in found if failure.kind == kind]
    is_half = 2 * counts[kind] >= counts.total()
    sentence = _sentence(kind, of_kind, len(run.steady.requests)) if is_half else ""
    return Cause(kind, sentence, _ADVICE[kind](run, of_kind))


def _sentence(kind: str, found: Sequence[Failure], requests: int) -> str:
    """Return the cause as a share of all requests of the stage, which are those of the list of ends."""
    number = sum(failure.requests for failure in found)
    part = f"{percent(number / requests)} of {plural(requests, 'request')}"
    if kind == CONTENT:
        ends = {failure.ended for failure in found}
        verbs = [name for name in (schema.REFUSED, schema.FILTERED) if name in ends]
        return f"{part} were {' or '.join(verbs)}"
    if kind == UNNAMED_END:
        return f"{part} got an answer without a finish reason"
    if kind == UNKNOWN_END:
        return f"{part} got an answer with an unknown finish reason ({_reasons(found)})"
    if kind == ENGINE:
        return f"{part} were aborted by the engine"
    return ""


def _reasons(found: Sequence[Failure]) -> str:
    names = dict.fromkeys(repr(failure.stop_reason) for failure in found)
    return listed(names, NAMES)


# --- what to do ---------------------------------------------------------------------------------------------------

_Advice = Callable[[Run, Sequence[Failure]], str]


def find_limit(run: Run) -> str:
    """Return what to do about a target that does not complete what it is offered."""
    if run.record["arrival"] == "closed":
        return "use fewer users, or look at the errors"
    target = run.record["target"]
    url = "" if target.get("simulated") else text(target.get("url"))
    option = f" --target {shlex.quote(plain(url, 200))}" if url else ""
    return f"lower the rate, or find the limit: tailgauge run headroom{option}"


def _always(advice: str) -> _Advice:
    return lambda _run, _found: advice


def _slow(run: Run, _found: Sequence[Failure]) -> str:
    """Server errors and timeouts come with load only where the target answers something."""
    if run.steady.requests["ended"].isin(schema.COMPLETE).any():
        return find_limit(run)
    return f"{CHECK_TARGET}, and look at the target's log"


def _unnamed(run: Run, _found: Sequence[Failure]) -> str:
    """An endpoint that never names a reason leaves it out; where others have one, it got lost with the end."""
    seen = "the answers end without a finish reason, SDK users get null"
    if any(row.stop_reason is not None for row in run.result(ends.compute).stop_reasons):
        return f"{seen}: other answers name one, so these probably broke off; look at the logs of engine and gateway"
    return f"{seen}: no answer names one, so the engine or a gateway before it probably leaves it out"


def _unknown(_run: Run, found: Sequence[Failure]) -> str:
    why = "the table of vendors does not know it, so these answers count as aborted"
    return f"look up what the finish reason {_reasons(found)} means at this target: {why}"


def _redirected(run: Run, _found: Sequence[Failure]) -> str:
    for failure in run.result(errors.compute).errors:
        if failure.error_type == schema.REDIRECT and failure.excerpt:
            seen = f"the target answers {failure.status} with location {plain(failure.excerpt, 200)}"
            return f"{seen}: set target.url to it"
    return "set target.url to the address that answers: this one redirects without a location"


_ADVICE: dict[str, _Advice] = {
    CONTENT: _always(REFUSED_ADVICE),
    UNNAMED_END: _unnamed,
    UNKNOWN_END: _unknown,
    ENGINE: _always(ENGINE_ADVICE),
    EMPTY: _always(
        "look at the prompts and the model: its answers have no content; raise output_tokens if it thinks first"
    ),
    KEY: _always("check the key and what it may use: target.api_key_env names its variable"),
    REDIRECT: _redirected,
    ADDRESS: _always(CHECK_TARGET),
    REQUEST: _always("change what is sent: the target rejects these requests, and Errors has its reasons"),
    PROTOCOL: _always(
        "look at the endpoint or the gateway before it: its answers break the protocol; --keep-answers 1 keeps them"
    ),
    BROKEN_OFF: _always(
        "look at the logs and the time limits of the engine and of gateways before it: answers broke off"
    ),
    INSIDE: _always("look at the target's own errors inside its answers: Errors has their texts"),
    LOAD: lambda run, _found: find_limit(run),
    SLOW: _slow,
    CONNECTION: _always(
        "check the target's address, whether it stayed up, and how many connections it allows"
    ),
    LEFT: _always("compare the patience of the users with the latency of the answers"),
    CLIENT: _always("raise limits.in_flight_per_worker, add workers, or lower the rate"),
    PLUGIN: _always("look at the code of the plugin: the notes of the run have its error"),
}
