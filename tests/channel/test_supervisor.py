"""What must go on for as long as a process lives goes on after it has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="module")
def facts(run_script: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return run_script("channel/scripts/supervisor.py")


def test_a_duty_that_fails_is_named_once_and_begins_again(facts: dict[str, Any]) -> None:
    assert facts["duty"]["calls"] == [7] * 4
    (line,) = facts["duty"]["lines"]
    assert line.startswith(
        "the duty cannot be done: /a: no file descriptor is left to this process: "
    )


def test_locusts_look_at_the_cpu_goes_on_without_a_traceback(facts: dict[str, Any]) -> None:
    first, second = facts["locust"]["lines"]
    assert first.startswith(
        "the CPU use of this process cannot be read: no file descriptor is left"
    )
    assert second.startswith("the CPU use of this process cannot be read: (pid=1")
    assert "Traceback" not in facts["stderr"]
