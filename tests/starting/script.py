"""What a script prints for `run_script`: one JSON object, case -> facts."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import gevent

Case = Callable[[], Any]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """A case of this script; its facts go under its name."""
    CASES[function.__name__] = function
    return function


def print_facts(*cases: Case, limit_s: float | None = 20) -> None:
    """Run these cases, or those of `CASES`, each bounded in time; one that raises leaves the others alone."""
    facts = {}
    for name, function in ({one.__name__: one for one in cases} or CASES).items():
        try:
            with gevent.Timeout(limit_s):
                facts[name] = function()
        except BaseException:  # noqa: BLE001 - the test shows it
            facts[name] = {"raised": traceback.format_exc()}
    print(json.dumps(facts))
    sys.stdout.flush()
