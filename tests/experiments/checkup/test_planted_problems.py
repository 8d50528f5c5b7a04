"""The checkup in dry runs: each planted problem is found, and nothing on a healthy endpoint."""

import json
from itertools import product

import pytest
from experiments.checkup.planted import FANS_OUT, PROBLEMS, RIGHT, conducted, needed

from tailgauge.errors import UsageError
from tailgauge.experiments.checkup.checks import CHECKS
from tailgauge.experiments.checkup.plan import PROBES, CheckupPlanner
from tailgauge.experiments.course import Base
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.packaged import find

SHORT = (
    "pace", "tail", "stalled", "broken", "unstable", "below_minimum", "expired", "race", "cancel_ignored",
    "cancel_billed", "no_retry_after", "queueing",
)  # fmt: skip
SHORT_RIGHT = (
    "no cache, and an unstable prefix",
    "haiku, 1,600 tokens",
    "unstreamed",
    "answers of many lengths",
)
REAL_ONLY = {"connections", "idle_cut"}
NOT_QUICK = {"fan_out", "queueing"}  # dependent waits: three minutes are too few
NO_GAIN = "early_headers"  # normal at a healthy engine


def base(folder, *pairs):
    path = find("checkup")
    return Base(path, scenarios.load(str(path), pairs), pairs, folder)


def test_every_check_has_a_planted_problem():
    assert set(PROBLEMS) == set(CHECKS) - REAL_ONLY


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_planted_problem_is_found(problem, tmp_path, full_size):
    if not full_size and problem not in SHORT:
        pytest.skip("at full size")
    sizes = [(True, 1), (False, 1), (False, 2)] if full_size else [(True, 1)]
    if problem in NOT_QUICK:
        sizes = sizes[1:] or [(False, 1)]
    for quick, seed in sizes:
        probes = tuple(PROBES) if full_size else needed(problem)
        done = conducted(
            PROBLEMS[problem], seed, tmp_path / f"{quick}{seed}", quick=quick, probes=probes
        )
        answer = done.answer
        one = next(one for one in answer.facts["checks"] if one["name"] == problem)

        assert one["number"]["low"] > one["allowed"], one
        if problem == NO_GAIN:
            assert (answer.facts["findings"], answer.facts["noted"]) == ([], [problem])
            assert answer.result.outcome == "PASS"
            continue
        assert problem in answer.facts["findings"], one
        assert (answer.result.outcome, one["outcome"]) == ("FAIL", "FAIL")
        assert 0 < one["number"]["gain"] <= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_the_right_problem_is_found_and_no_other(name, tmp_path, full_size):
    planted, probes, right = RIGHT[name]
    if not full_size and name not in SHORT_RIGHT:
        pytest.skip("at full size")
    for seed in (11, 12, 13) if full_size else (11,):
        probes = tuple(PROBES) if full_size else probes
        answer = conducted(planted, seed, tmp_path / str(seed), quick=True, probes=probes).answer

        assert answer.facts["findings"] == right, (seed, answer.facts["checks"])
        assert answer.result.outcome == ("FAIL" if right else "PASS")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("traffic", "status", "probe", "problems"),
    [
        ({}, 529, "light", ["refused"]),
        ({}, 500, "light", ["broken"]),
        (FANS_OUT, 529, "light", ["refused", "legs_refused"]),
        (FANS_OUT, 500, "light", ["broken"]),
        ({}, 529, "loaded", ["burst"]),
        ({}, 500, "loaded", []),
    ],
)
def test_an_overload_behind_content_is_a_refusal(traffic, status, probe, problems, tmp_path):
    fault = {"kind": "error_event", "status": status, "share": 0.2, "at_chunk": 5}
    planted = {**traffic, "simulated.faults.planted": fault}
    answer = conducted(planted, 7, tmp_path, quick=True, probes=(probe,)).answer

    assert answer.facts["findings"] == problems


def test_requests_that_time_out_are_slow_ones(tmp_path, full_size):
    if not full_size:
        pytest.skip("at full size")
    slow = {"slow_share": 0.04, "slow_factor": 200.0}
    planted = {
        "simulated.stragglers": slow,
        "simulated.engine.slots": 64,
        "limits.attempt_deadline_s": 10.0,
    }
    answer = conducted(planted, 5, tmp_path, quick=False, probes=("light",)).answer

    assert answer.facts["findings"] == ["broken", "tail"]
    assert any(text.startswith("hedging is worth a try") for text in answer.result.details)


@pytest.mark.slow
def test_nothing_is_found_on_a_healthy_endpoint(tmp_path):
    for quick, seed in product((True, False), range(1, 21)):
        traffic = FANS_OUT if seed % 2 else {}
        done = conducted(traffic, seed, tmp_path / f"{quick}{seed}", quick=quick)
        answer = done.answer

        assert answer.facts["findings"] == [], seed
        assert answer.result.outcome == "PASS"
        of_fan_outs = {"fan_out", "heavy_leg", "legs_refused", "race", "per_slot"}
        names = {one["name"] for one in answer.facts["checks"]}
        not_seen = {"not_streamed", "connections", "no_retry_after", "early_retries"}
        assert names <= set(CHECKS) - not_seen - (set() if traffic else of_fan_outs)
        without = {
            one["name"] for one in answer.facts["checks"] if one["outcome"] == "INCONCLUSIVE"
        }
        # One fan-out a second: too few for some, and for queueing in ten minutes too.
        assert without <= (
            {"queueing", "unrecovered", "tail", "heavy_leg", "fan_out"} if traffic else set()
        )
    assert answer.result.sentence == "no problem found in 22 checks"
    assert json.loads(json.dumps(answer.facts)) == answer.facts


@pytest.mark.slow
def test_the_larger_gain_comes_first(tmp_path):
    planted = PROBLEMS["unstable"] | PROBLEMS["cancel_ignored"]
    answer = conducted(planted, 1, tmp_path, quick=True, probes=("cached", "cancelled")).answer

    assert answer.facts["findings"] == ["unstable", "cancel_ignored"]
    assert [one.name for one in answer.result.objectives] == [
        CHECKS["unstable"].problem, CHECKS["cancel_ignored"].problem,
    ]  # fmt: skip


def test_a_checkup_fits_into_its_time(tmp_path):
    for pairs, most_s in (((("experiment.checkup.quick", True),), 180), ((), 600)):
        steps = next(CheckupPlanner(base(tmp_path, *pairs, *FANS_OUT.items())).course())

        assert [step.name for step in steps] == [
            "light traffic", "cold against warm prefix", "calls of the fan-out, one at a time", "clients that leave",
            "load in steps",
        ]  # fmt: skip
        assert len({step.seed for step in steps}) == len(steps)
        assert sum(step.duration_s + 9.0 for step in steps) < 0.85 * most_s


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (
            (("experiment.checkup.skip", ["lihgt"]),),
            "experiment.checkup.skip: no probe 'lihgt': expected light, cached",
        ),
        ((("experiment.checkup.skip", list(PROBES)),), "no probe is left"),
        ((("arrival", {"process": "closed"}),), "arrival.process: .* expected an open process"),
    ],
)
def test_what_cannot_be_is_refused(pairs, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        CheckupPlanner(base(tmp_path, *pairs))


@pytest.mark.parametrize(
    "name",
    [
        "fan_out",
        "hedged",
        "sessions",
        "structured",
        "thinking",
        "tools",
        "mix",
        "cached",
        "custom_stream",
    ],
)
def test_other_traffic_is_looked_at_too(name, tmp_path):
    late = {"metric": "e2e", "max_ms": 5000.0, "traffic": next(iter(scenarios.load(name).traffic))}
    pairs = (("experiment", {"kind": "checkup"}), ("slo.late", late))
    path = find(name)
    whole = Base(path, scenarios.load(str(path), pairs), pairs, tmp_path)
    steps = next(CheckupPlanner(whole).course())
    prepared = [
        whole.prepare(step, number, tmp_path, sends=False) for number, step in enumerate(steps)
    ]

    assert prepared[0].step.name == "light traffic"
    has_cache = any(table.cache for table in whole.scenario.traffic.values())
    assert ("cold against warm prefix" in [step.name for step in steps]) is has_cache


def test_every_probe_sends_what_the_traffic_adds_to_its_requests(tmp_path):
    added = {"headers": {"x-a": "{call_id}"}, "body": {"top_p": 0.5}, "output": "exact"}
    name, path = next(iter(scenarios.load("streaming").traffic)), find("streaming")
    pairs = (("experiment", {"kind": "checkup"}), ("target.protocol", "openai"))
    pairs += tuple((f"traffic.{name}.{key}", value) for key, value in added.items())
    whole = Base(path, scenarios.load(str(path), pairs), pairs, tmp_path)
    steps = next(CheckupPlanner(whole).course())

    for number, step in enumerate(steps):
        prepared = whole.prepare(step, number, tmp_path, sends=False)
        for table in prepared.settings.scenario.traffic.values():
            assert {key: getattr(table, key) for key in added} == added
    assert len(steps) > 2


BATCH = {"assistant": {"prompt_tokens": 50, "output_tokens": 5}, "nightly": {"pattern": "batch"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sets", "outcomes", "expected"),
    [
        (
            {"slo": {"a": "ttft p50 < 1ms", "b": "e2e p50 < 60s"}},
            ["FAIL", "PASS"],
            "1 of 2 objectives met",
        ),
        ({"slo": {"a": "assistant: ttft p99.9 < 10s"}}, ["INCONCLUSIVE"], "0 of 1 objective met"),
        (
            {"slo": {"a": "nightly: turnaround p50 < 1s", "b": "ttft p50 < 2s"}, "traffic": BATCH},
            ["PASS"],
            "1 of 1 objective met",
        ),
    ],
)
def test_objectives_are_judged_by_light_traffic_at_todays_rate(sets, outcomes, expected, tmp_path):
    done = conducted(sets, 1, tmp_path, quick=True, probes=("light",))
    result = done.answer.result

    assert [line.outcome for line in result.objectives][: len(outcomes)] == outcomes
    assert result.sentence.startswith(expected)
    assert any(text.startswith("objectives: judged by light traffic, ") for text in result.details)


@pytest.mark.slow
def test_objectives_without_the_light_probe_are_named(tmp_path):
    done = conducted({"slo": {"a": "ttft p50 < 2s"}}, 1, tmp_path, quick=True, probes=("cached",))

    assert (
        "objectives: not judged without a valid run of the probe light"
        in done.answer.result.details
    )
    assert not done.answer.result.objectives
