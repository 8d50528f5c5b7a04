"""A plan beside the limits of [guard]: it fails its dry run, and a real run says before its start that it will end early."""

import json
from pathlib import Path

import pytest

from tailgauge.cli.run import dry_run, settings_of
from tailgauge.errors import Exit
from tailgauge.live.terminal import announcement
from tailgauge.plan.resolve import Settings

PLAN = """
[stages]
duration_s = 5
[target]
model = "claude-haiku-4-5"
[traffic.chat]
prompt_tokens = 100
output_tokens = 20
[arrival]
"""
OPEN = "rate_per_s = 4\n"
CLOSED = "process = 'closed'\nclosed.users = 2\n"


def settled(folder: Path, arrival: str, *sets: str, **given: object) -> Settings:
    path = folder / "plan.toml"
    path.write_text(PLAN + arrival, encoding="utf-8")
    return settings_of(str(path), given, sets, out=folder, sends=False)


def dried(settings: Settings, *, as_json: bool = False) -> tuple[Exit, list[str], list[str]]:
    lines: list[str] = []
    errors: list[str] = []
    code = dry_run(settings, lines.append, errors.append, as_json=as_json, pages=[])
    return code, lines, errors


@pytest.mark.parametrize(
    ("given", "sets", "text"),
    [
        ({"max_cost": 0.001}, (), "the plan exceeds --max-cost: expected 0.004 USD, allowed 0.001"),
        ({"max_requests": 3}, (), "the plan exceeds --max-requests: expected 20 calls, allowed 3"),
        ({"max_tokens": 5}, (), "the plan exceeds --max-tokens: expected 2,400 tokens, allowed 5"),
        (
            {"max_requests": 3},
            ("guard.max_tokens=2399",),
            (
                "the plan exceeds --max-requests: expected 20 calls, allowed 3; "
                "the plan exceeds --max-tokens: expected 2,400 tokens, allowed 2,399"
            ),
        ),
    ],
)
def test_a_plan_that_exceeds_a_limit_fails_before_its_dry_run(tmp_path, given, sets, text):
    settings = settled(tmp_path, "process = 'constant'\n" + OPEN, *sets, **given)
    code, lines, errors = dried(settings)
    as_json = json.loads(dried(settings, as_json=True)[1][0])

    assert (code, lines) == (Exit.FAILED, [f"FAIL  {text}"])
    assert errors[0].startswith("plan  dry run: nothing is sent  4 requests/s for 5s")
    assert (
        errors[1]
        == "expected: 20 requests, 2,000 input and up to 400 output tokens, up to 0.004 USD"
    )
    assert (as_json["exit_code"], as_json["result"]) == (1, {"outcome": "FAIL", "sentence": text})
    assert any(line.endswith(": the run will end early") for line in announcement(settings, 1))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("scenario", "given", "is_noted"),
    [
        ("process = 'constant'\n" + OPEN, {"max_requests": 12}, True),
        ("process = 'constant'\n" + OPEN, {"max_requests": 500}, False),
        ("process = 'constant'\n" + OPEN, {"max_tokens": 500}, False),
        (OPEN, {"concurrency": 4, "max_requests": 12}, True),
        (OPEN, {"concurrency": 4}, False),
        (f"{OPEN}[guard]\nmax_requests = 12\n", {}, False),
    ],
)
def test_a_low_limit_of_requests_names_the_option_for_their_number(
    tmp_path, scenario, given, is_noted
):
    text = " ".join(line.strip() for line in announcement(settled(tmp_path, scenario, **given), 1))

    assert (
        "safety limit and counts warm-up and preflight; to send 12 requests: --requests 12" in text
    ) == is_noted


def test_a_limit_of_the_file_has_the_name_of_its_key(tmp_path):
    settings = settled(tmp_path, f"{OPEN}[guard]\nmax_requests = 3\n")

    assert dried(settings)[1][0].startswith("FAIL  the plan exceeds guard.max_requests: expected ")


@pytest.mark.slow
def test_where_no_plan_is_known_what_the_dry_run_used_is_compared(tmp_path):
    settings = settled(tmp_path, CLOSED, max_requests=2)
    code, lines, errors = dried(settings)

    assert code == Exit.FAILED
    assert lines[0].startswith("FAIL  the plan exceeds --max-requests: expected ")
    assert lines[0].endswith(" calls, allowed 2")
    assert len(lines) == 2, "the report of the dry run follows"
    assert errors[1].startswith("expected: 2 users of a closed loop")


@pytest.mark.slow
@pytest.mark.parametrize(
    "limits", [{}, {"max_requests": 500, "max_tokens": 50_000, "max_cost": 1.0}]
)
def test_a_plan_within_its_limits_does_not_fail(tmp_path, limits):
    settings = settled(tmp_path, OPEN, **limits)

    assert dried(settings)[0] == Exit.OK
    assert not any("exceeds" in line for line in announcement(settings, 1))
