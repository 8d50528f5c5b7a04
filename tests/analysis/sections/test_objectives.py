"""Objectives on every figure, on all requests or some: planted figures are found, and intervals hold the true values."""

import json
import math

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder
from run_folders.run_data import RunData

from tailgauge.errors import Exit
from tailgauge.rows.schema import TURNS
from tailgauge.scenario.objective import Objective
from tailgauge_analysis.metrics.throughput import Work
from tailgauge_analysis.objectives.outcome import FAIL, INCONCLUSIVE, PASS, Measured, decide_figure
from tailgauge_analysis.report.report import make
from tailgauge_analysis.stats.bootstrap import ratio
from tailgauge_analysis.stats.proportions import proportion

FEATURES = {
    "arrival": {"rate_per_s": 30.0},
    "stages": {"duration_s": 40.0, "warmup_s": 0.0},
    "simulated": {"ttft_ms": 100.0, "ttft_sigma": 0.3, "chunk_gap_ms": 10.0},
    "traffic": {
        "chat": {"prompt_tokens": 100, "output_tokens": 8, "weight": 3, "tags": {"tier": "gold"}},
        "report": {"prompt_tokens": 100, "output_tokens": 80},
        "search": {"prompt_tokens": 100, "output_tokens": 8, "tags": {"tier": "gold"}},
    },
    "slo": {
        "chat": "chat: e2e p90 < 400ms",
        "report": "report: e2e p90 < 400ms",
        "search": "search: ttft p99.9 < 1s",
        "gold": "tier=gold: e2e p90 < 400ms",
        "report_is_slow": "report: goodput > 90%",
        "good": "goodput > 50%",
    },
}


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Three features with three budgets in one run; only the reports are slower than theirs."""
    out = tmp_path_factory.mktemp("features")
    folder = dry_run_folder(FEATURES, out)
    return folder, make([folder], out)


@pytest.mark.slow
def test_three_features_with_three_budgets_are_gated_each_on_its_own(features):
    folder, report = features
    found = {one["name"]: one for one in json.loads(report.json.read_text())["slo"]}

    assert {name: one["outcome"] for name, one in found.items()} == {
        "chat": PASS, "report": FAIL, "search": INCONCLUSIVE, "gold": PASS, "report_is_slow": FAIL, "good": PASS,
    }  # fmt: skip
    assert report.exit_code == Exit.FAILED
    requests = steady_requests(folder)
    of_report = requests["traffic"] == "report"
    assert found["report"]["value"] == pytest.approx(exact_p90(requests[of_report]), abs=0.01)
    assert found["gold"]["value"] == pytest.approx(exact_p90(requests[~of_report]), abs=0.01)
    searches = int((requests["traffic"] == "search").sum())
    assert found["search"]["why"] == f"not enough requests: {searches} of the 20,000 needed"


@pytest.mark.slow
def test_goodput_by_feature_adds_up(features):
    """Each request is judged by its own feature's objectives: counted again from the rows."""
    folder, report = features
    found = json.loads(report.json.read_text())["goodput"]
    requests = steady_requests(folder)
    bound_ms = requests["traffic"].map(
        {"chat": 400.0, "report": 400.0, "search": 400.0}
    )  # search by its tag
    requests["good"] = requests["e2e_ms"] <= bound_ms
    rows = {one["traffic"]: one for one in found["by_traffic"]}

    assert {name: (one["good"]["n"], one["good"]["k"]) for name, one in rows.items()} == {
        name: (len(of), int(of["good"].sum())) for name, of in requests.groupby("traffic")
    }
    for key in ("n", "k"):
        assert sum(one["good"][key] for one in rows.values()) == found["good"][key]
    assert (rows["report"]["good"]["value"], rows["chat"]["good"]["value"]) == (0.0, 1.0)
    page, text = report.html.read_text(), report.markdown.read_text()
    for shown in ("ttft p99.9 (search)", "Goodput by traffic"):
        assert shown in page
        assert shown.replace("(", "\\(").replace(")", "\\)") in text or shown in text


def steady_requests(folder):
    requests, attempts = (RunData(folder).table(name) for name in ("requests", "attempts"))
    merged = requests[requests["stage"] == "steady"].merge(
        attempts[["request_id", "last_content_at_ns"]], on="request_id", validate="one_to_one"
    )
    return merged.assign(e2e_ms=(merged["last_content_at_ns"] - merged["scheduled_at_ns"]) / 1e6)


def exact_p90(requests):
    ordered = np.sort(requests["e2e_ms"])
    return ordered[math.ceil(len(ordered) * 0.9 - 1e-9) - 1]


# --- each figure, planted ------------------------------------------------------------------------------------------


@pytest.fixture
def planted(mixed, tmp_path):
    """400 requests in 100 s, every tenth with the changes; each of 60 fresh, 40 cached and 5 output tokens, a cost of 89."""

    def report(tenth, *objectives):
        made = mixed(duration_s=100.0)
        usage = {
            "input_tokens": 60,
            "cache_read_input_tokens": 40,
            "cache_creation_input_tokens": 0,
        }
        for i in range(400):
            attempt = {"first": 100, "kinds": "xxxxx", **usage}
            request = {} if i % 10 else tenth
            made.request(
                i * 250.0, [attempt | request.get("attempt", {})], **request.get("request", {})
            )
        scenario = {
            "name": "planted", "arrival": {"process": "constant", "rate_per_s": 4.0},
            "stages": {"duration_s": 100.0, "warmup_s": 0.0, "cooldown_s": 0.0}, "slo": dict(enumerate(objectives)), "traffic": {},
        }  # fmt: skip
        made.run = {"scenario": scenario}
        result = make([made.write(tmp_path / "run")], tmp_path)
        return json.loads(result.json.read_text())["slo"]

    return report


def ending(ended, **more):
    """Changes of a request that got no answer."""
    return {
        "attempt": {"first": None, "ended": ended, **more},
        "request": {"ended": ended, "winner": None},
    }


FAILED = ending("server_error")
LIMITED = ending("rate_limited")
LEFT = ending("cancelled")
OPEN = ending("censored", end=None)
SLOW = {"attempt": {"first": 900}}
MISS = {"attempt": {"input_tokens": 100, "cache_read_input_tokens": 0}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tenth", "expected"),
    [
        (
            FAILED,
            [
                ("error_rate < 20%", 0.1, PASS),
                ("error_rate < 12%", 0.1, INCONCLUSIVE),
                ("error_rate < 5%", 0.1, FAIL),
                ("complete > 95%", 0.9, FAIL),
                ("abandoned < 5%", 0.0, PASS),
                ("429_rate < 5%", 0.0, PASS),
                ("goodput > 80%", 0.9, PASS),
                ("goodput > 95%", 0.9, FAIL),
                ("requests_per_s > 3", 3.6, PASS),
                ("requests_per_s > 3.9", 3.6, FAIL),
                ("output_tokens_per_s > 15", 18.0, PASS),
                ("output_tokens_per_s > 20", 18.0, FAIL),
                ("cost_per_good_request < 110", 89.0, PASS),
                ("cost_per_good_request < 80", 89.0, FAIL),
            ],
        ),
        (OPEN, [("error_rate < 5%", 0.1, FAIL)]),
        (
            LEFT,
            [
                ("error_rate < 5%", 0.0, PASS),
                ("complete > 80%", 0.9, PASS),
                ("abandoned < 5%", 0.1, FAIL),
            ],
        ),
        (LIMITED, [("429_rate < 5%", 0.1, FAIL)]),
        (MISS, [("cache_hit > 30%", 0.36, PASS), ("cache_hit > 39%", 0.36, FAIL)]),
        (
            {},
            [
                ("cache_hit > 39%", 0.4, PASS),
                ("cache_hit > 39.9%", 0.4, INCONCLUSIVE),
                ("cache_hit > 40.7%", 0.4, FAIL),
            ],
        ),
    ],
)
def test_every_figure_has_its_planted_value_and_is_gated(planted, tenth, expected):
    found = planted(tenth, *(text for text, *_ in expected))

    assert [(one["value"], one["outcome"]) for one in found] == [
        (pytest.approx(value, rel=0.005), status) for _, value, status in expected
    ]
    for one, (_, value, _) in zip(found, expected, strict=True):
        assert one["low"] <= value * 1.005
        assert one["high"] >= value * 0.995


def test_a_good_request_costs_more_where_some_answers_are_late(planted):
    """A tenth is paid for and late: with an objective on TTFT it is no good request."""
    _, found = planted(SLOW, "ttft p50 < 500ms", "cost_per_good_request < 95")

    assert (found["value"], found["outcome"]) == (pytest.approx(89 / 0.9), FAIL)


@pytest.mark.slow("closed-pass")
@pytest.mark.parametrize(("process", "status"), [("constant", FAIL), ("closed", PASS)])
def test_bare_names_count_since_scheduled_and_in_a_closed_loop_since_sent(made, process, status):
    """Requests are sent 300 ms late, and answered 100 ms after."""
    arrival = {"arrival": {"process": process, "rate_per_s": 50.0}}
    report = made(
        n=500,
        warmup_s=0,
        ttft_ms=400.0,
        delay_ms=300.0,
        slo={"goal": "ttft p90 < 200ms"},
        scenario=arrival,
    )
    (found,) = json.loads(report.json.read_text())["slo"]

    assert (found["outcome"], found["metric"]) == (
        status,
        {FAIL: "ttft_sched", PASS: "ttft_sent"}[status],
    )


@pytest.mark.slow
def test_the_default_objective_is_on_what_no_objective_of_the_scenario_is(mixed, tmp_path):
    """Half of `probe` fails, as its objective allows; of `chat`, which has none, everything is complete or nothing is."""
    for broken, outcome in ((0, ""), (100, "fail")):
        run = mixed(duration_s=100.0)
        for i in range(400):
            fails = i % 4 == 1 or (i % 2 == 0 and i < 4 * broken)
            attempt = {"first": 100} if not fails else {"first": None, "ended": "server_error"}
            how = {"ended": "server_error", "winner": None} if fails else {}
            run.request(i * 250.0, [attempt], traffic="probe" if i % 2 else "chat", **how)
        scenario = {
            "name": "n", "arrival": {"process": "constant"}, "traffic": {}, "stages": {"duration_s": 100.0, "warmup_s": 0.0},
            "slo": {"probe": {"metric": "error_rate", "max": 0.7, "traffic": "probe"}},
        }  # fmt: skip
        run.run = {"scenario": scenario}
        report = make([run.write(tmp_path / f"run-{broken}")], tmp_path / f"report-{broken}")
        health = report.data["health"]

        assert (health["outcome"], health["judged"]["n"]) == (outcome, 200)
        assert health["complete"]["n"] == 400
        assert [one["outcome"] for one in report.data["slo"]] == [PASS]


# --- decisions and intervals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ends", "outcome"),
    [
        ("requests_per_s > 40", (50, 41, 60), PASS),
        ("requests_per_s > 40", (50, 39, 60), INCONCLUSIVE),
        ("requests_per_s > 40", (30, 20, 39), FAIL),
        ("cost_per_good_request < 2", (1, 0.5, 1.9), PASS),
        ("cost_per_good_request < 2", (1, 0.5, 2.1), INCONCLUSIVE),
        ("cost_per_good_request < 2", (math.inf, 2.5, math.inf), FAIL),
        ("complete > 1%", (0.05, 0.01, 0.1), PASS),
        ("error_rate < 99%", (0.95, 0.9, 0.99), PASS),
        ("requests_per_s > 40", (50, None, None), INCONCLUSIVE),
    ],
)
def test_the_whole_interval_decides(text, ends, outcome):
    assert decide_figure(Objective.model_validate(text), Measured(*ends), 60.0)[0] == outcome


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("error_rate < 40%", PASS),
        ("error_rate < 5.5%", INCONCLUSIVE),
        ("error_rate < 1.9%", INCONCLUSIVE),
        ("error_rate < 0.001%", FAIL),
    ],
)
def test_one_burst_passes_what_several_would_keep_and_fails_by_its_interval(text, outcome):
    errors = np.zeros(4000, bool)
    errors[1000:1040] = True
    of = proportion(errors)
    measured = Measured(of.value, of.low, of.high, of.n, of.n_eff, share=of)

    assert decide_figure(Objective.model_validate(text), measured, 60.0)[0] == outcome


def test_an_inconclusive_rate_says_how_long_a_run_would_decide_it():
    outcome, why = decide_figure(
        Objective.model_validate("requests_per_s > 40"), Measured(44, 36, 52, 500), 60.0
    )

    assert outcome == INCONCLUSIVE
    assert "(about 240 s needed, 60 s measured)" in why  # half as wide: four times as long


RATE, SECONDS = 6.0, 60.0


def poisson(rng):
    at = rng.uniform(0, SECONDS, rng.poisson(RATE * SECONDS))
    return np.ones(len(at)), at, at


def bursts(rng):
    """On and off for about 1.5 s each."""
    edges = np.concatenate(([0.0], np.cumsum(rng.exponential(1.5, 200))))
    is_on = (np.arange(200) + rng.integers(2)) % 2 == 0
    at = [
        rng.uniform(a, b, rng.poisson(2 * RATE * (b - a)))
        for a, b in zip(edges[:-1][is_on], edges[1:][is_on], strict=True)
    ]
    at = np.concatenate(at)
    at = at[at < SECONDS]
    return np.ones(len(at)), at, at


def even(rng):
    at = np.arange(rng.random() / RATE, SECONDS, 1 / RATE)
    return np.ones(len(at)), at, at


def tokens(rng):
    """Answers of 6 tokens on average, of which each takes a tenth of a second or so, begun before the stage as well."""
    begun = rng.uniform(-30, SECONDS, rng.poisson(RATE / 6 * (SECONDS + 30)))
    size = rng.lognormal(math.log(6) - 0.32, 0.8, len(begun))
    ended = begun + size / 10
    inside = np.clip(ended, 0, SECONDS) - np.clip(begun, 0, SECONDS)
    return size * inside / (ended - begun), np.clip(begun, 0, SECONDS), np.clip(ended, 0, SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("draw", [poisson, bursts, even, tokens])
def test_the_interval_of_a_rate_holds_the_true_rate(draw, full_size):
    rng, runs = np.random.default_rng(17), 400 if full_size else 25
    found = []
    for _ in range(runs):
        amounts, begun, ended = draw(rng)
        found.append(Work(SECONDS, amounts, begun, ended, np.arange(len(amounts)) * TURNS).rate())
    held = sum(one.low <= RATE <= one.high for one in found)

    assert held >= (0.91 if full_size else 0.8) * runs
    if draw is poisson:  # no wider than it has to be
        width = np.mean([one.high - one.low for one in found]) / (
            2 * 1.96 * math.sqrt(RATE / SECONDS)
        )
        assert 0.9 < width < 1.3


@pytest.mark.slow
def test_the_interval_of_the_cost_of_a_good_request_holds_the_true_one(full_size):
    """Costs are lognormal; 80% are good, dear ones less often: 1 / (0.8 E[good | cost]) is known by a large sample."""
    rng, runs = np.random.default_rng(23), 400 if full_size else 25

    def draw(n):
        cost = rng.lognormal(0, 0.7, n)
        return cost, (rng.random(n) < np.where(cost > 1, 0.7, 0.9)).astype(float)

    cost, good = draw(2_000_000)
    planted_cost, held = cost.sum() / good.sum(), 0
    for _ in range(runs):
        low, high = ratio(*draw(300))
        held += low <= planted_cost <= high
    assert held >= (0.91 if full_size else 0.8) * runs


@pytest.mark.parametrize("burst", [1, 5])
def test_the_interval_of_a_share_holds_the_true_share(burst, full_size):
    """2% errors, alone or in bursts of five."""
    rng, runs, held = np.random.default_rng(29), 400 if full_size else 100, 0
    for _ in range(runs):
        errors = np.zeros(3000, bool)
        for begin in np.flatnonzero(rng.random(3000) < 0.02 / burst):
            errors[begin : begin + burst] = True
        of = proportion(errors)
        held += of.low <= (0.02 if burst == 1 else 1 - (1 - 0.02 / burst) ** burst) <= of.high
    assert held >= 0.9 * runs
