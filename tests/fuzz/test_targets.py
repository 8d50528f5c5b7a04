"""What reads the bytes of others keeps its rules: for inputs that broke one once, and for some that are drawn.

`make fuzz` draws for minutes; see run.py.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest
from fuzz import session
from fuzz.mutator import Mutator

RUN = Path(__file__).parent / "run.py"
FEW, MANY = 100, 2000
COMPILED = {"openai_events", "anthropic_events"}  # compare compiled code with Python


@pytest.mark.parametrize("name", session.NAMES)
def test_a_target_keeps_its_rules(name, command, fuzz, tmp_path):
    """`TAILGAUGE_FUZZ=SEED` repeats the drawn inputs."""
    if name in COMPILED and find_spec("tailgauge.transport._core") is None:
        pytest.skip("nothing is compiled here: that needs Linux, a C compiler and Python's headers")
    seed, numbers, _ = fuzz(FEW, MANY)
    options = [
        "--target",
        name,
        "--seed",
        str(seed),
        "--inputs",
        str(len(numbers)),
        "--keep-nothing",
    ]

    done = command([sys.executable, RUN, *options], 600, cwd=tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(numbers):,} inputs" in done.stdout


def test_every_folder_of_kept_inputs_is_that_of_a_target():
    folders = {path.name for path in (session.FOLDER / "corpus").iterdir()}

    assert folders <= set(session.NAMES)


def test_the_same_seed_draws_the_same_inputs_and_most_differ():
    mutator = Mutator([b'{"a": 1, "b": [2.5]}\n', b"GET / HTTP/1.1\r\n\r\n", b""])
    first = [mutator.draw(Random(number)) for number in range(200)]

    assert first == [mutator.draw(Random(number)) for number in range(200)]
    assert len(set(first)) > 100


def test_a_failing_input_is_made_smaller(monkeypatch):
    """Only what the failure needs is left."""

    class Target:
        @staticmethod
        def corpus() -> list[bytes]:
            return [b"a long text with needle in it " * 20]

        @staticmethod
        def check(data):
            assert b"needle" not in data

    monkeypatch.setattr(session.importlib, "import_module", lambda _: Target)
    found = session.Session("none", keeps=False)
    found.replay()
    ((_, failure),) = found.failures.items()

    assert failure.file == "b'needle'"
