"""From `--set` texts to settings: what is refused and how, and that a scenario's table arrives whole."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from tailgauge.cli.main import simulated as settings
from tailgauge.errors import ScenarioError, UsageError
from tailgauge.scenario.model import parse, spelled
from tailgauge.scenario.simulated import FIXED, ProfileName, Simulated
from tailgauge.simulator.engine.config import PROFILES, engine_of
from tailgauge.simulator.http.requests import ServerOptions

OPTIONS = dict.fromkeys(("api_key_env", "certfile", "keyfile"))
EVERYTHING: dict[str, Any] = {
    "profile": "sonnet",
    "engine": {"replicas": 2, "draft_tokens": 3, "cancel_mode": "after_ms", "cancel_after_ms": 20.0},
    "limits": {"rpm": 60, "itpm": 1000, "otpm": 100, "otpm_mode": "reserve", "ramp_growth": 1.5, "spend": 0.3},
    "cache": {"mode": "marked", "ttl_5m_s": 2.0, "sliding": False},
    "stragglers": {"slow_share": 0.01},
    "faults": {"a": {"kind": "cut", "share": 0.25}, "b": {"kind": "status", "share": 0.5, "retry_after_s": 3}},
    "billing": {"read": 0.1},
    "content": {"thinking_display": "omitted"},
}  # fmt: skip


def given(*sets: str, profile: str | None = None) -> Simulated:
    table, options = settings(sets, profile, OPTIONS)
    assert options == ServerOptions()
    return table


def test_every_profile_has_a_name_in_the_scenario():
    assert set(get_args(ProfileName)) == {FIXED, *PROFILES}


def test_nothing_is_on_by_default():
    plain = given()
    assert plain == Simulated()
    assert (plain.cache.mode, plain.faults, engine_of(plain)) == ("off", {}, None)


def test_keys_come_with_the_tables_name_or_without():
    assert given("limits.itpm=400000") == given("simulated.limits.itpm=400000")
    assert given("profile=haiku") == given(profile="haiku")
    assert engine_of(given(profile="haiku")) == PROFILES["haiku"]


def test_a_scenarios_table_arrives_whole_through_the_command_line():
    table = parse({"name": "x", "simulated": EVERYTHING}, "test").simulated
    arrived = given(spelled("simulated", table.model_dump(exclude_none=True)))
    assert arrived == table
    engine, profile = engine_of(arrived), PROFILES["sonnet"]
    assert engine is not None
    assert (engine.replicas, engine.slots) == (2, profile.slots)
    assert engine.draft_tokens == 3
    assert (engine.cancel_mode, engine.cancel_after_ms) == ("after_ms", 20.0)


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["limits.itmp=3"], "simulated.limits.itmp: unknown key; did you mean itpm?"),
        (["limits.rpm=0"], "simulated.limits.rpm: expected a number >= 1"),
        (["limits.rpm=1.5"], "simulated.limits.rpm: expected a whole number"),
        (["limits=3"], "simulated.limits: expected a table"),
        (["profile=sonet"], "did you mean sonnet?"),
        (["engine.slots=4"], "`engine` needs a profile other than `fixed`"),
        (["profile=haiku", "engine.token_budget=4"], "token_budget must be above slots"),
        (["profile=haiku", "engine.router=rendom"], "did you mean random?"),
        (["faults.a.kind=cut"], "simulated.faults.a.share: expected a value"),
        (["faults.a.kind=cot", "faults.a.share=0.5"], "did you mean cut?"),
        (["faults.a.kind=cut", "faults.a.share=0.6", "faults.b.kind=cut", "faults.b.share=0.6"], "more than 1 together"),
        (["content.thinking_share=0.7", "content.tool_share=0.7"], "more than 1 together"),
        (["simulatd.ttft_ms=3"], "simulated.simulatd: unknown key"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_that_names_its_key(sets, message):
    with pytest.raises((ScenarioError, UsageError)) as caught:
        given(*sets)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
