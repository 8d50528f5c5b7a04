"""A traffic pattern is added in a file of its own and one row; no other file of the product knows its name."""

import json

import pytest
from extension.scratch import TOOK_PLACE

TABLE = "src/tailgauge/patterns/table.py"
PATTERN = '''"""Echo: the same prompt sent a number of times, one call after the other; the user sees the first answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from tailgauge.call import Call, Prompt
from tailgauge.patterns.events import Request, Steps
from tailgauge.patterns.legs import done, leg
from tailgauge.patterns.pattern import Demand, Pattern
from tailgauge.rows.schema import WITH_ANSWER, JOIN
from tailgauge.table import Table


class EchoSettings(Table):
    """The same call again, with `pattern = "echo"`."""

    times: Annotated[int, Field(ge=1, le=10)] = Field(2, description="calls per request")


class Echo(Pattern):
    """Calls that follow one another."""

    name = "echo"
    summary = "the same call again"
    settings_type = EchoSettings
    settings: EchoSettings
    uses = frozenset({"retry", "cache"})
    answer = JOIN

    def steps(self, request: Request) -> Steps:
        """One call after the other, until one fails."""
        call, end = self.call(request.prompt, request.output_tokens), None
        for number in range(self.settings.times):
            end = yield from leg(call, request, self.policies, number)
            if end.ended not in WITH_ANSWER:
                return done(end)
        return replace(done(end), joined_at_ns=end.at_ns)

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Every call reads the prompt."""
        times = self.settings.times
        return Demand(requests * times, requests * times, input_tokens * times, output_tokens * times)

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """The others follow."""
        return super().first_calls(prompts, output_tokens)[0], self.settings.times - 1
'''
SCENARIO = """
description = "The same call three times"
[arrival]
rate_per_s = 5.0
[stages]
duration_s = 20.0
[traffic.chat]
pattern = "echo"
[traffic.chat.echo]
times = 3
"""


ESTIMATE = """
from pathlib import Path
from tailgauge.plan.resolve import resolve
settings = resolve("echo", [], Path("out"))
print(settings.estimate.calls, settings.estimate.requests)
"""
DRY_RUN = "--dry-run"


@pytest.fixture
def with_echo(scratch):
    """The copy with one more pattern and a scenario of it."""
    scratch.write("src/tailgauge/patterns/echo.py", PATTERN)
    files = "from tailgauge.patterns import batch, fan_out, job, progressive, resume, streaming, structured\n"
    scratch.insert(TABLE, files, "from tailgauge.patterns.echo import Echo\n")
    scratch.insert(TABLE, "    batch.Batch,\n", "    Echo,\n")
    scratch.write("scenarios/echo.toml", SCENARIO)
    return scratch


@pytest.mark.slow
def test_a_pattern_touches_three_files_at_most(with_echo):
    ran = with_echo.run("-m", "tailgauge", "run", "echo", DRY_RUN, "--out", "out")

    assert ran.returncode == 0, ran.stderr
    run = json.loads(next(with_echo.root.glob("out/runs/*/run.json")).read_text())
    report = json.loads(next(with_echo.root.glob("out/reports/*/report.json")).read_text())
    assert run["conservation"]["dispatched"] > 50
    assert run["patterns"] == {"echo": {"answer": "join", "like": "echo", "price_share": 1.0}}
    of_requests = {row["metric"] for row in report["latency"] if row["n"]}
    assert "join" in of_requests
    assert "ttft" not in of_requests
    assert len(with_echo.changed) <= 3


def test_its_calls_are_estimated(with_echo):
    calls, requests = map(int, with_echo.run("-c", ESTIMATE).stdout.split())

    assert calls == 3 * requests > 150


def test_its_keys_are_refused_with_another_pattern(with_echo):
    ran = with_echo.run("-m", "tailgauge", "run", "streaming", "--set", "traffic.chat.echo.times=3")

    assert ran.returncode == 2
    assert "does not apply with pattern = 'streaming'" in ran.stderr


@pytest.mark.slow
def test_it_runs_against_the_simulated_endpoint(with_echo):
    shorter = ["--set", "stages.duration_s=3", "--set", "simulated.ttft_ms=20"]
    ran = with_echo.run("-m", "tailgauge", "run", "echo", *shorter, "--out", "out")

    assert ran.returncode in TOOK_PLACE, ran.stdout + ran.stderr
    run = json.loads(next(with_echo.root.glob("out/runs/*/run.json")).read_text())
    assert run["conservation"]["ended"] == {"ok": run["conservation"]["dispatched"]}
