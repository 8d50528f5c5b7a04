"""A page of a list, as Anthropic's lists have it.

Rule: pure: objects with an `id` and the query in, the page out. Without a limit asked for, the caller's default holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailgauge.simulator.ask import invalid

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


def page(items: Sequence[Mapping[str, Any]], query: Mapping[str, str], default_limit: int) -> dict[str, Any]:
    """The items after `after_id`, or those just before `before_id`, `limit` at most."""
    limit = _limit(query.get("limit"), default_limit)
    ids = [item["id"] for item in items]
    if "before_id" in query:
        end = _place(ids, "before_id", query["before_id"])
        start = max(0, end - limit)
        more = start > 0
    else:
        start = _place(ids, "after_id", query["after_id"]) + 1 if "after_id" in query else 0
        end = min(len(ids), start + limit)
        more = end < len(ids)
    shown = list(items[start:end])
    first, last = (shown[0]["id"], shown[-1]["id"]) if shown else (None, None)
    return {"data": shown, "has_more": more, "first_id": first, "last_id": last}


def _limit(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 4 or not 1 <= int(text) <= MAX_LIMIT:
        raise invalid("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
    return int(text)


def _place(ids: Sequence[str], param: str, wanted: str) -> int:
    if wanted not in ids:
        raise invalid(param, "no such object")
    return ids.index(wanted)
