"""Mutated scenarios: each is a plan, or one clear error that names file, key and what was expected; never a traceback or a hang."""

from __future__ import annotations

import re
from collections import Counter

from scenario.mutations import Mutation
from starting.fixtures import TooLongError

from tailgauge.errors import TargetError, UsageError
from tailgauge.plan.resolve import resolve

HANGS_S = 10.0
# What a message says of the file: a key or a place in it, and what would be right.
PLACE = re.compile(r"^[^:]*(?:--set [\w.*-]+|(?:mine|prices)\.toml|prompts\.jsonl|\w+\.csv)\b")
EXPECTATION = re.compile(
    r"expected|unknown key|did you mean|must|not valid|not UTF-8|not JSON|not CSV|does not|do not|no such|there is no|needs?\b|larger|more than"
    r"|cannot|not on this machine|only|leave|missing|empty|has no|set |use |is not|without|beyond|before|has \d+ columns|no known|none of|over |add |two prices|half of|of them are|names no|surrogate"
)  # fmt: skip


def defect(mutation, folder) -> tuple[str, str]:
    """What became of it, and what is wrong with that."""
    try:
        path = mutation.write(folder)
        resolve(str(path), mutation.pairs, folder / "out")
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
    except TooLongError:
        return "hang", f"over {HANGS_S:g} s of CPU"
    except Exception as error:  # noqa: BLE001 - what is looked for
        where = error.__traceback__
        while where.tb_next is not None:
            where = where.tb_next
        return "traceback", f"{type(error).__name__}: {str(error)[:200]} ({where.tb_frame.f_code.co_name})"
    return "planned", ""


def test_a_mutated_scenario_is_planned_or_refused_by_file_and_key(tmp_path, monkeypatch, bounded, fuzz):
    """`TAILGAUGE_FUZZ=SEED` repeats a run, `TAILGAUGE_FUZZ=SEED-NUMBER` one mutation."""
    seed, numbers, repeats_one = fuzz(400, 20_000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    became, defects = Counter(), {}
    for number in numbers:
        mutation = Mutation(seed, number)
        bounded(HANGS_S)
        end, wrong = defect(mutation, tmp_path)
        bounded(0)
        became[end] += 1
        if wrong:
            defects[mutation.name] = f"{end}: {wrong}"
    print(dict(became))

    assert defects == {}
    if not repeats_one:
        assert became["planned"] > len(numbers) / 20
        assert became["refused"] > len(numbers) / 3
