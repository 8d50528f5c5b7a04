"""Drawn command lines: each ends with a documented exit code and clear lines; never a traceback or a hang."""

from __future__ import annotations

import random
from collections import Counter

import click
import pytest
from starting.programs import TAILGAUGE

from tailgauge.cli.main import cli
from tailgauge.errors import Exit

CPU_S = 10  # of one command
LINES = 60  # at most, on standard error
ODD = ("", " ", "-1", "0", "nan", "inf", "1e999", "9" * 5000, "0x" + "F" * 50, "x", "é\u202e", "\udcff", "a" * 300, ".", "/dev/zero", "/dev/null", "none", "--", "-rf", "{}", "[" * 300)  # fmt: skip
SETS = ("arrival.rate_per_s=fast", "seed=" + "9" * 5000, "a.b.c=1", "x", "=", "traffic.*.output_tokens=3", "target={", "slo.a=ttft p95 < 1s", "guard.prices=/dev/zero", "arrival.trace.file=.")  # fmt: skip
GOOD = {
    "--target": ("http://127.0.0.1:9",), "--protocol": ("openai", "sse"), "--model": ("tiny", "x"), "--rate": ("3", "20", "2,4"),
    "--duration": ("2s", "3"), "--requests": ("5", "40"), "--concurrency": ("2", "1,3"), "--workers": ("1", "2"), "--seed": ("7",),
    "--slo": ("chat: ttft p95 < 800ms", "ttft p95 < 1s", "error_rate < 1%"), "--set": SETS, "--max-cost": ("5",), "--web": ("8089",),
    "--metric": ("ttft_sched", "tpot"), "--allow": ("seed", "traffic.chat.hedge"), "--baseline": (".", "kept"), "--keep": ("2",), "--older-than": ("24h",), "--profile": ("haiku",),
}  # fmt: skip
ENDLESS = {
    "endpoint": ("--port", "70000"),
    "worker": ("--bind", "x"),
    "calibrate": ("--planned", "-1"),
}  # until they are ended


def commands(group: click.Group, at: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], click.Command] = {}
    for name, one in group.commands.items():
        found |= commands(one, (*at, name)) if isinstance(one, click.Group) else {(*at, name): one}
    return found


def line(draw: random.Random, folders: list[str]) -> list[str]:
    """A command with some of its options, most with a possible value."""
    name, one = draw.choice(sorted(commands(cli).items()))
    parts = [*name]
    options = [
        param for param in one.params if isinstance(param, click.Option) and not param.hidden
    ]
    for option in draw.sample(options, min(len(options), draw.choice((0, 1, 2, 3, 6)))):
        flag = option.opts[0]
        if flag in {"--lifeline", "--clean", "--yes", "--out", "--open", "--sweep"}:
            continue
        parts.append(flag)
        if not option.is_flag:
            good = draw.random() < 0.6 and GOOD.get(flag)
            parts.append(draw.choice(good or ODD))
    given = ("quickstart", "streaming", "mix.toml", "headroom", *folders, *ODD)
    parts += draw.sample(
        given[: 4 + len(folders)] if draw.random() < 0.6 else given, draw.choice((0, 1, 1, 1, 2, 3))
    )
    if name[-1] in {"run", "checkup"}:
        parts.append("--dry-run")
        parts += ["--duration", "2s"] if name[-1] == "run" and draw.random() < 0.7 else []
    return [word for word in (*parts, *ENDLESS.get(name[-1], ())) if "\0" not in word]


@pytest.mark.slow
def test_any_combination_of_flags_ends_with_a_documented_code(
    write, tmp_path, command, fuzz, monkeypatch
):
    """`TAILGAUGE_FUZZ=SEED` repeats a run, `TAILGAUGE_FUZZ=SEED-NUMBER` one line."""
    seed, numbers, repeats_one = fuzz(10, 100)
    folders = [str(write(name, n=30, run_id=name)) for name in ("a", "b")]
    codes: Counter[int] = Counter()
    defects = {}
    for number in numbers:
        parts = line(random.Random(f"{seed}-{number}"), folders)
        bounded = ["bash", "-c", f'ulimit -t {CPU_S}; exec "$@"', "-", TAILGAUGE, *parts]
        done = command(bounded, 120, cwd=tmp_path)
        codes[done.returncode] += 1
        text = done.stdout + done.stderr
        wrong = done.returncode not in set(map(int, Exit)) - {Exit.INTERNAL} or "Traceback" in text
        unclear = done.returncode == Exit.USAGE and not done.stderr.strip()
        if wrong or unclear or done.stderr.count("\n") > LINES or len(done.stderr) > 20_000:
            defects[f"{seed}-{number}"] = (
                f"{[word[:80] for word in parts]}: {done.returncode}: {text[-400:]}"
            )
    print(f"exit codes {dict(codes)}")

    assert defects == {}
    if not repeats_one:
        assert codes[Exit.USAGE] > len(numbers) / 4
