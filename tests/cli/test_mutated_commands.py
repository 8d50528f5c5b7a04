"""Whole command lines over packaged and mutated scenarios, up to the first request: each ends with a documented code.

The scenarios alone are mutated in tests/scenario; here come overrides and options on top, as a shell passes them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import pytest
from cli.test_flag_combinations import GOOD
from scenario.mutations import CHOICES, KEYS, VALUES, Mutation
from starting.fixtures import TooLongError

from tailgauge.cli import main
from tailgauge.errors import Exit
from tailgauge.scenario.packaged import names

HANGS_S = 10.0
FEW, MANY = 200, 1000
LINES = 60  # at most, on standard error
OPTIONS = (
    "--target",
    "--protocol",
    "--model",
    "--rate",
    "--duration",
    "--concurrency",
    "--requests",
    "--seed",
    "--slo",
    "--max-cost",
)
DOCUMENTED = {code.value for code in Exit} - {Exit.INTERNAL.value}


def override(draw: random.Random) -> str:
    """An override of any key of a scenario, most with a value of its kind."""
    key = draw.choice(KEYS).replace("NAME", draw.choice(("chat", "*", "x", '"a.b"')))
    values = CHOICES.get(key.rpartition(".")[2], [])
    value = draw.choice(values) if values and draw.random() < 0.5 else draw.choice(VALUES)
    return f"{key}={value}"


def command_line(draw: random.Random, mutated: str) -> list[str]:
    """A dry run of a packaged or a mutated scenario, with overrides and options."""
    scenario = mutated if draw.random() < 0.3 else draw.choice(names())
    parts = ["run", scenario, "--dry-run", "--out", "out"]
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        parts += ["--set", override(draw)]
    for option in draw.sample(OPTIONS, draw.choice((0, 0, 1, 2))):
        parts += [option, draw.choice(GOOD[option])]
    return [part for part in parts if "\0" not in part]


def defect(code: object, stderr: str) -> str:
    """What is wrong with an end; empty where nothing is."""
    if code not in DOCUMENTED:
        return f"code {code}: {stderr[-600:]}"
    if "Traceback" in stderr or stderr.count("\n") > LINES or len(stderr) > 20_000:
        return f"{len(stderr):,} characters: {stderr[:600]}"
    if code == Exit.USAGE and not stderr.startswith("tailgauge: "):
        return f"unclear: {stderr[:600]!r}"
    return ""


def end_of(parts: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """Run the command in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["tailgauge", *parts])
    try:
        main.main()
    except SystemExit as ended:
        return ended.code
    except TooLongError:
        return "hang"
    return 0


def test_any_overrides_of_any_scenario_end_with_a_documented_code(
    tmp_path, monkeypatch, bounded, fuzz, capsys
):
    """`TAILGAUGE_FUZZ=SEED` repeats a run, `TAILGAUGE_FUZZ=SEED-NUMBER` one line."""
    seed, numbers, repeats_one = fuzz(FEW, MANY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.setattr(main.run_command, "dry_run", lambda *_, **__: Exit.OK)
    monkeypatch.setattr(main, "_answer", lambda *_, **__: Exit.OK)
    codes: Counter[object] = Counter()
    defects = {}
    for number in numbers:
        draw = random.Random(f"{seed}-{number}")
        Mutation(seed, number).write(tmp_path)
        parts = command_line(draw, "mine.toml")
        bounded(HANGS_S)
        code = end_of(parts, monkeypatch)
        bounded(0)
        codes[code] += 1
        if wrong := defect(code, capsys.readouterr().err):
            defects[f"{seed}-{number}"] = (parts[1:], wrong)
    print(dict(codes))

    assert defects == {}
    if not repeats_one:
        assert codes[0] > len(numbers) / 20
        assert codes[2] > len(numbers) / 3
