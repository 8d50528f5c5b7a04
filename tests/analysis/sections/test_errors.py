"""What the section says where attempts failed, where the end of the run closed some, and where neither happened."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from tailgauge_analysis.sections.errors import Errors, Failure, compute, section

TIMEOUT = Failure(
    ended="timeout", status=None, error_type="", limit_kind="", attempts=3, steady=3, excerpt=""
)


@pytest.mark.parametrize(
    ("failures", "still_open", "answer"),
    [
        ([], 0, "No attempt failed."),
        ([], 5, "No attempt failed; 5 attempts still open at the end."),
        ([TIMEOUT], 0, "3 attempts failed."),
        ([TIMEOUT], 1, "3 attempts failed; 1 attempt still open at the end."),
    ],
)
def test_attempts_that_the_end_closed_are_named_beside_those_that_failed(
    failures: list[Failure], still_open: int, answer: str
) -> None:
    found = section(Errors(errors=failures, other_failures=0, still_open=still_open))

    assert found.answer == answer
    assert found.is_folded == (not failures)


def test_calls_of_the_preflight_are_neither_failed_nor_open():
    columns = ("stage", "ended", "status", "error_type", "stop_reason", "limit_kind", "error_body")
    rows = [("preflight", ended, None, None, None, None, None) for ended in ("censored", "timeout")]
    run = SimpleNamespace(frames=SimpleNamespace(attempts=pd.DataFrame(rows, columns=columns)))

    assert compute(run) == Errors(errors=[], other_failures=0, still_open=0)
