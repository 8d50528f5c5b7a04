"""/metrics, read back by Prometheus' own parser."""

import json
import re

import pytest
from live.counters import bins, objective
from prometheus_client.parser import text_string_to_metric_families

from tailgauge.channel.traffic_counters import TrafficCounters
from tailgauge.live.prometheus import BOUNDS_S, exposed
from tailgauge.live.series import RunView
from tailgauge.master.objectives import MET, MISSED, TOO_FEW
from tailgauge.master.progress import Progress

CHAT = (("target", "main"), ("traffic", "chat"))
HOSTILE = 'chat"} 1\n<script>\\'


@pytest.fixture(scope="module")
def read():
    """Samples of a run by name and labels."""
    chat = TrafficCounters(
        {"ok": 30, "timeout": 5}, {"ok": 33, "rate_limited": 4}, 5000, 4000, 700,
        bins(30.0, 80.0, 80.0, 80.0, 400.0, 200_000.0), bins(9.0, 11.0, 11.0), bins(900.0),
    )  # fmt: skip
    second = TrafficCounters(attempts={"ok": 1}, output_tokens=7)
    traffic = {("chat", "main"): chat, ("chat", "second"): second}
    progress = Progress(
        12.0,
        60.0,
        sent=40,
        in_flight=3,
        dropped=2,
        chunks=900,
        traffic=traffic,
        verdict="DEGRADED",
        objectives=(
            objective(MET),
            objective(MISSED, "error_rate"),
            objective(TOO_FEW, "abandoned"),
        ),
    )
    workers = [
        {"worker": 0, "state": "running", "cpu": 0.25, "clock_error_ms": 0.021},
        {"worker": 1, "state": "running", "cpu": None, "clock_error_ms": None},
        {"worker": 2, "state": "lost", "cpu": 0.5, "clock_error_ms": 0.0},
    ]
    seen = RunView(
        {"run_id": "run-1", "scenario": HOSTILE, "state": "running"}, progress, workers, 3
    )
    body, content_type = exposed(seen, "text/plain")
    assert content_type.startswith("text/plain")
    found = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found[sample.name, *sorted(sample.labels.items())] = sample.value
    return found


@pytest.mark.parametrize(
    ("sample", "value"),
    [
        (("tailgauge_run_seconds",), 12.0),
        (("tailgauge_run_planned_seconds",), 60.0),
        (("tailgauge_requests_sent_total",), 40.0),
        (("tailgauge_requests_dropped_total",), 2.0),
        (("tailgauge_requests_ended_total", ("outcome", "timeout"), *CHAT), 5.0),
        (("tailgauge_requests_in_flight",), 3.0),
        (("tailgauge_attempts_ended_total", ("outcome", "rate_limited"), *CHAT), 4.0),
        (
            (
                "tailgauge_attempts_ended_total",
                ("outcome", "ok"),
                ("target", "second"),
                ("traffic", "chat"),
            ),
            1.0,
        ),
        (("tailgauge_input_tokens_total", *CHAT), 5000.0),
        (("tailgauge_cached_tokens_total", *CHAT), 4000.0),
        (("tailgauge_output_tokens_total", *CHAT), 700.0),
        (("tailgauge_output_tokens_total", ("target", "second"), ("traffic", "chat")), 7.0),
        (("tailgauge_e2e_seconds_count", *CHAT), 1.0),
        (("tailgauge_tpot_seconds_bucket", ("le", "0.01"), *CHAT), 1.0),
        (("tailgauge_tpot_seconds_bucket", ("le", "0.015"), *CHAT), 3.0),
        (("tailgauge_chunks_total",), 900.0),
        (("tailgauge_objective_met", ("objective", "ttft p95 (chat) < 800 ms")), 1.0),
        (("tailgauge_objective_met", ("objective", "error_rate < 800 ms")), 0.0),
        (("tailgauge_verdict", ("verdict", "DEGRADED")), 1.0),
        (("tailgauge_verdict", ("verdict", "VALID")), 0.0),
        (("tailgauge_workers", ("state", "running")), 2.0),
        (("tailgauge_workers", ("state", "lost")), 1.0),
        (("tailgauge_worker_cpu_cores", ("worker", "0")), 0.25),
        (("tailgauge_worker_clock_error_seconds", ("worker", "0")), 0.000021),
        (("tailgauge_worker_clock_error_seconds", ("worker", "2")), 0.0),
    ],
)
def test_a_figure_is_exposed(read, sample, value):
    assert read[sample] == pytest.approx(value)


def test_what_is_not_known_is_not_exposed(read):
    assert ("tailgauge_worker_clock_error_seconds", ("worker", "1")) not in read
    assert ("tailgauge_worker_cpu_cores", ("worker", "1")) not in read
    assert (
        sum(name == "tailgauge_objective_met" for name, *_ in read) == 2
    )  # too few requests for the third


def test_the_histogram_is_that_of_the_sketch(read):
    """30, three times 80 and 400 ms, and one beyond the last bound."""
    name = "tailgauge_ttft_seconds"
    at = {
        le: read[f"{name}_bucket", ("le", le), *CHAT]
        for le in ("0.05", "0.1", "0.3", "0.5", "120.0", "+Inf")
    }

    assert at == {"0.05": 1.0, "0.1": 4.0, "0.3": 4.0, "0.5": 5.0, "120.0": 5.0, "+Inf": 6.0}
    assert sum(key[0] == f"{name}_bucket" for key in read) == 2 * (len(BOUNDS_S) + 1)
    assert read[f"{name}_count", *CHAT] == 6.0
    assert read[f"{name}_sum", *CHAT] == pytest.approx(200.67, rel=0.01)
    assert read[f"{name}_count", ("target", "second"), ("traffic", "chat")] == 0.0


def test_a_name_of_any_characters_stays_a_label(read):
    assert (
        read["tailgauge_run_info", ("run_id", "run-1"), ("scenario", HOSTILE), ("state", "running")]
        == 1.0
    )


def test_the_dashboard_asks_for_metrics_that_exist_and_its_panels_do_not_overlap(read, checkout):
    dashboard = json.loads((checkout / "docs" / "how-to" / "grafana.json").read_text())
    panels = dashboard["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    asked = set(re.findall(r"tailgauge_\w+", json.dumps([expressions, dashboard["templating"]])))
    places = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]

    assert asked - {name for name, *_ in read} == set()
    assert {
        "tailgauge_ttft_seconds_bucket",
        "tailgauge_tpot_seconds_bucket",
        "tailgauge_e2e_seconds_bucket",
    } < asked
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {text.count("(") - text.count(")") for text in expressions} == {0}


def test_without_a_run_there_is_nothing_to_expose():
    assert exposed(None, "")[0] == b""


def test_a_scraper_that_asks_for_openmetrics_gets_it():
    body, content_type = exposed(None, "application/openmetrics-text; version=1.0.0")

    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
