"""Requests of the steady stage that did not complete: what each shows, by the target's own words first, then by its class.

A request has the kind of its last attempt that ended as it did. What to do about a kind is in advice.py; the table of errors of all
attempts is in errors.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tailgauge.ends import NO_FINISH_REASON, UNKNOWN_FINISH_REASON
from tailgauge.protocol_violations import (
    DAMAGES,
    MALFORMED_EVENT,
    UNKNOWN_EVENT,
    VIOLATIONS,
    other_protocol,
)
from tailgauge.rows import schema
from tailgauge_analysis.metrics.unanswered import SIGNS
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.ends import name_or_none
from tailgauge_analysis.stats.quantiles import Mask
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import Json, table, text

STILL_OPEN = "still open at the end"
LONGEST_QUOTE = 160  # characters of a target's text

# The kinds. Of two that are equally frequent the first one is named.
CONTENT = "content"
UNNAMED_END = "unnamed end"
UNKNOWN_END = "unknown end"
ENGINE = "engine"
EMPTY = "empty"
QUOTA = "quota"
KEY = "key"
MODEL = "model"
PAGE = "page"
REDIRECT = "redirect"
ADDRESS = "address"
REQUEST = "request"
PROTOCOL = "protocol"
OTHER_PROTOCOL = "other protocol"
LIMIT = "limit"
OVERLOAD = "overload"
NOT_READY = "not ready"
GATEWAY = "gateway"
GATEWAY_TIME = "gateway time"
BROKEN = "broken"
BROKEN_OFF = "broken off"
INSIDE = "inside"
WAITING = "waiting"
GONE = "gone"  # of a stretch, which no row shows alone: see onset.py
UNREACHABLE = "unreachable"
NAME = "name"
TLS = "tls"
RESET = "reset"
LEFT = "left"
CLIENT = "client"
PLUGIN = "plugin"
CHECK = "check"
KINDS = (
    CONTENT,
    UNNAMED_END,
    UNKNOWN_END,
    ENGINE,
    EMPTY,
    QUOTA,
    KEY,
    MODEL,
    PAGE,
    REDIRECT,
    ADDRESS,
    REQUEST,
    OTHER_PROTOCOL,
    PROTOCOL,
    LIMIT,
    OVERLOAD,
    NOT_READY,
    GATEWAY,
    GATEWAY_TIME,
    GONE,
    BROKEN,
    BROKEN_OFF,
    INSIDE,
    WAITING,
    UNREACHABLE,
    NAME,
    TLS,
    RESET,
    LEFT,
    CLIENT,
    PLUGIN,
    CHECK,
)

_BY_CLASS = {
    schema.REFUSED: CONTENT,
    schema.FILTERED: CONTENT,
    schema.EMPTY: EMPTY,
    schema.RATE_LIMITED: LIMIT,
    schema.OVERLOADED: OVERLOAD,
    schema.SERVER_ERROR: BROKEN,
    schema.TIMEOUT: WAITING,
    schema.CENSORED: WAITING,
    schema.CONNECT_ERROR: UNREACHABLE,
    schema.TRUNCATED: BROKEN_OFF,
    schema.CANCELLED: LEFT,
    schema.CLIENT_DROP: CLIENT,
    schema.PLUGIN_ERROR: PLUGIN,
    schema.CLIENT_ERROR: REQUEST,
    schema.CHECK_FAILED: CHECK,
}
_BY_STATUS = {
    401: KEY,
    402: QUOTA,
    403: KEY,
    404: ADDRESS,
    405: ADDRESS,
    407: PAGE,
    502: GATEWAY,
    504: GATEWAY_TIME,
    520: GATEWAY,
    521: GATEWAY,
    522: GATEWAY_TIME,
    523: GATEWAY,
    524: GATEWAY_TIME,
}
# The kind of an aborted answer by the name of its error.
_BY_NAME = {NO_FINISH_REASON: UNNAMED_END, UNKNOWN_FINISH_REASON: UNKNOWN_END}
# By the first part of what the system, or we, call a failed connection; others: unreachable.
_BY_CONNECTION = {
    "dns": NAME,
    "tls": TLS,
    "ca_file": TLS,
    "closed": RESET,
    "reset": RESET,
    "stale": RESET,
}
# What targets write in their errors, of which classes and statuses.
_REJECTED = (schema.CLIENT_ERROR, schema.STREAM_ERROR)
_FAILED = (schema.SERVER_ERROR, schema.OVERLOADED, schema.STREAM_ERROR)
_BY_TEXT: tuple[tuple[str, tuple[str, ...], re.Pattern[str]], ...] = (
    (
        QUOTA,
        (schema.RATE_LIMITED, *_REJECTED),
        re.compile(
            r"insufficient_quota|spend_limit|billing_(?:error|hard_limit|not_active)|credit balance|out of credits?"
            r"|insufficient (?:funds|balance|credits?)|payment required",
            re.IGNORECASE,
        ),
    ),
    (
        MODEL,
        _REJECTED,
        re.compile(
            r"model_not_(?:found|available)|unknown[_ ]model|invalid[_ ]model|no such model|\bmodel\b.{0,120}?\b(?:not exist|not found"
            r"|not (?:available|supported|loaded)|unavailable|unloaded|unknown|deprecated|decommissioned|retired)",
            re.IGNORECASE | re.DOTALL,
        ),
    ),
    (
        KEY,
        _REJECTED,
        re.compile(
            r"authentication_error|invalid[_ ]api[_ ]?key|api[_ ]?key (?:not valid|(?:is )?(?:invalid|expired|missing))|unauthorized"
            r"|unauthenticated",
            re.IGNORECASE,
        ),
    ),
    (
        NOT_READY,
        _FAILED,
        re.compile(
            r"loading model|model.{0,40}\bloading|not (?:yet )?ready|starting up|warming up",
            re.IGNORECASE,
        ),
    ),
    (
        GATEWAY,
        _FAILED,
        re.compile(
            r"no healthy upstream|upstream connect error|no (?:available|live|healthy) (?:server|upstream|backend|deployment)"
            r"|no server is available|bad gateway|upstream (?:error|unavailable)",
            re.IGNORECASE,
        ),
    ),
    (
        GATEWAY_TIME,
        _FAILED,
        re.compile(
            r"gateway[_ ]time-?_?out|upstream request timeout|upstream timed out", re.IGNORECASE
        ),
    ),
)
_LABELS = {
    schema.REFUSED: "refused",
    schema.FILTERED: "filtered",
    schema.EMPTY: "empty",
    schema.CANCELLED: "abandoned by their users",
    schema.RATE_LIMITED: "rejected (429)",
    schema.OVERLOADED: "rejected (overloaded)",
    schema.SERVER_ERROR: "with a server error",
    schema.CONNECT_ERROR: "not connected",
    schema.TIMEOUT: "timed out",
    schema.STREAM_ERROR: "with a broken stream",
    schema.TRUNCATED: "truncated",
    schema.PLUGIN_ERROR: "ended by an error of a plugin",
    schema.CHECK_FAILED: "failed a check of their task",
    schema.CENSORED: STILL_OPEN,
    schema.CLIENT_DROP: "dropped by the client",
}
_COLUMNS = ["ended", "status", "error_type", "error_class", "stop_reason", "error_body"]
_EVENTS = ["events", "chunks", "tolerated"]
NO_END_MARK = "no_end_mark"  # of a body that came whole
CUSTOM_SSE = "sse"  # the protocol whose events the scenario names
FEWEST_EVENTS = 2  # of a protocol that may have events before its content
_TIMES = ["sent_at_ns", *SIGNS, "ended_at_ns"]
_NOT_THE_PROTOCOL = VIOLATIONS.keys() | DAMAGES.keys()
_PAGE = re.compile(r"\s*<(?:!doctype html|html|head|body|title|h1)", re.IGNORECASE)
_TITLE = re.compile(r"<(title|h1)[^>]*>(.*?)</\1>", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a request without a complete answer ended, with the target's own text."""

    ended: str
    status: int | None = None
    error_type: str | None = None
    error_class: str | None = None
    """of an error inside the answer: the class that its status would have"""
    stop_reason: str | None = None
    error_body: str = ""
    is_not_understood: bool = False
    """it has events, and none of them was understood"""

    @property
    def kind(self) -> str:
        """Return what the row shows to be the matter."""
        if self.is_not_understood or self.other_protocol:
            return OTHER_PROTOCOL
        if self.ended == schema.ABORTED:
            return _BY_NAME.get(self.error_type or "", ENGINE)
        text = f"{self.error_type or ''} {self.error_body}"
        for kind, classes, pattern in _BY_TEXT:
            if {self.ended, self.error_class}.intersection(classes) and pattern.search(text):
                return kind
        if self.ended == schema.CONNECT_ERROR:
            return _BY_CONNECTION.get(re.split(r"[_:]", self.error_type or "")[0], UNREACHABLE)
        return self._kind_by_status()

    @property
    def label(self) -> str:
        """Return the end behind a number of requests: `3 rejected (401)`."""
        if self.is_not_understood or self._breaks_protocol:
            return "with an answer that is not the protocol's"
        if self.ended == schema.ABORTED:
            return self._label_of_abort()
        if self.ended == schema.CLIENT_ERROR and self.kind == REDIRECT:
            return f"redirected ({self.status})"
        if self.ended == schema.CLIENT_ERROR:
            if not self._has_error_status:
                return "rejected (in a 200)"
            return f"rejected ({self.status})"
        return _LABELS.get(self.ended, self.ended)

    @property
    def other_protocol(self) -> str:
        """Return the protocol whose event ended the answer; empty where none was recognized."""
        if self.error_type != MALFORMED_EVENT:
            return ""
        return other_protocol(self.error_body)

    @property
    def is_page(self) -> bool:
        """Return whether an HTML page came back."""
        return _PAGE.match(self.error_body) is not None

    @property
    def text(self) -> str:
        """Return the target's own words: the message of its error, or the title of its page; empty without any."""
        return plain(_message_of(self.error_body), LONGEST_QUOTE)

    @property
    def _has_error_status(self) -> bool:
        return self.status is not None and self.status >= 300

    @property
    def _breaks_protocol(self) -> bool:
        is_of_answer = (
            self.ended in {schema.CLIENT_ERROR, schema.STREAM_ERROR} and not self._has_error_status
        )
        return is_of_answer and self.error_type in _NOT_THE_PROTOCOL

    def _kind_by_status(self) -> str:
        if self._breaks_protocol:
            return PAGE if self.is_page else PROTOCOL
        if self.status is not None and self._has_error_status:
            return self._kind_of_response(self.status)
        by_class = _BY_CLASS.get(self.error_class or "")
        return by_class or _BY_CLASS.get(self.ended, INSIDE)

    def _kind_of_response(self, status: int) -> str:
        """Return the kind of a whole response that is an error; a page comes from a server for people, or from a gateway."""
        if status < 400:
            return REDIRECT
        failure = _BY_STATUS.get(status)
        if self.is_page and failure == KEY:
            return PAGE
        if failure is not None:
            return failure
        if self.is_page and status >= 500:
            return GATEWAY
        if self.is_page and self.ended == schema.CLIENT_ERROR:
            return PAGE
        return _BY_CLASS.get(self.ended, INSIDE)

    def _label_of_abort(self) -> str:
        if self.kind == UNNAMED_END:
            return "without a finish reason"
        if self.kind == UNKNOWN_END:
            return f"with the unknown finish reason {self.stop_reason!r}"
        return f"aborted by the engine ({self.error_type or self.stop_reason or 'no name'})"


def _message_of(body: str) -> str:
    title = _TITLE.search(body)
    if title is not None:
        return title.group(2)
    try:
        tree = json.loads(body)
    except ValueError:
        if not _PAGE.match(body):
            return body
        return re.sub(r"<[^>]*>", " ", body)
    return _message(tree)


def _message(tree: Any) -> str:
    """Return the message in an error of any shape; empty where there is none."""
    if isinstance(tree, str):
        return tree
    if not isinstance(tree, Mapping):
        return ""
    for name in ("error", "message", "detail", "msg"):
        text = _message(tree.get(name))
        if text:
            return text
    return ""


@dataclass(frozen=True, slots=True)
class Failures:
    """The requests that failed, a row each in order of arrival: their times, `number` of their Failure, `kind` and `label`."""

    rows: pd.DataFrame
    of: tuple[Failure, ...]

    def of_kind(self, kind: str) -> Failures:
        """Return those of a kind."""
        return Failures(self.rows[self.rows["kind"] == kind], self.of)

    @property
    def common(self) -> Failure:
        """Return the most frequent one."""
        return self.of[int(self.rows["number"].mode().iloc[0])]

    @property
    def quote(self) -> str:
        """Return the target's most frequent words, in quotation marks; empty without any."""
        texts = Counter[str]()
        for number, count in self.rows["number"].value_counts().items():
            text = self.of[int(str(number))].text
            if text:
                texts[text] += int(count)
        if not texts:
            return ""
        return f'"{texts.most_common(1)[0][0]}"'

    def __len__(self) -> int:
        return len(self.rows)


def failures(run: Run, fine: Iterable[str]) -> Failures:
    """Return the requests of the steady stage that did not end in one of these classes, which include the complete ones."""
    every = run.result(incomplete)
    return Failures(every.rows[~every.rows["ended"].isin(fine)], every.of)


def incomplete(run: Run) -> Failures:
    """Return the requests of the steady stage without a complete answer."""
    requests = run.steady.requests
    is_complete = requests["ended"].isin(schema.COMPLETE)
    failed = requests.loc[~is_complete, ["request_id", "ended", "scheduled_at_ns", "tags"]]
    attempts = run.steady.attempts.drop_duplicates(["request_id", "ended"], keep="last")
    details = attempts[["request_id", "cause", *_COLUMNS, *_EVENTS, *_TIMES]]
    rows = failed.merge(details, how="left", on=["request_id", "ended"])
    is_checked = rows["ended"] == schema.CHECK_FAILED
    rows.loc[is_checked, "error_body"] = rows.loc[is_checked, "tags"].map(_failed_check)
    return classified(rows.drop(columns="tags"), protocol_of(run))


def _failed_check(tags: object) -> str | None:
    """Return what a task found wrong with its answer, by the tags of the request."""
    try:
        entry = None
        if isinstance(tags, str):
            entry = json.loads(tags)[schema.FAILURE]
    except (ValueError, LookupError, TypeError):
        return None
    return entry if isinstance(entry, str) else None


def protocol_of(run: Run) -> str:
    """Return what the target was asked in."""
    return text(table(run.record["scenario"], "target").get("protocol"))


def classified(rows: pd.DataFrame, protocol: str) -> Failures:
    """Return these rows, which have the columns of attempts, with what each shows."""
    rows = rows.assign(is_not_understood=_is_not_understood(rows, protocol))
    groups = rows.groupby([*_COLUMNS, "is_not_understood"], dropna=False, observed=True, sort=False)
    failures = tuple(_failure(values) for values in groups.size().index)
    number = groups.ngroup().to_numpy(np.int64)
    kinds = np.array([failure.kind for failure in failures], dtype=object)
    labels = np.array([failure.label for failure in failures], dtype=object)
    if not len(rows):
        return Failures(rows.assign(number=number, kind="", label=""), failures)
    return Failures(rows.assign(number=number, kind=kinds[number], label=labels[number]), failures)


def _is_not_understood(rows: pd.DataFrame, protocol: str) -> Mask:
    """Return which answers came whole, in events of which none was understood: no content, no reason, no error."""
    is_whole = rows["error_type"].isin((NO_END_MARK, NO_FINISH_REASON))
    has_facts = (rows["chunks"] > 0) | rows["stop_reason"].notna() | rows["error_class"].notna()
    is_unknown = rows["tolerated"].fillna("").astype(str).str.contains(UNKNOWN_EVENT, regex=False)
    if protocol == CUSTOM_SSE:
        is_unknown = rows["events"] >= FEWEST_EVENTS
    return (is_whole & ~has_facts & is_unknown).to_numpy(np.bool_)


def _failure(values: Any) -> Failure:
    ended, status, error_type, error_class, stop_reason, body, is_not_understood = values
    error_body = ""
    if not pd.isna(body):
        error_body = str(body)
    http_status = None
    if not pd.isna(status):
        http_status = int(str(status).partition(".")[0])
    return Failure(
        ended=str(ended),
        status=http_status,
        error_type=name_or_none(error_type),
        error_class=name_or_none(error_class),
        stop_reason=name_or_none(stop_reason),
        error_body=error_body,
        is_not_understood=bool(is_not_understood),
    )


def list_of_ends(run: Run) -> Json:
    """Return how many requests without a complete answer ended how, the most frequent first."""
    return dict(Counter(run.result(incomplete).rows["label"]).most_common())
