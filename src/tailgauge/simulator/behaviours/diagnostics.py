"""Why a prompt cache missed the prompt of a conversation's previous call, in the provider's words.

The caller names the message that answered the previous call; its prompt is compared with that of the new call, in the order
in which the cache reads: model, tools, system, messages.

Sources: the provider's cache diagnostics and the types of its SDK (2.14, 2026-11).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from tailgauge.simulator.behaviours.prefix_cache import Lookup, Prompt

_MEMORY = 10_000  # prompts that are remembered; the oldest go first
_UNAVAILABLE = "unavailable"  # the provider gives no diagnosis
_CHANGES = {"tools": "tools_changed", "system": "system_changed", "parameters": _UNAVAILABLE}


class Diagnostics:
    """The prompts of an endpoint by the message that answered each."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, Prompt] = OrderedDict()

    def remember(self, message_id: str, prompt: Prompt) -> None:
        """Keep the prompt of a message, with which later ones are compared."""
        self._prompts[message_id] = prompt
        if len(self._prompts) > _MEMORY:
            self._prompts.popitem(last=False)

    def compare(self, previous_id: str, prompt: Prompt, lookup: Lookup) -> Mapping[str, Any]:
        """Return the diagnostics of a call that names the message before it."""
        previous = self._prompts.get(previous_id)
        if previous is None:
            return {"cache_miss_reason": {"type": "previous_message_not_found"}}
        missed_tokens = previous.marked_tokens - lookup.cache_read
        if missed_tokens <= 0:
            return {"cache_miss_reason": None}
        change = _change(previous, prompt)
        if change is None or change == _UNAVAILABLE:
            return {"cache_miss_reason": {"type": _UNAVAILABLE}}
        return {"cache_miss_reason": {"type": change, "cache_missed_input_tokens": missed_tokens}}


def _change(previous: Prompt, prompt: Prompt) -> str | None:
    """Return the first part in which two prompts differ; None: the new one continues the previous one."""
    if previous.model != prompt.model:
        return "model_changed"
    previous_sections = dict(previous.sections)
    sections = dict(prompt.sections)
    for section, change in _CHANGES.items():
        if previous_sections.get(section) != sections.get(section):
            return change
    marked_positions = previous.positions[: previous.marked_positions]
    if set(marked_positions) <= set(prompt.positions):
        return None
    return "messages_changed"
