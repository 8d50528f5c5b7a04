"""Latency under load: planted slopes and bottlenecks are found, and what cannot be estimated is not."""

import html
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from bench.slopes import NOTHING, Drawn, planted, shown, slow_periods
from run_folders.dry_runs import dry_run_of
from run_folders.queues import served

from tailgauge.rows.schema import TURNS
from tailgauge_analysis.metrics.steady import Steady
from tailgauge_analysis.sections import slopes
from tailgauge_analysis.sections.latency_under_load import diagnosis
from tailgauge_analysis.sections.latency_under_load.section import LatencyUnderLoad, section
from tailgauge_analysis.sections.slopes import (
    CACHED,
    CONTEXT,
    IN_FLIGHT,
    UNCACHED,
    Regression,
    Slope,
    open_at,
    regress,
    significant,
)

UNKNOWN = diagnosis.Diagnosis(diagnosis.UNKNOWN, 0, 0)


def shown_of(*regressions):
    """The section of these regressions alone."""
    return section(LatencyUnderLoad(diagnosis=UNKNOWN, slopes=list(regressions)))


def fitted(stage):
    """The regressions of a stage of one request a call."""
    attempts = stage.attempts
    return slopes.fitted(attempts, stage, slopes.arrivals_ns(attempts))


def attempts(*spans):
    """Attempts as (sent, first content, last content, ended) in ns; None where it never came."""
    names = ("sent_at_ns", "first_content_at_ns", "last_content_at_ns", "ended_at_ns")
    return pd.DataFrame(spans, columns=names, dtype="float64")


def test_calls_beside_one_are_counted_when_it_was_sent_and_while_it_was_decoded():
    run = attempts((0, 10, 50, 60), (5, 20, 40, 41), (30, None, None, 90), (70, 80, 100, 100))

    assert open_at(run, np.array([0, 5, 30, 41, 95])).tolist() == [0, 1, 2, 2, 1]
    decoded = "first_content_at_ns", "last_content_at_ns"
    assert open_at(run, np.array([11, 25, 45, 85]), *decoded).tolist() == [1, 2, 1, 1]


def test_planted_slopes_lie_in_their_intervals():
    rng = np.random.default_rng(7)
    n = 1500
    cached = rng.integers(0, 2, n) * 3000.0
    columns = {
        UNCACHED: rng.lognormal(6.5, 1, n), CACHED: cached, IN_FLIGHT: rng.poisson(8, n).astype(float),
    }  # fmt: skip
    y = 120 + 40 * columns[UNCACHED] / 1000 + 4 * cached / 1000 + 1.5 * columns[IN_FLIGHT]
    y = y + rng.exponential(20, n)
    (found,) = significant([regress("ttft_sent", columns, y, against=UNCACHED)])

    assert found.left_out == ()
    planted = {UNCACHED: 40, CACHED: 4, IN_FLIGHT: 1.5}
    assert [slope.name for slope in found.slopes] == list(planted)
    for slope in found.slopes:
        expected = planted[slope.name]
        width = slope.high - slope.low  # one interval in twenty misses: of three, none by far
        assert slope.low - width <= expected <= slope.high + width, slope
        assert slope.low > 0, slope
        assert slope.value == pytest.approx(expected, abs=2)


@pytest.mark.parametrize(
    ("n", "why"),
    [
        (0, "0 chunk gaps of answers with a TPOT, 40 are needed"),
        (39, "39 chunk gaps"),
        (200, "this latency does not vary"),
    ],
)
def test_what_does_not_vary_has_no_slope(n, why):
    found = regress(
        "tpot",
        {"context_tokens": np.full(n, 500.0), "arriving": np.full(n, 3.0)},
        np.ones(n),
        against="arriving",
    )

    assert found.slopes == ()
    assert found.why.startswith(why)
    assert set(found.left_out) == {"context_tokens", "arriving"}


def test_a_latency_without_variation_has_no_slope():
    rng = np.random.default_rng(1)
    columns = {
        UNCACHED: rng.lognormal(6.5, 1, 800), CACHED: np.zeros(800), IN_FLIGHT: rng.poisson(8, 800).astype(float),
    }  # fmt: skip
    for y in (np.full(800, 500.0), 500 + rng.normal(0, 1e-4, 800)):
        found = regress("ttft_sent", columns, y, against=UNCACHED)
        assert (found.slopes, found.why) == ((), "this latency does not vary")
    assert regress("ttft_sent", columns, 500 + rng.normal(0, 1, 800), against=UNCACHED).slopes


def test_what_makes_answers_faster_is_no_cost_and_chance_is_no_effect():
    rng = np.random.default_rng(5)
    calls, tokens = rng.poisson(8, 600) * 1.0, rng.lognormal(6.5, 1, 600)
    columns = {UNCACHED: tokens, IN_FLIGHT: calls}
    noise = rng.exponential(30, 600)

    faster = 900 + 40 * tokens / 1000 - 8 * calls + noise
    below, chance = significant(
        [regress("ttft_sent", columns, y, against=UNCACHED) for y in (faster, 500 + noise)]
    )
    assert below.confounded == (IN_FLIGHT,)
    assert {slope.name for slope in below.slopes} == {UNCACHED}
    assert [slope.value is None for slope in below.slopes] == [False]
    assert [slope.value for slope in chance.slopes] == [None] * 2
    (note,) = list(shown_of(below).notes)
    assert (
        "effect of calls in flight was not estimated (answers were faster where it was larger"
        in note
    )
    shown = shown_of(chance)
    assert shown.tables == ()
    assert shown.notes == (
        "TTFT since sent: no effect of uncached prompt tokens and calls in flight was seen.",
    )


def test_what_comes_with_the_length_of_the_answer_is_no_cost_of_the_prompt():
    rng = np.random.default_rng(6)
    output = rng.uniform(10, 500, 600)
    prompts = 3 * output + rng.normal(0, 300, 600)
    y = 100 + output + rng.exponential(30, 600)
    alone, beside = significant(
        [
            regress("ttft_sent", {UNCACHED: prompts}, y, against=UNCACHED, controls=controls)
            for controls in ({}, {"length": output})
        ]
    )

    assert alone.slopes[0].low > 150
    assert beside.slopes[0].value is None


SMALL = {  # what NOTHING draws, and the reports of the default run
    "iid": 1, "autocorrelated": 2, "changing load": 2, "queue": 1, "tables": 2, "sessions": 2, "users": 1, "ties": 1,
    "equal lengths": 1,
}  # fmt: skip


@pytest.mark.slow
def test_where_no_effect_is_planted_hardly_any_report_shows_one(full_size):
    """At most one report in forty may show an effect by chance, since those below 0 are none."""
    for place, (name, draw) in enumerate(NOTHING.items()):
        reports = 200 if full_size else SMALL[name]
        with_effect = 0
        for number in range(reports):
            rng = np.random.default_rng([137, place, number])
            effects = set(shown(draw(rng).regressions(rng)))
            with_effect += bool(effects - {IN_FLIGHT} if name == "queue" else effects)
        assert with_effect <= (16 if full_size else 1), name


@pytest.mark.slow
def test_planted_costs_of_prompts_are_found(full_size):
    """20 to 100 ms per 1,000 tokens among waits that vary by up to 150 ms, at 2,000 requests."""
    reports = 200 if full_size else 5
    results = [planted(np.random.default_rng([211, number])) for number in range(reports)]
    found, held = np.sum(results, axis=0)

    assert found >= 0.8 * reports
    assert held >= (0.9 * reports if full_size else reports - 2)


def test_calls_in_flight_that_only_follow_the_latency_have_no_cost():
    """Slow periods that no load causes fill the target: at even arrivals, and among users who wait."""
    rng = np.random.default_rng(3)
    slow = np.exp(0.8 * slow_periods(rng, 1500, 30))
    shared = {"prompt": np.full(1500, 900.0), "output": np.full(1500, 20.0), "pace": 10 * slow}
    for arrivals, is_open in (
        (np.arange(1500) * 100.0, True),
        (rng.exponential(100, 1500).cumsum(), False),
    ):
        drawn = Drawn(sent=arrivals, ttft=300 * slow, is_open=is_open, **shared)
        ttft, tpot = drawn.regressions(rng)
        assert ttft.by_latency == (IN_FLIGHT,)
        assert tpot.by_latency == (slopes.NEIGHBOURS,)
    note = shown_of(ttft).notes[1]
    assert (
        note
        == "TTFT since sent: the effect of calls in flight was not estimated (slow answers raise this number, so cause and effect cannot be separated)."
    )


def test_a_queue_has_a_cost_of_calls_in_flight():
    rng = np.random.default_rng(9)
    arrivals = rng.exponential(100, 2000).cumsum()
    work = rng.exponential(60, 2000)
    drawn = Drawn(
        sent=arrivals,
        ttft=served(arrivals, work, 1) + work - arrivals,
        prompt=rng.lognormal(6, 1, 2000),
        output=np.full(2000, 2.0),
        pace=np.full(2000, 0.1),
    )
    effects = {slope.name: slope.value for slope in drawn.regressions(rng)[0].slopes}

    assert effects[IN_FLIGHT] == pytest.approx(60, rel=0.5)
    assert effects[UNCACHED] is None


def test_an_effect_must_survive_among_all_of_the_report():
    def regression(*p_values):
        slopes = tuple(
            Slope(name=f"{p:g}", value=1.0, low=0.1, high=1.9, mark="", p_value=p) for p in p_values
        )
        return Regression(
            of="tpot", n=100, slopes=slopes, why="", against="", x=np.empty(0), y=np.empty(0)
        )

    (alone,) = significant([regression(0.03)])
    family = significant([regression(0.001, 0.03), regression(0.2, 0.04)])

    assert [slope.value for slope in alone.slopes] == [1.0]
    assert [slope.value for one in family for slope in one.slopes] == [1.0, None, None, None]


def test_an_estimate_lies_in_its_interval_also_where_the_latency_is_skewed():
    for seed in range(20):
        rng = np.random.default_rng([17, seed])
        columns = {
            UNCACHED: rng.lognormal(6.5, 1.5, 300),
            IN_FLIGHT: rng.poisson(3, 300).astype(float),
        }
        found = regress("ttft_sent", columns, 100 * rng.lognormal(0, 1.5, 300), against=UNCACHED)
        assert all(slope.low <= slope.value <= slope.high for slope in found.slopes)


def test_factors_that_move_together_are_named_and_others_are_not():
    rng = np.random.default_rng(4)
    tokens = rng.lognormal(6.5, 1, 600)
    y = 500 + rng.exponential(30, 600)
    together = {UNCACHED: tokens, IN_FLIGHT: tokens / 100 + rng.normal(0, 1, 600)}
    apart = {UNCACHED: tokens, IN_FLIGHT: rng.poisson(8, 600).astype(float)}

    assert regress("ttft_sent", together, y, against=UNCACHED).together == ((UNCACHED, IN_FLIGHT),)
    assert regress("ttft_sent", apart, y, against=UNCACHED).together == ()
    note = shown_of(regress("ttft_sent", together, y, against=UNCACHED)).notes[-1]
    assert regress("ttft_sent", together, y, against=UNCACHED).slopes == ()
    assert (
        note
        == "TTFT since sent: the effects of uncached prompt tokens and calls in flight cannot be separated."
    )


STEP, EACH_CALL, CONTEXT_MS, PROMPT_MS = 10.0, 0.2, 0.4, 0.02


def batch(seed, shapes, rate_per_s=3.0, n=700, context_ms=CONTEXT_MS):
    """One replica, step by step: a step takes STEP, EACH_CALL a call, `context_ms` per 1,000 tokens that the calls hold, and
    PROMPT_MS for each token of the prompt in work, one a step. `shapes`: mean prompt and answer, and their sigmas.
    """
    rng = np.random.default_rng(seed)
    arrived = np.cumsum(rng.exponential(1000 / rate_per_s, n))
    kinds = rng.integers(0, len(shapes), n)
    prompt, output = (
        np.maximum(
            2,
            np.array([shapes[k][i] * rng.lognormal(0, shapes[k][2 + i]) for k in kinds]).astype(
                int
            ),
        )
        for i in (0, 1)
    )
    now, waiting, running, ends = 0.0, list(range(n)), {}, [[] for _ in range(n)]
    while waiting or running:
        if not running:
            now = max(now, arrived[waiting[0]])
        held = sum(prompt[i] + done for i, done in running.items())
        now += STEP + EACH_CALL * len(running) + context_ms * held / 1000
        if waiting and arrived[waiting[0]] <= now:
            new = waiting.pop(0)
            now += PROMPT_MS * prompt[new]
            running[new] = 0
        for i in list(running):
            ends[i].append(now)
            running[i] += 1
            if running[i] == output[i]:
                del running[i]
    times = [np.array(one) * 1e6 for one in ends]
    first, last = (np.array([one[i] for one in times]) for i in (0, -1))
    nothing = np.zeros(n)
    attempts = pd.DataFrame({
        "request_id": np.arange(n) * TURNS, "leg": 0, "attempt": 0, "target": "main", "asked_model": "m", "ended": "ok",
        "stage": "steady", "scheduled_at_ns": arrived * 1e6, "sent_at_ns": arrived * 1e6, "first_content_at_ns": first, "last_content_at_ns": last, "ended_at_ns": last,
        "input_tokens": prompt * 1.0, "cache_read_input_tokens": nothing, "cache_creation_input_tokens": nothing,
        "output_tokens": output * 1.0, "reader_paused_ns": np.nan,
    })  # fmt: skip
    requests = pd.DataFrame({
        "request_id": np.arange(n) * TURNS, "answer_leg": 0.0, "answer_attempt": 0.0, "ended": "ok", "streamed": True,
        "pace_missing": None, "pace_tokens": output, "pace_chunks": output, "pace_skip": 0, "pace_from_ns": first,
        "output_tokens": output,
    })  # fmt: skip
    return Steady(
        requests,
        attempts,
        np.concatenate([np.diff(one) for one in times]),
        output - 1,
        "any",
        0.0,
        1e6,
    )


LONG_PROMPTS, SHORT_PROMPTS = (4000, 20, 0.3, 0.3), (300, 300, 0.5, 0.6)
MIXES = {
    "short answers to long prompts": (LONG_PROMPTS, SHORT_PROMPTS),
    "short answers to short prompts": ((300, 15, 0.5, 0.3), (4000, 250, 0.4, 0.6)),
    "prompts alike, answers long and short": ((1500, 15, 0.8, 0.4), (1500, 300, 0.8, 0.4)),
    "one kind": ((1500, 120, 0.8, 0.8),),
}


@pytest.mark.slow
def test_the_cost_of_context_is_found_in_mixes_of_short_and_long_answers(full_size):
    """No slope has the wrong sign; a large cost is found, and its interval contains it."""
    seeds = range(100, 120) if full_size else (100,)
    mixes = list(MIXES.values()) if full_size else list(MIXES.values())[:2]
    found = []
    for seed in seeds:
        for mix in mixes:
            stage = batch(seed, mix, n=700 if full_size else 400)
            both = significant(fitted(stage))
            assert all(
                slope.value is None or slope.value > 0 for one in both for slope in one.slopes
            )
            found += [slope for slope in both[1].slopes if slope.name == CONTEXT]
    assert len(found) == len(seeds) * len(mixes)
    assert sum(slope.value is not None for slope in found) >= 0.9 * len(found)
    contained = [
        slope.low <= 1.03 * CONTEXT_MS and slope.high >= 0.97 * CONTEXT_MS for slope in found
    ]
    assert sum(contained) >= 0.85 * len(found)


def test_equal_prompts_leave_the_cost_of_context_unknown_and_models_do_not_give_one():
    """Context that grows with the answer only follows from it; the model with long prompts is the faster one."""
    stage = batch(7, ((1000, 80, 0.0, 0.8),), n=200)
    assert CONTEXT in fitted(stage)[1].dependent

    stage = batch(8, (LONG_PROMPTS, SHORT_PROMPTS), n=250, context_ms=0.0)
    large = (stage.attempts["input_tokens"] > 1500).to_numpy()
    stage.attempts.loc[large, "asked_model"] = "fast"
    gaps = stage.gaps_ns + np.where(np.repeat(large, stage.gap_counts), 0.0, 8e6)
    found = significant(fitted(replace(stage, gaps_ns=gaps)))[1]
    assert (CONTEXT in found.dependent) or all(
        s.value is None for s in found.slopes if s.name == CONTEXT
    )
    assert CONTEXT not in found.confounded


def requests(n, slow, input_ms=0.0, tokens_times=1.0, pace_times=1.0):
    """Answers of 200 ms to the first content and 101 tokens at 10 ms; the slow ones have more of something."""
    rng = np.random.default_rng(3)
    ill = np.arange(n) % (n // slow) == 0
    before = 200 + rng.uniform(0, 10, n) + ill * input_ms
    tokens = np.where(ill, 1 + 100 * tokens_times, 101)
    pace = 10 * np.where(ill, pace_times, 1) * rng.uniform(0.99, 1.01, n)
    return before, before + pace * (tokens - 1), tokens


def test_a_bottleneck_of_input_is_separated_from_one_of_output():
    waits = diagnosis.diagnose(*requests(1000, 50, input_ms=5000))
    long = diagnosis.diagnose(*requests(1000, 50, tokens_times=5))
    slow = diagnosis.diagnose(*requests(1000, 50, pace_times=4))
    both = diagnosis.diagnose(*requests(1000, 50, input_ms=2000, tokens_times=3))

    assert (waits.kind, long.kind, slow.kind, both.kind) == ("input", "output", "output", "both")
    assert waits.share_before_first == pytest.approx(1, abs=0.01)
    assert both.low < 0.5 < both.high
    longer = "The slowest 5% of the answers take longer"
    assert waits.sentence.startswith(
        f"{longer} before the first content. More than 99% of their extra time"
    )
    assert long.sentence.startswith(f"{longer} after the first content. 100% of their extra time")
    cause = "They have longer answers: their median length is 5.0x that of all answers. "
    assert cause in long.sentence
    assert "They have slower decoding: " in slow.sentence
    assert both.sentence.startswith(f"{longer} both before and after the first content. ")
    assert (long.tokens_times, slow.pace_times) == pytest.approx((5, 4), rel=0.05)


def test_even_requests_are_healthy_and_few_ones_unknown():
    assert diagnosis.diagnose(*requests(1000, 50)).kind == "healthy"
    few = diagnosis.diagnose(*requests(360, 18, input_ms=5000))
    assert (few.kind, few.share_before_first, few.slow) == ("unknown", None, 19)
    assert diagnosis.diagnose(np.empty(0), np.empty(0), np.empty(0)).kind == "unknown"


@pytest.mark.parametrize(("late_first", "kind"), [(True, "input"), (False, "output")])
def test_a_fan_out_is_diagnosed_by_its_join(late_first, kind):
    """Two legs; each twentieth request waits 3 s longer for leg 1, before its first content or after it."""
    n = 600
    at = np.arange(n) * 1e9
    more = (np.arange(n) % 20 == 0) * 3e9
    noise = np.random.default_rng(2).uniform(0, 1e7, n)
    frames = []
    for leg in (1, 0):
        ended = at + 2e9 + noise + leg * (2e9 + more)
        frames.append(pd.DataFrame({
            "request_id": np.arange(n), "leg": leg, "ended": "ok", "output_tokens": 100.0, "ended_at_ns": ended + 1e6,
            "first_content_at_ns": at + 5e8 + leg * late_first * more, "last_content_at_ns": ended,
        }))  # fmt: skip
    requests = pd.DataFrame({
        "request_id": np.arange(n), "answer": "join", "ended": "ok", "scheduled_at_ns": at, "output_tokens": np.nan,
        "joined_at_ns": frames[0]["last_content_at_ns"], "first_at_ns": np.nan, "last_content_at_ns": np.nan,
    })  # fmt: skip
    found = diagnosis.diagnosis(SimpleNamespace(requests=requests, attempts=pd.concat(frames)))

    assert (found.kind, found.n) == (kind, n)
    assert found.sentence.endswith(
        "Its first content is the first content of the leg that was joined last."
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """The report of a dry run on an engine: 30 ms of prefill per 1,000 tokens, 0.03 ms per token and 1,000 of context."""
    from tailgauge_analysis.report.report import make

    out = tmp_path_factory.mktemp("engine")
    pairs = [
        ("target.url", "simulated"), ("simulated.profile", "haiku"), ("stages.duration_s", 120.0), ("arrival.rate_per_s", 8.0),
        ("traffic.chat.prompt_tokens", 2000), ("traffic.chat.prompt_sigma", 1.0), ("traffic.chat.output_sigma", 0.8),
        ("simulated.engine.overhead_sigma", 0.1),
    ]  # fmt: skip
    return make([dry_run_of("streaming", pairs, out)], out)


@pytest.mark.slow
def test_the_costs_of_an_engine_are_recovered(engine):
    found = engine.data["slopes"]
    at = {s["name"]: s for one in found for s in one["slopes"]}

    assert at[UNCACHED]["value"] == pytest.approx(30, rel=0.15)
    assert at["context_tokens"]["value"] == pytest.approx(0.03, rel=0.3)
    assert (found[0]["of"], found[0]["left_out"]) == ("ttft_sent", [CACHED])


@pytest.mark.slow
def test_the_section_is_on_the_page_and_in_markdown(engine):
    page, text = engine.html.read_text(), engine.markdown.read_text()
    sentence = engine.data["diagnosis"]["sentence"]

    for text_part in (
        sentence,
        "ms per 1,000 uncached prompt tokens",
        "TTFT since sent: the effect of cached prompt tokens was not estimated (no variation)",
    ):
        assert text_part in html.unescape(re.sub("<[^>]*>", "", page))
        assert text_part in text.replace("\\", "")
    assert slopes.UNITS[CONTEXT][0] in page
    assert 'id="figure-ttft-by-prompt"' in page
