"""The core under sanitizers, for a moment: `make sanitize` does the same for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from sanitizers import run

OPERATIONS = 20_000


@pytest.mark.slow
@pytest.mark.skipif(run.missing() is not None, reason="it needs a C compiler with its sanitizers")
def test_random_calls_find_nothing_wrong_in_the_core(tmp_path: Path) -> None:
    command = [
        sys.executable, run.__file__, "--no-tests", "--seed", "19", "--operations", str(OPERATIONS), "--folder", tmp_path,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{OPERATIONS:,} operations") == 1, "of the driver"
    assert done.stdout.count(f"{OPERATIONS} operations") == 2, "of the harness"
