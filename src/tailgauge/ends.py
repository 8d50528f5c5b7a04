"""How an answer ended, by what it says of its own end. An end mark alone is no success.

`ok`: it ended by itself. Or it ended by its limit: it reached the tokens that were asked for, and the scenario does not say
that its answers end by themselves. Everything else has a class of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge import vendors
from tailgauge.rows import schema

NO_FINISH_REASON = "no_finish_reason"
UNKNOWN_FINISH_REASON = "unknown_finish_reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """What an answer says of its end, and what was asked of it."""

    protocol: str
    stop_reason: str | None
    needs_reason: bool = True  # the protocol names one
    has_content: bool = True
    is_refusal: bool = False  # its text is a refusal, whatever the reason
    output_tokens: int | None = None  # None: not known
    characters: int = 0  # of visible content, which has no more tokens than bytes
    has_hidden_tokens: bool = False  # it thinks: its tokens may be more than its characters
    max_tokens: int = 0  # that were asked for
    ends_naturally: bool = False  # the scenario says that its answers end by themselves


@dataclass(frozen=True, slots=True)
class Ended:
    """The class, and for an engine that gave up the name of the error."""

    ended: str
    error_type: str | None = None


def class_of_end(end: End) -> Ended:
    """Return the class of an answer whose end mark has come."""
    content = schema.OK if end.has_content else schema.EMPTY
    meaning = _meaning(end)
    if meaning == schema.ABORTED:
        return Ended(schema.ABORTED, _abort_name(end))
    if end.is_refusal and meaning in {schema.OK, vendors.LIMIT}:
        return Ended(schema.REFUSED)
    if meaning == vendors.LIMIT:
        return Ended(_by_limit(end, content))
    if meaning == schema.OK:
        return Ended(content)
    return Ended(meaning)


def _meaning(end: End) -> str:
    """Return what the stop reason means; none, or one that nobody knows, is no success."""
    if not end.needs_reason:
        return schema.OK
    if end.stop_reason is None:
        return schema.ABORTED
    return vendors.class_of_stop(end.protocol, end.stop_reason) or schema.ABORTED


def _abort_name(end: End) -> str:
    if end.stop_reason is None:
        return NO_FINISH_REASON
    if vendors.class_of_stop(end.protocol, end.stop_reason) is None:
        return UNKNOWN_FINISH_REASON
    return end.stop_reason


def _by_limit(end: End, content: str) -> str:
    if content == schema.EMPTY:
        return content
    if end.ends_naturally or not _is_reached(end):
        return schema.CUT
    return content


def _is_reached(end: End) -> bool:
    """Return whether the answer has the tokens that were asked for; without a count, unless it surely has not."""
    if end.output_tokens is not None:
        return end.output_tokens >= end.max_tokens
    return end.has_hidden_tokens or end.characters >= end.max_tokens
