"""`tailgauge --help` answers at once: no heavy import stands before the first line."""

import resource
import statistics

ROUNDS = 5
PROMISE_S = 0.5
HEAVY = {"pydantic", "numpy", "pyarrow", "gevent", "locust", "anthropic", "openai", "aiohttp", "pandas", "jinja2"}  # fmt: skip


def test_help_takes_less_than_half_a_second(command):
    """Of CPU time; on a machine so busy that a bare interpreter takes 50 ms, help may take ten times that instead."""
    bare, help_page = [], []
    for _ in range(ROUNDS):
        bare.append(_seconds(command, ["python", "-c", "pass"]))
        help_page.append(_seconds(command, ["tailgauge", "--help"]))

    allowed = max(PROMISE_S, 10 * statistics.median(bare))
    assert statistics.median(help_page) < allowed, f"help: {help_page}, bare interpreter: {bare}"


def test_help_loads_nothing_heavy(command):
    loaded = command(["python", "-c", "import sys, tailgauge.cli.main; print(*sys.modules)"])

    assert "tailgauge.cli.main" in loaded.stdout.split()
    assert set(loaded.stdout.split()).isdisjoint(HEAVY)


def _seconds(command, line) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = command(line)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert result.returncode == 0, result.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
