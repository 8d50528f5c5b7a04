"""Before a run: what each objective needs, and what the plan has of it."""

import pytest

from tailgauge.plan import objectives
from tailgauge.plan.resolve import resolve
from tailgauge.scenario.model import override, parse
from tailgauge.schedule.schedule import plan


def lines(slo, duration_s=60.0, **tables):
    tree = {
        "name": "n", "arrival": {"process": "constant", "rate_per_s": 2.0}, "stages": {"duration_s": duration_s},
        "traffic": {"chat": {"output_tokens": 5}}, "slo": {"goal": slo}, **tables,
    }  # fmt: skip
    scenario = parse(tree, "n.toml")
    warmup = scenario.stages.warmup
    schedule = plan(scenario.arrival, scenario.traffic, duration_s, 1, warmup_s=warmup)
    return objectives.lines(scenario, schedule)


@pytest.mark.parametrize(
    ("slo", "expected"),
    [
        ("ttft p50 < 800ms", ["objective: ttft p50 < 800 ms: needs 60 requests, has 108"]),
        (
            "ttft p95 < 800ms",
            [
                "objective: ttft p95 < 800 ms: needs 400 requests, this plan has 108",
                "  may end INCONCLUSIVE: --duration 230s, or use p50",
                "  59 requests are enough if all of them meet the objective",
            ],
        ),
        (
            "ttft p99 < 800ms",
            [
                "objective: ttft p99 < 800 ms: needs 2,000 requests, this plan has 108",
                "  may end INCONCLUSIVE: --duration 1120s, or use p50",
            ],
        ),
        (
            "error_rate < 1%",
            [
                "objective: error_rate < 1%: needs 2,000 requests, this plan has 108",
                "  may end INCONCLUSIVE: --duration 1120s, or --set 'slo.goal=error_rate < 19%'",
            ],
        ),
        (
            "complete > 99%",
            [
                "objective: complete > 99%: needs 2,000 requests, this plan has 108",
                "  may end INCONCLUSIVE: --duration 1120s, or --set 'slo.goal=complete > 81%'",
            ],
        ),
        (
            "chunk_gap p95 < 50ms",
            ["objective: chunk_gap p95 < 50 ms: needs 400 chunk gaps, has 432"],
        ),
        ("requests_per_s > 1.5", ["objective: requests_per_s > 1.5/s"]),
        (
            "cost_per_good_request < 0.01",
            ["objective: cost_per_good_request < 0.01: needs 20 requests, has 108"],
        ),
    ],
)
def test_each_objective_says_what_it_needs_and_has(slo, expected):
    """Two requests per second for 60 s, of which 54 count."""
    assert lines(slo) == expected
    assert all(len(line) <= 80 for line in expected)


def test_only_the_requests_that_an_objective_is_about_are_counted():
    traffic = {"chat": {"weight": 3, "tags": {"tier": "gold"}}, "search": {"weight": 1}}
    counts = {
        slo: int(lines(slo, 200.0, traffic=traffic)[0].rpartition("has ")[2])
        for slo in (
            "ttft p50 < 1s",
            "chat: ttft p50 < 1s",
            "search: ttft p50 < 1s",
            "tier=gold: ttft p50 < 1s",
        )
    }
    every, chat, search, gold = counts.values()

    assert (every, chat + search, gold) == (360, 360, chat)
    assert 60 <= search <= 120


def test_prompts_of_a_file_leave_only_objectives_on_their_tags_uncounted(tmp_path):
    """Their rows may have tags, so how many have a tag is not known before the run."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a", "tags": {"tier": "gold"}}\n')
    traffic = {"chat": {"tags": {"tier": "gold"}}, "search": {"prompts": {"file": str(prompts)}}}

    def found(**objective):
        (line, *_) = lines(
            {"metric": "ttft", "quantile": 0.5, "max_ms": 1000, **objective}, traffic=traffic
        )
        return "has" in line

    assert found(traffic="chat", tag="tier=gold")
    assert found(traffic="search")
    assert not found(traffic="search", tag="tier=gold")
    assert not found(tag="tier=gold")


def test_a_closed_loop_does_not_know_what_it_has():
    arrival = {"process": "closed", "closed": {"users": 4}}
    assert lines("ttft p99 < 1s", arrival=arrival) == [
        "objective: ttft p99 < 1,000 ms: needs 2,000 requests"
    ]


def test_a_run_that_is_as_long_as_advised_has_enough(tmp_path):
    """The advice holds where the warm-up is a share of the run."""
    pairs = [
        ("slo.goal", "ttft p99 < 1s"),
        ("arrival.rate_per_s", 4.0),
        ("arrival.process", "constant"),
    ]
    short = resolve("streaming", pairs, tmp_path, duration_s=30.0, sends=False).objectives
    seconds = float(short[-1].split(" --duration ")[1].partition("s")[0])
    longer = resolve("streaming", pairs, tmp_path, duration_s=seconds, sends=False).objectives

    assert "this plan has 108" in short[-2]
    assert "has 29" not in longer[-1]
    assert "this plan" not in longer[-1]


def test_a_comparison_in_blocks_says_how_many_pairs_it_needs_and_a_run_as_long_as_advised_has_them():
    both = {"a": {"output_tokens": 5}, "b": {"output_tokens": 6}}
    blocks = {"a": "a", "b": "b", "block_s": 10.0, "washout_s": 1.0}

    def of(duration_s):
        return lines("ttft p50 < 1s", duration_s, traffic=both, crossover=blocks)[1:]

    assert of(60.0) == [
        "comparison: needs 6 pairs of blocks, this plan has 2",
        "  add --duration 140s",
    ]
    assert of(140.0) == ["comparison: needs 6 pairs of blocks, has 6"]


@pytest.mark.parametrize(
    ("name", "text", "option"),
    [
        ("error_rate", "error_rate < 1%", "--slo 'error_rate < 19%'"),
        ("chat_complete", "chat: complete > 99%", "--slo 'chat: complete > 81%'"),
        ("a", "team=a: error_rate < 2%", "--set 'slo.a=team=a: error_rate < 19%'"),
    ],
)
def test_the_advice_on_a_plan_that_is_too_short_can_be_pasted_and_then_holds(name, text, option):
    tables = {"traffic": {"chat": {"output_tokens": 5, "tags": {"team": "a"}}}}
    tree = {
        "name": "n",
        "arrival": {"process": "constant", "rate_per_s": 2.0},
        "stages": {"duration_s": 60.0},
    }
    scenario = parse({**tree, **tables, "slo": {name: text}}, "n.toml")
    schedule = plan(scenario.arrival, scenario.traffic, 60.0, 1, warmup_s=scenario.stages.warmup)

    (_, advice, *_) = objectives.lines(scenario, schedule)

    assert advice.endswith(f"or {option}")
    weaker = (
        override(option.split("'")[1]) if option.startswith("--set") else ("", option.split("'")[1])
    )
    later = parse({**tree, **tables, "slo": {name: weaker[1]}}, "n.toml")
    assert len(objectives.lines(later, schedule)) == 1
