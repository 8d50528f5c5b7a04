"""What a user may have meant: the names nearest to an unknown one, the number in a text with a unit."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection

SECONDS = {
    **dict.fromkeys(("ms", "millis", "milliseconds"), 0.001),
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
LONGEST_URL = 200  # characters in a message
_NUMBER_AND_UNIT = re.compile(r"\s*([-+]?(?:\d[\d_,]*(?:\.\d+)?|\.\d+))\s*(/?[a-zA-Z%]*)\s*")


def near_names(
    word: str, names: Collection[str], count: int = 1, cutoff: float = 0.55
) -> list[str]:
    """Return the names that a user may have meant, the nearest first; at most `count`.

    The same name in other letters is the only one; then come a name that goes on behind the word, and names spelt alike.
    """
    by_lower = {name.lower(): name for name in names}
    lowered = word.lower()
    if lowered in by_lower:
        return [by_lower[lowered]]
    matches = difflib.get_close_matches(lowered, by_lower, n=count, cutoff=cutoff)
    if len(word) > 2:
        longer = [name for name in by_lower if name.startswith((f"{lowered}_", f"{lowered}-"))]
        if len(longer) == 1:
            matches = [*longer, *matches]
    return [by_lower[name] for name in dict.fromkeys(matches)][:count]


def url_argument(url: str) -> str:
    """Return a URL as the argument of a proposed command; "URL" where it is long or may have a password."""
    if "@" in url or len(url) > LONGEST_URL:
        return "URL"
    return shlex.quote(url)


def nearest(word: str, names: Collection[str], count: int = 1) -> str:
    """Return the suggestion of a message about an unknown name; empty where none is near."""
    near = near_names(word, names, count)
    if not near:
        return ""
    return f"; did you mean {' or '.join(near)}?"


def number_and_unit(text: str) -> tuple[float, str] | None:
    """Return the number and the unit, in lower case, of a text such as `60s`, `1,000` or `5 minutes`; None for others."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None:
        return None
    value = float(re.sub("[_,]", "", match[1]))
    unit = match[2].lower()
    return (value * 1000, "") if unit == "k" else (value, unit)
