"""Protocol violations of a target: their names in rows (`error_type`) and meanings.

A target's error of the same name is quoted (`quoted`), so that these names always mean a violation that we detected. The
limits are far above those of a regular answer and protect a worker's memory and time.
"""

from __future__ import annotations

NOT_HTTP = "not_http"
HEAD_TOO_LARGE = "head_too_large"
FRAMING = "framing"
TOO_LARGE = "too_large"
COMPRESSED = "compressed"
NOT_AN_EVENT_STREAM = "not_an_event_stream"
EVENT_TOO_LARGE = "event_too_large"
TOO_MANY_EVENTS = "too_many_events"
MALFORMED_EVENT = "malformed_event"
MALFORMED_USAGE = "malformed_usage"
MALFORMED_ANSWER = "malformed_answer"
EVENTS_REPEATED = "events_repeated"
EVENTS_SKIPPED = "events_skipped"
STREAM_RESTARTED = "stream_restarted"

VIOLATIONS = {  # name -> what is wrong with the answer
    NOT_HTTP: "no HTTP/1.1",
    HEAD_TOO_LARGE: "a head beyond its bounds",
    FRAMING: "a broken chunked framing",
    TOO_LARGE: "too large to be held",
    COMPRESSED: "compressed although identity was requested",
    NOT_AN_EVENT_STREAM: "no event stream",
    EVENT_TOO_LARGE: "an event too large to be held",
    TOO_MANY_EVENTS: "far more events than requested",
    MALFORMED_EVENT: "an event that is not the protocol's",
    MALFORMED_USAGE: "token counts that cannot be",
    MALFORMED_ANSWER: "an answer that is not the protocol's",
}

DAMAGES = {  # name -> what is wrong with an answer over several connections, each of which keeps to the protocol
    EVENTS_REPEATED: "with events twice",
    EVENTS_SKIPPED: "with a gap",
    STREAM_RESTARTED: "started over",
}


def quoted(kind: str) -> str:
    """The name that a target gave its error, marked where it is one of ours."""
    return f"target: {kind}" if kind in VIOLATIONS or kind in DAMAGES else kind
