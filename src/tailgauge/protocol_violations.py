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
CONTENT_AFTER_END = "content_after_end"
SECOND_MESSAGE = "second_message"
EVENTS_REPEATED = "events_repeated"
EVENTS_SKIPPED = "events_skipped"
STREAM_RESTARTED = "stream_restarted"

VIOLATIONS = {  # name -> what is wrong with the answer
    NOT_HTTP: "an answer that is not HTTP/1.1",
    HEAD_TOO_LARGE: "a response head that is too large",
    FRAMING: "a broken chunked framing",
    TOO_LARGE: "too large to be kept in memory",
    COMPRESSED: "compressed although identity was requested",
    NOT_AN_EVENT_STREAM: "an answer that is not an event stream",
    EVENT_TOO_LARGE: "an event too large to be kept in memory",
    TOO_MANY_EVENTS: "far more events than requested",
    MALFORMED_EVENT: "an event that is not the protocol's",
    MALFORMED_USAGE: "impossible token counts",
    MALFORMED_ANSWER: "an answer that is not the protocol's",
    CONTENT_AFTER_END: "content after the end of the answer",
    SECOND_MESSAGE: "two messages in one answer",
}

# What is not the protocol's and is read as the official SDK reads it, or as the peers of this target do.
DONE_AFTER_STOP = "done_after_stop"
DATA_AFTER_DONE = "data_after_done"
DONE_BY_PREFIX = "done_by_prefix"
NO_DONE = "no_done"
NO_BLANK_LINE = "no_blank_line"
EMPTY_DATA = "empty_data"
UNKNOWN_EVENT = "unknown_event"
OF_ANOTHER_PROTOCOL = "an event of protocol "  # and its name: the text of a malformed event
CONTENT_LIST = "content_list"
CONTENT_IN_START = "content_in_start"
TOOL_WITHOUT_INDEX = "tool_without_index"
TOOLS_OF_EQUAL_INDEX = "tools_of_equal_index"
TOOL_INPUT_OBJECT = "tool_input_object"
CONTENT_AFTER_FINISH = "content_after_finish"
NO_DELTA = "no_delta"
THINKING_IN_TEXT = "thinking_in_text"
NO_EVENT_NAME = "no_event_name"
OTHER_CONTENT_TYPE = "other_content_type"
CLOSED_BEHIND_END = "closed_behind_end"

TOLERATED = {  # name -> what the answer has
    DONE_AFTER_STOP: "[DONE] after message_stop",
    DATA_AFTER_DONE: "data after [DONE], which no client reads",
    DONE_BY_PREFIX: "more text after [DONE] on its line",
    NO_DONE: "no end mark after the finish reason",
    NO_BLANK_LINE: "no blank line after the end mark",
    EMPTY_DATA: "events with empty data",
    UNKNOWN_EVENT: "events of unknown types",
    CONTENT_LIST: "content as a list of parts",
    CONTENT_IN_START: "content in content_block_start",
    TOOL_WITHOUT_INDEX: "tool calls without an index",
    TOOLS_OF_EQUAL_INDEX: "tool calls that share an index",
    TOOL_INPUT_OBJECT: "tool input as an object",
    CONTENT_AFTER_FINISH: "content after the finish reason",
    NO_DELTA: "message_delta without a delta",
    THINKING_IN_TEXT: "thinking in the text, between tags such as <think>",
    NO_EVENT_NAME: "events without a name",
    CLOSED_BEHIND_END: "a connection that closes after the end mark, but before the end of the body",
    OTHER_CONTENT_TYPE: "an event stream under another content type",
}

DAMAGES = {  # name -> what is wrong with an answer over several connections, each of which keeps to the protocol
    EVENTS_REPEATED: "with events twice",
    EVENTS_SKIPPED: "with a gap",
    STREAM_RESTARTED: "started over",
}


def quoted(kind: str) -> str:
    """Return the name that a target gave its error, marked where it is one of ours."""
    return f"target: {kind}" if kind in VIOLATIONS or kind in DAMAGES else kind


def other_protocol(text: str) -> str:
    """Return the protocol that the text of a malformed event names; empty where none was recognized."""
    if not text.startswith(OF_ANOTHER_PROTOCOL):
        return ""
    return text.removeprefix(OF_ANOTHER_PROTOCOL)
