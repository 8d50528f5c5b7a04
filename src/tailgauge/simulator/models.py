"""The models of the endpoint: what it says of each, and which names a call may use.

Rule: pure. One object carries the fields of both providers, so that either SDK reads it. With the default list a call
may name any model; a list of one's own is closed, and a name that is not on it is answered as not found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailgauge.simulator.ask import MAX_OUTPUT_TOKENS, Refused

OPEN = ("tiny",)  # the default list

_YES, _NO = {"supported": True}, {"supported": False}
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_CAPABILITIES = {
    "batch": _YES,
    "citations": _NO,
    "code_execution": _NO,
    "context_management": _NO,
    "effort": _YES | dict.fromkeys(_EFFORTS, _YES),
    "image_input": _YES,
    "pdf_input": _YES,
    "server_tools": _NO | {"code_execution": _NO, "web_search": _NO},
    "structured_outputs": _NO,
    "thinking": _YES | {"types": dict.fromkeys(("adaptive", "between_tools", "disabled", "enabled"), _YES)},
}


def described(name: str) -> dict[str, Any]:
    """What both providers say of a model."""
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",  # as the provider writes an unknown date
        "owned_by": "tailgauge",
        "lifecycle": "active",
        "line": None,
        "max_input_tokens": 1_000_000,
        "max_tokens": MAX_OUTPUT_TOKENS,
        "capabilities": _CAPABILITIES,
    }


def listed(names: Sequence[str], name: str) -> dict[str, Any]:
    """A model of the list, or not found."""
    if name not in names:
        raise _unknown(name)
    return described(name)


def check(names: Sequence[str], name: str) -> None:
    """Whether a call may name this model."""
    if tuple(names) != OPEN and name not in names:
        raise _unknown(name)


def _unknown(name: str) -> Refused:
    return Refused(404, f"model: {name}", "model")
