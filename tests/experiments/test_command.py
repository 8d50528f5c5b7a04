"""What an experiment says of its length before it sends anything, and which guards it takes."""

from types import SimpleNamespace

import pytest

from tailgauge.errors import UsageError
from tailgauge.experiments.command import check_guard, plan_lines
from tailgauge.experiments.conduct import StepLedger
from tailgauge.experiments.course import Base
from tailgauge.experiments.table import planner_of
from tailgauge.scenario import model as scenarios

URL = "http://127.0.0.1:9/v1"
LIMITS = "[simulated.limits]\nrpm = 600\n"
LOADS = "[experiment.curve]\nloads = [2.0, 4.0]\n"
COUNTED = "counted at a simulated endpoint with"
MINUTES = "shorter: --set experiment.minutes=N"


def planned(tmp_path, kind, url=URL, more="", cost=None):
    """The experiment of a scenario at 8 requests/s, and what its dry run took."""
    path = tmp_path / "planned.toml"
    text = f'[experiment]\nkind = "{kind}"\nminutes = 3\n[arrival]\nrate_per_s = 8\n[traffic.chat]\n{more}'
    path.write_text(f'{text}[target]\nurl = "{url}"\n', encoding="utf-8")
    base = Base(path, scenarios.load(str(path)), (), tmp_path)
    ledger = StepLedger(
        runs=8, load_s=100.0, calls=14_143, tokens=1_980_020, cost=cost, currency="USD"
    )
    return SimpleNamespace(experiment=planner_of(kind)(base), ledger=ledger), base


@pytest.mark.parametrize(
    ("kind", "more", "length", "unlike"),
    [
        ("headroom", "[experiment.headroom]\nno_429 = true\n", "about 3 minutes", "counted at a simulated endpoint: your target may differ"),
        ("curve", "", "up to 3 minutes", f"{COUNTED} no limit: fewer calls where your target refuses earlier"),
        ("curve", LIMITS, "up to 3 minutes", f"{COUNTED} the limits of [simulated.limits]: fewer calls where your target refuses earlier"),
        ("curve", LOADS, "about 3 minutes", "counted at a simulated endpoint: your target may differ"),
    ],
)  # fmt: skip
def test_the_plan_says_what_its_calls_depend_on(tmp_path, kind, more, length, unlike):
    lines = plan_lines(*planned(tmp_path, kind, more=more))

    assert (
        lines[0]
        == f"{length}, 8 runs, 14,143 calls, 1,980,020 tokens; the model has no known price"
    )
    assert lines[1] == unlike
    assert [line for line in lines[2:] if not line.startswith("order of the loads: ")] == [
        MINUTES,
        f"once a limit was met, each run waits up to 60 s: --set experiment.{kind}.rest_s=N",
    ]


def test_at_the_simulated_endpoint_nothing_is_unknown_and_nobody_pays(tmp_path):
    lines = plan_lines(*planned(tmp_path, "headroom", url="simulated", cost=3.0))

    assert lines == ["about 3 minutes, 8 runs, 14,143 calls, 1,980,020 tokens", MINUTES]


@pytest.mark.parametrize(
    ("kind", "more", "shorter"),
    [
        ("checkup", "", "shorter: --set experiment.checkup.quick=true"),
        ("checkup", "[experiment.checkup]\nquick = true\n", MINUTES),
        ("curve", f"{LOADS}requests = 40\n", "shorter: fewer loads"),
        ("curve", f"{LOADS}step_s = 20.0\n", "shorter: fewer loads"),
    ],
)
def test_what_makes_it_shorter_is_an_option_that_does(tmp_path, kind, more, shorter):
    assert shorter in plan_lines(*planned(tmp_path, kind, more=more))


def test_a_guard_ends_the_search_at_another_target_and_refuses_what_is_known_to_exceed_it(tmp_path):
    guard = "[guard]\nmax_requests = 5000\n"
    lines = []
    check_guard(*planned(tmp_path, "curve", more=guard), lines.append)

    assert len(lines) == 1
    assert (
        "max_requests: expected 14,143 calls, allowed 5,000: the search may end early" in lines[0]
    )
    for kind, url, more in (("headroom", "simulated", ""), ("curve", URL, LOADS)):
        with pytest.raises(UsageError, match=r"raise it, or set experiment.minutes lower"):
            check_guard(*planned(tmp_path, kind, url, more + guard), lines.append)
