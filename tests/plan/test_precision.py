"""When a run is looked at that goes on until it is known, and what may be missed at each look."""

import pytest

from tailgauge.errors import ScenarioError
from tailgauge.plan import objectives
from tailgauge.plan.looks import looks, needed
from tailgauge.plan.resolve import resolve
from tailgauge.scenario.model import parse
from tailgauge.scenario.objective import Objective
from tailgauge.schedule.schedule import plan

TEXT = "ttft p95 < 800ms precision 5%"


def made(slo=TEXT, rate=50.0, duration_s=600.0, **tables):
    tree = {
        "name": "n", "arrival": {"process": "constant", "rate_per_s": rate}, "stages": {"duration_s": duration_s, "warmup_s": 24.0},
        "traffic": {"chat": {}}, "slo": {"goal": slo}, **tables,
    }  # fmt: skip
    scenario = parse(tree, "n.toml")
    return scenario, plan(scenario.arrival, scenario.traffic, duration_s, 1, warmup_s=24.0)


def test_looks_are_at_doublings_and_spend_5_percent_in_all():
    every = looks(*made())

    assert [round(look.until_s, 1) for look in every] == [96.0, 168.0, 312.0, 600.0]
    assert [look.requests for look in every] == [4_800, 8_400, 15_600, 30_000]
    assert sum(1 - look.confidence for look in every) == pytest.approx(0.05)
    assert every[-1].confidence == pytest.approx(0.975)


@pytest.mark.parametrize(
    ("slo", "rate", "duration_s", "number"),
    [
        ("ttft p95 < 800ms", 50.0, 600.0, 0),  # none asked for
        (TEXT, 1.0, 600.0, 1),  # half of 576 are fewer than 500: the end alone
        (TEXT, 2.0, 600.0, 2),
        ("ttft p99 < 800ms precision 5%", 10.0, 600.0, 2),  # 25 beyond a p99: 2,500 requests
        (TEXT, 1000.0, 150.0, 2),  # a minute of the steady stage at least
    ],
)
def test_a_look_needs_requests_and_time(slo, rate, duration_s, number):
    every = looks(*made(slo, rate, duration_s))

    assert len(every) == number
    assert sum(1 - look.confidence for look in every) == pytest.approx(0.05 if number else 0)


def test_requests_that_are_needed_are_those_of_an_exponential_tail():
    slo = {"metric": "ttft", "max_ms": 1, "precision": 0.05}

    found = [needed(Objective(**slo, quantile=p), 0.95) for p in (0.95, 0.99, 0.999)]
    assert found == pytest.approx([3254, 7174, 32171], abs=1)
    assert needed(Objective(**slo, quantile=0.95), 0.975) == 4255


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (
            50.0,
            "  known to 5%: about 6,332 independent requests, after 168 s (at most 600)",
        ),
        (2.0, "  known to 5%: about 4,255 independent requests, this plan has 1,152"),
    ],
)
def test_before_the_run_it_says_when_it_may_be_known(rate, expected):
    text = objectives.lines(*made(rate=rate))

    assert text[1] == expected
    assert text[2:] == ([] if rate > 2 else ["  add --duration 2220s, or set a coarser precision"])
    assert all(len(line) <= 80 for line in text)


@pytest.mark.parametrize(
    "sets",
    [
        {"arrival": {"process": "closed"}},
        {"traffic.chat.session": {"turns_mean": 3.0}},
        {"traffic.b": {}, "crossover": {"a": "chat", "b": "b"}},
        {"experiment": {"kind": "headroom"}},
    ],
)
def test_where_looks_cannot_know_what_is_due_they_are_refused_by_key(tmp_path, sets):
    (tmp_path / "n.toml").write_text("[traffic.chat]\n")

    with pytest.raises(
        ScenarioError, match=r"--set slo\.goal: precision: does not apply to a closed loop, tasks, "
    ):
        resolve(
            str(tmp_path / "n.toml"), [("slo.goal", TEXT), *sets.items()], tmp_path, sends=False
        )
