"""Steps of the load: each row against a count over the rows of the run, and which step broke first."""

from itertools import pairwise

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder

from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import load_steps, result
from tailgauge_analysis.text.section import FAIL, INCONCLUSIVE

STEPS = [[0, 1], [0.4, 1], [0.4, 3], [0.8, 3], [0.8, 9], [1, 9]]
WAVE = [[0, 1], [0.3, 4], [0.6, 1], [1, 3]]
SHAPES = {
    "steps": ({"kind": "piecewise", "points": STEPS}, [0, 0.4, 0.8, 1]),
    "step": ({"kind": "step", "at": 0.3, "factor": 5}, [0, 0.3, 1]),
    "step down": ({"kind": "step", "at": 0.65, "factor": 0.2}, [0, 0.65, 1]),
    "ramp": ({"kind": "ramp", "factor": 6}, np.linspace(0, 1, 11)),
    "wave of a day": ({"kind": "piecewise", "points": WAVE}, np.linspace(0, 1, 11)),
    "spike": ({"kind": "spike", "at": 0.5, "width": 0.1, "factor": 8}, np.linspace(0, 1, 11)),
    "odd spike": ({"kind": "spike", "at": 0.37, "width": 0.06, "factor": 8},
                  [0, 0.1, 0.2, 0.3, 0.37, 0.43, 0.5, 0.6, 0.7, 0.8, 0.9, 1]),
}  # fmt: skip


def run_of(tmp_path, shape, **tables):
    """A dry run of 200 s at 5 requests/s on the mean."""
    tree = {
        "arrival": {"rate_per_s": 5.0, "shape": shape},
        "stages": {"duration_s": 200.0, "warmup_s": 0.0},
        "simulated": {"ttft_ms": 200.0, "chunk_gap_ms": 2.0},
        "traffic": {"chat": {"prompt_tokens": 200, "output_tokens": 8}},
        "slo": {"first": "ttft p90 < 700ms"},
    }
    return Run([dry_run_folder(tree | tables, tmp_path)])


def one_server(step_ms):
    """An engine of one call at a time, which takes two steps: it serves 500 / step_ms calls per second."""
    engine = {"replicas": 1, "router": "random", "slots": 1, "step_ms": step_ms, "overhead_ms": 0.0}
    return {
        "simulated": {"profile": "tiny", "engine": engine},
        "traffic": {"chat": {"prompt_tokens": 10, "output_tokens": 2}},
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_each_row_counts_the_requests_between_its_times(name, tmp_path):
    shape, places = SHAPES[name]
    run = run_of(tmp_path, shape, **one_server(60.0))
    found = run.result(load_steps.compute)
    ends = [200 * place for place in places]
    assert [step.from_s for step in found.steps] == pytest.approx(ends[:-1])
    assert [step.to_s for step in found.steps] == pytest.approx(ends[1:])

    first = run.attempts[run.attempts["leg"] == 0]
    requests = run.requests.merge(first, on="request_id", suffixes=("", "_call"))
    at_s = requests["scheduled_at_ns"] / 1e9
    ttft_ms = (requests["first_content_at_ns"] - requests["scheduled_at_ns"]) / 1e6
    for step, (begin, end) in zip(found.steps, pairwise(ends), strict=True):
        inside = (at_s >= begin) & (at_s < end)
        p95 = np.quantile(ttft_ms[inside], 0.95, method="inverted_cdf")
        assert step.requests == inside.sum()
        assert step.requests_per_s == pytest.approx(inside.sum() / (end - begin))
        assert step.complete.k == (requests["ended"][inside] == "ok").sum()
        assert step.latency["ttft"][1].value == pytest.approx(p95)


@pytest.mark.slow
@pytest.mark.parametrize("served_per_s", [8.0, 11.0, 30.0])
def test_the_first_line_says_which_step_broke_first(served_per_s, tmp_path):
    """Steps of 1.6, 4.7 and 14 calls per second; the last one is beyond what the target can do."""
    points = [[0, 2], [0.5, 2], [0.5, 6], [0.8, 6], [0.8, 18], [1, 18]]
    shape = {"kind": "piecewise", "points": points}
    run = run_of(tmp_path, shape, **one_server(500 / served_per_s))
    found = run.result(load_steps.compute)
    states = [step.state for step in found.steps]
    _, slower, last = (step.rate for step in found.steps)

    if served_per_s == 30.0:
        assert "missed" not in states
        last_rate = last.replace("/s", " requests/s")
        assert found.sentence.startswith(f"objectives: met up to {last_rate}")
    else:
        when = f"{last} (02:40 to 03:20)"
        answer = result.result(run)
        assert states == ["met", "met", "missed"]
        met = f"met up to {slower.replace('/s', ' requests/s')}"
        assert found.sentence == f"objectives: {met}, first missed at {when}"
        assert answer.outcome == FAIL
        step = f"the load step at {when.replace('/s', ' requests/s')}"
        assert answer.sentence == f"{step} misses ttft p90; objectives met up to {slower}"
    assert dict(result.summary(run))["latency"].endswith("(pooled over the steps of the load)")
    assert load_steps.section(found).brief == (found.sentence, load_steps.POINTER)
    assert "pooled over the steps of the load" in result.remarks(run)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("served_per_s", [5.0, 9.0, 40.0])
def test_a_step_at_which_requests_pile_up_is_named_without_an_objective(served_per_s, tmp_path):
    """Steps of 2 and 8 calls per second."""
    shape = {"kind": "step", "at": 0.5, "factor": 4}
    run = run_of(tmp_path, shape, slo={}, **one_server(500 / served_per_s))
    found = run.result(load_steps.compute)
    outcome = result.result(run)
    piles = served_per_s == 5.0
    begin = "the target does not sustain the load step at"
    text = f"requests pile up at {found.steps[1].rate} (01:40 to 03:20)"

    assert [step.piles for step in found.steps] == [False, piles]
    assert (outcome.outcome == FAIL) == piles
    assert outcome.sentence.startswith(begin) == piles
    assert (text in found.sentence) == piles


@pytest.mark.slow
def test_what_a_spike_leaves_behind_is_named_with_its_end(tmp_path):
    shape = {"kind": "spike", "at": 0.4, "width": 0.1, "factor": 10}
    found = run_of(tmp_path, shape, **one_server(45.0)).result(load_steps.compute)
    spike = found.steps[4]

    assert (spike.from_s, spike.state) == (80.0, "missed")
    after = [step for step in found.steps if step.from_s > 80 and step.state == "missed"]
    assert (
        f"first missed at {spike.rate} (01:20 to 01:40), later missed at lower rates too, last at {after[-1].rate} ({after[-1].times})"
        in found.sentence
    )


def test_refused_requests_break_a_step_without_any_objective_on_latency(tmp_path):
    limits = {"simulated": {"ttft_ms": 50.0, "limits": {"rpm": 360, "burst": 12}}, "slo": {}}
    found = run_of(tmp_path, {"kind": "step", "at": 0.5, "factor": 4}, **limits).result(
        load_steps.compute
    )

    assert [step.state for step in found.steps] == ["met", "missed"]
    assert found.sentence.startswith(
        f"99% complete answers: met up to {found.steps[0].requests_per_s} requests/s, first missed at"
    )


@pytest.mark.slow("shape1", "shape2")
@pytest.mark.parametrize(
    ("shape", "max_ms"),
    [
        ({"kind": "step", "at": 0.5, "factor": 2}, 255.0),
        ({"kind": "ramp", "factor": 3}, 250.0),
        ({"kind": "flat"}, 255.0),
    ],
)
def test_an_inconclusive_objective_over_several_rates_points_to_curve_and_not_to_a_longer_run(
    shape, max_ms, tmp_path
):
    run = run_of(
        tmp_path, shape,
        arrival={"rate_per_s": 1.0, "process": "poisson", "shape": shape},
        simulated={"ttft_ms": 200.0, "ttft_sigma": 0.16, "chunk_gap_ms": 2.0},
        slo={"first": {"metric": "ttft", "quantile": 0.9, "max_ms": max_ms}},
    )  # fmt: skip
    found = result.result(run)

    assert found.outcome == INCONCLUSIVE
    is_flat = shape["kind"] == "flat"
    advised = " ".join([found.advice, *found.details])
    assert ("run longer" in advised) == is_flat
    assert ("--set experiment.kind=curve" in found.advice) != is_flat


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "rpm"), [(4, 360), (2, 300), (4, 6000)])
def test_a_step_that_is_refused_fails_by_the_default_objective_where_all_of_the_run_does_not(
    factor, rpm, tmp_path
):
    limits = {"simulated": {"ttft_ms": 50.0, "limits": {"rpm": rpm, "burst": 12}}, "slo": {}}
    run = run_of(tmp_path, {"kind": "step", "at": 0.5, "factor": factor}, **limits)
    outcome = result.result(run)

    assert (outcome.outcome == FAIL) == (rpm < 6000)
    is_named = "in the load step at" in outcome.sentence or outcome.sentence.startswith("only ")
    assert is_named == (rpm < 6000)


@pytest.mark.slow
def test_a_load_that_does_not_change_has_no_steps(tmp_path):
    assert run_of(tmp_path / "flat", {"kind": "flat"}).result(load_steps.compute) is None
    users = {"arrival": {"process": "closed", "closed": {"users": 4, "think_s": 0.5}}}
    assert run_of(tmp_path / "closed", {}, **users).result(load_steps.compute) is None
    run = run_of(tmp_path / "bursts", {}, arrival={"process": "on_off", "rate_per_s": 5.0})
    assert run.result(load_steps.compute) is None
    assert not any("pooled" in text for text in result.remarks(run))


@pytest.mark.slow("False")
@pytest.mark.parametrize("is_uneven", [True, False])
def test_a_trace_has_tenths_where_its_rate_changes(is_uneven, tmp_path):
    rng = np.random.default_rng(4)
    place = np.sort(rng.random(900))
    at_s = 200 * (np.sqrt(place) if is_uneven else place)
    rows = [f"{at:.3f},100,8" for at in at_s - at_s[0]]
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join(["Timestamp,Request tokens,Response tokens", *rows]))
    arrival = {"process": "trace", "trace": {"file": str(trace), "format": "burstgpt"}}
    found = run_of(tmp_path / "run", {}, arrival=arrival).result(load_steps.compute)

    assert (found is not None) == is_uneven
    if found is not None:
        assert (found.shape, len(found.steps)) == ("trace", 10)
        assert found.steps[-1].requests_per_s > 5 * found.steps[0].requests_per_s


@pytest.mark.slow
def test_the_steps_stand_on_the_page_and_in_report_json(tmp_path):
    run = run_of(tmp_path, SHAPES["steps"][0])
    report = make(run.folders, tmp_path)
    page = report.html.read_text()

    assert "Steps of the load" in page
    assert "Among successes, pooled over the steps of the load" in page
    assert [step["state"] for step in report.data["load_steps"]["steps"]] == ["met", "met", "met"]
    assert report.data["load_steps"]["steps"][0]["objectives"] == {"ttft p90": "pass"}
