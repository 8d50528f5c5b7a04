"""What becomes of a scenario with something wrong in it, and what is wrong with that."""

from __future__ import annotations

import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailgauge.errors import TargetError, UsageError
from tailgauge.plan.resolve import resolve

# What a message says of the file: a key or a place in it, and what would be right.
PLACE = re.compile(r"^[^:]*(?:--set [\w.*-]+|(?:mine|prices)\.toml|prompts\.jsonl|\w+\.csv)\b")
EXPECTATION = re.compile(
    r"expected|unknown key|did you mean|must|not valid|not UTF-8|not JSON|not CSV|does not|do not|no such|there is no|needs?\b|larger|more than"
    r"|cannot|not on this machine|only|leave|missing|empty|has no|set |use |is not|without|beyond|before|has \d+ columns|no known|none of|over |add |raise |write it as|two prices|half of|of them are|names no|surrogate"
)  # fmt: skip


def defect(path: Path, pairs: Sequence[tuple[str, Any]], folder: Path) -> tuple[str, str]:
    """What became of it, and what is wrong with that: it is a plan, or a refusal that names file, key and what was expected."""
    try:
        resolve(str(path), pairs, folder / "out")
    except TargetError:
        return "no key", ""
    except UsageError as error:
        text = str(error)
        wrong = [
            line[:300]
            for line in text.splitlines()
            if not line.startswith("  ")  # the line of a fault in TOML, and its caret
            if not PLACE.search(line.replace(str(folder), "")) or not EXPECTATION.search(line)
        ]
        if len(text) > 20_000 or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text):
            wrong.append(f"{len(text)} characters: {text[:200]!r}")
        return "refused", "; ".join(wrong[:2])
    except Exception as error:  # noqa: BLE001 - what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1].name
        return "traceback", f"{type(error).__name__}: {str(error)[:200]} ({where})"
    return "planned", ""
