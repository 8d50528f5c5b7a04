"""Figures: units on every axis, few points, no number that is not finite."""

import hashlib
import json
import re

import numpy as np
import plotly.graph_objects as go
import plotly.offline
import pytest
from run_folders.dry_runs import dry_run_of
from run_folders.loaded import LoadedRun

from tailgauge_analysis.metrics.timeline import Timeline, width, windows
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.plot import LIBRARY, library, log_ticks, plot
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.picture import tail_curve


@pytest.fixture
def drawn(write):
    def draw(**changes):
        return plots(write(**changes))

    return draw


def plots(run):
    """Each figure of a run, which Plotly's own classes accept: no key and no value is misspelt."""
    trees = {figure.name: json.loads(plot(figure)) for figure in build(Run([run])).figures}
    for tree in trees.values():
        go.Figure(tree)
    return trees


def axes(plot):
    return {name: axis for name, axis in plot["layout"].items() if name[1:].startswith("axis")}


@pytest.mark.slow
def test_the_library_on_the_page_is_that_of_the_release_that_makes_the_figures(drawn):
    """The published file, of the version in plotly's package, with every type of trace that is drawn."""
    digest = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()
    whole = plotly.offline.get_plotlyjs()
    types = {trace["type"] for plot in drawn(n=400).values() for trace in plot["data"]}

    assert digest == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert re.findall(r"v[\d.]+", library()[:100]) == re.findall(r"v[\d.]+", whole[:100])
    assert {name for name in types if f'name:"{name}"' not in library()} == set()
    assert "MIT License" in LIBRARY.with_name("LICENSE").read_text()


@pytest.mark.slow
def test_every_axis_that_is_labelled_has_a_unit(drawn):
    plots = drawn(n=400, ended={100: "timeout", 101: "server_error"})

    assert list(plots) == ["timeline", "classes", "tail", "tokens", "gaps", "client"]
    for name, tree in plots.items():
        for key, axis in axes(tree).items():
            title = axis["title"]["text"]
            if "ticktext" in axis and not title:
                continue  # its values are names
            has_unit = any(
                word in title
                for word in (
                    "(",
                    "share of",
                    "per second",
                    "per<br>second",
                    "<br>per second",
                    "in flight",
                )
            )
            assert has_unit, (name, key, title)


def test_a_run_without_rows_has_no_figures(drawn):
    assert set(drawn(n=0)) <= {"client"}


@pytest.mark.slow
def test_a_long_run_has_few_points(drawn):
    plots = drawn(n=5000, rate_per_s=1, chunks=2, server_log=False)

    for tree in plots.values():
        assert all(len(trace["x"]) <= 620 for trace in tree["data"])


@pytest.mark.parametrize(("seconds", "bin_s"), [(10, 1), (600, 1), (601, 2), (86_400, 300)])
def test_bins_grow_with_the_run(seconds, bin_s):
    assert width(seconds) == bin_s


def test_the_timeline_counts_every_request_once(write):
    t = Timeline(load([write(n=205, rate_per_s=20, ended={100: "timeout", 101: "client_drop"})]))

    assert t.offered_per_s.sum() == pytest.approx(205)
    assert t.ended_per_s.sum() == pytest.approx(204)
    assert sum(rates.sum() for rates in t.classes_per_s.values()) == pytest.approx(205)
    assert t.in_flight[-1] == 0
    assert t.ttft[0].values_ms[:10] == pytest.approx(200)


def waits(n, seed=4):
    """TTFTs whose p99 is known: exp(6 + 0.8 * 2.326) ms."""
    return np.random.default_rng(seed).lognormal(6.0, 0.8, n)


@pytest.mark.parametrize(
    ("n", "rate_per_s"), [(300, 6), (600, 6), (3000, 50), (6000, 50), (12000, 200)]
)
def test_no_value_that_is_called_a_percentile_comes_from_too_few_requests(write, n, rate_per_s):
    """The p99 of each second with six requests would be their maximum, whose median is the p89."""
    p99_ms = float(np.exp(6 + 0.8 * 2.326))
    t = Timeline(
        load([write(n=n, rate_per_s=rate_per_s, ttft_ms=waits(n), chunks=1, server_log=False)])
    )

    for one in t.ttft:
        shown = ~np.isnan(one.values_ms)
        assert shown.sum() >= 5
        assert one.width_s * rate_per_s >= one.fewest == round(3 / (1 - one.p))
    p99 = [one for one in t.ttft if one.p == 0.99]
    assert bool(p99) == (n >= 3000)
    for one in p99:
        assert np.nanmedian(one.values_ms) == pytest.approx(p99_ms, rel=0.2)
    assert np.nanmax(t.ttft_max_ms) == pytest.approx(waits(n).max())


def test_windows_without_enough_requests_show_nothing():
    """A burst, a pause with a request every ten seconds, a burst."""
    at = np.concatenate(
        (np.linspace(0, 50, 20_000), np.arange(50, 90, 10), np.linspace(90, 140, 20_000))
    )
    found = windows(at, np.ones(len(at)), 0.99)

    assert found is not None
    assert found.width_s == 1
    held = np.histogram(at, np.arange(0, 142))[0]
    assert (np.isnan(found.values_ms) == (held < 300)).all()


@pytest.mark.parametrize(
    "at", [np.empty(0), np.zeros(5), np.zeros(100_000), np.arange(3000.0) * 1000]
)
def test_too_few_or_crowded_requests_have_no_percentile_over_time(at):
    assert windows(at, np.ones(len(at)), 0.99) is None


@pytest.mark.slow
def test_the_caption_names_the_window_or_why_there_is_none(write):
    def drawn(n):
        run = write(
            str(n), n=n, rate_per_s=50, ttft_ms=waits(n), chunks=1, server_log=False, run_id=str(n)
        )
        figure = build(Run([run])).figure
        return figure.caption, [trace["name"] for trace in json.loads(plot(figure))["data"]]

    few, many = drawn(300), drawn(3000)
    assert "The TTFT p99 is that of windows of 10 seconds with at least 300 requests" in many[0]
    assert many[1][:3] == ["complete", "TTFT p99", "TTFT p50"]
    assert "A point is each request, and the maximum is that of each second" in few[0]
    assert few[1][:4] == ["complete", "TTFT of a request", "TTFT maximum", "TTFT p50"]
    assert "TTFT p99" not in few[1]


def test_the_tail_levels_off_at_the_share_of_failures():
    curve = tail_curve(np.arange(1.0, 91.0), 1 - np.arange(1, 91) / 100, "")
    x, y = curve.x, curve.y

    assert (x[0], y[0]) == (1.0, 1.0)
    assert y[-1] == pytest.approx(0.1)
    assert x[-1] > 90
    assert (np.diff(y) <= 0).all()


def test_the_tail_of_a_run_without_failures_ends_above_zero():
    curve = tail_curve(np.arange(1.0, 101.0), 1 - np.arange(1, 101) / 100, "")
    x, y = curve.x, curve.y
    single = tail_curve(np.array([5.0]), np.zeros(1), "")

    assert y[-1] == pytest.approx(0.01)
    assert x[-1] == 99
    assert (list(single.x), list(single.y)) == ([5.0], [1.0])


def test_tokens_over_time_add_up_to_what_the_answers_hold(write):
    frames = load([write(n=300, warmup_s=0)])
    found = Timeline(frames)

    ok = frames.attempts[frames.attempts["ended"] == "ok"]
    assert found.tokens_per_s.sum() * found.width_s == pytest.approx(ok["output_tokens"].sum())
    assert (found.tokens_per_s > -1e-6).all()


@pytest.mark.slow
def test_the_last_legs_of_a_fan_out_are_drawn_and_hedges_without_a_control_alone(tmp_path):
    pairs = [("stages.duration_s", 20.0)]
    fan, hedged = (plots(dry_run_of(name, pairs, tmp_path)) for name in ("fan_out", "hedged"))

    bars = fan["fan-out-last"]["data"][0]
    assert sum(bars["y"]) == pytest.approx(100, abs=1e-3)  # each of six figures
    assert all(low > 0 for low in bars["error_y"]["array"])
    assert len(hedged["hedging"]["data"]) == 1, "a variant without its control has no other line"


def test_a_run_of_fan_outs_draws_its_joins_over_time(mixed, tmp_path):
    run = mixed()
    for i in range(100):
        run.request(
            i * 100, [{"leg": k, "first": 100} for k in range(3)], "fan", "fan_out", joined_ms=121
        )
    drawn = {figure.name: figure for figure in build(Run([run.write(tmp_path / "run")])).figures}
    tree = json.loads(plot(drawn["timeline"]))

    assert tree["layout"]["yaxis2"]["title"]["text"] == "Join since<br>scheduled (ms)"
    assert [t["name"] for t in tree["data"] if 120.0 in t["y"]]


@pytest.mark.slow
def test_a_run_of_jobs_draws_their_turnarounds_and_counts_the_tokens_of_their_results(tmp_path):
    frames = load(
        [
            dry_run_of(
                "job",
                [("slo.fast", "turnaround p50 < 3000ms")],
                tmp_path,
            )
        ]
    )
    findings = LoadedRun(frames)
    made = build(findings)
    first = plot(made.figure)
    requests, stage = frames.requests, findings.steady
    took = (requests["ended_at_ns"] - requests["scheduled_at_ns"])[requests["ended"] == "ok"] / 1e6
    fetched = frames.attempts[
        frames.attempts["output_tokens"].notna() & (frames.attempts["ended"] == "ok")
    ]
    tokens = fetched.loc[stage.holds(fetched["ended_at_ns"]), "output_tokens"].sum()
    panel = [trace for trace in json.loads(first)["data"] if "Turnaround" in trace.get("name", "")]
    t = Timeline(frames)

    assert sorted(t.points[1]) == pytest.approx(sorted(took))
    assert panel
    assert "turnaround p50" in first
    assert findings.evidence.throughput.output_tokens_per_s == pytest.approx(tokens / stage.seconds)
    assert tokens > 0
    assert t.tokens_per_s.sum() * t.width_s == pytest.approx(fetched["output_tokens"].sum())
    assert {"tail", "tokens"} <= {figure.name for figure in made.figures}


@pytest.mark.parametrize(
    ("low", "high"),
    [(200.5, 780.0), (201.0, 235.0), (0.4, 0.9), (95.0, 130.0), (66.0, 4100.0), (0.02, 90_000.0)],
)
def test_a_logarithmic_axis_of_any_length_has_ticks(low, high):
    ticks = log_ticks(np.array([low, np.nan, 0.0, high]))

    assert 3 <= sum(low <= tick <= high for tick in ticks) <= 21
    assert ticks == sorted(set(ticks))


def test_a_logarithmic_axis_of_a_single_value_or_none_has_ticks_around_it():
    assert {100.0, 500.0} <= set(log_ticks(np.array([200.0, 200.0])))
    assert log_ticks(np.array([])) == log_ticks(np.array([np.nan, 0.0]))
