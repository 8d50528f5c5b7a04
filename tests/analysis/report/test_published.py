"""report.json: the promised names, and that every kind of report keeps to the published schema."""

import copy
import json

import jsonschema
import pytest
from run_folders.dry_runs import dry_run_of

from tailgauge_analysis.metrics.latency import QUANTILES
from tailgauge_analysis.report.build import build
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.latency import Percentiles
from tailgauge_analysis.text.formatting import percentile

SLO = {
    "fast": "ttft_sched p50 < 1000ms",
    "slow": "e2e_sched p50 < 10ms",
    "joined": "join_sched p90 < 10ms",
}
FAILED = dict.fromkeys(range(150, 170), "rate_limited")


@pytest.fixture(scope="module")
def checker(checkout):
    """The schema as it is published."""
    tree = json.loads(
        (checkout / "docs" / "reference" / "report.schema.json").read_text(encoding="utf-8")
    )
    jsonschema.Draft202012Validator.check_schema(tree)
    return jsonschema.Draft202012Validator(tree)


def of(folder):
    """What report.json would hold, as a reader of the file gets it."""
    return json.loads(json.dumps(build(Run([folder])).data, allow_nan=False))


@pytest.fixture(scope="module")
def sound(synthetic, tmp_path_factory):
    """One report, to be broken."""
    return of(synthetic.write(tmp_path_factory.mktemp("sound") / "run", n=200, slo=SLO))


def row(report_json, **wanted):
    found = [
        r for r in report_json["latency"] if all(r[key] == value for key, value in wanted.items())
    ]
    assert len(found) == 1, (wanted, len(found))
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"n": 300, "slo": SLO}, {"n": 0}, {"n": 1, "warmup_s": 0}, {"n": 60, "chunks": 1, "server_log": False},
        {"n": 100, "ended": dict.fromkeys(range(100), "server_error"), "error": {"status": 500}},
        {"n": 100, "ended": dict.fromkeys(range(100), "client_drop")},
        {"n": 100, "ended": dict.fromkeys(range(80, 100), "censored"), "slo": SLO},
        {"n": 100, "ended": {50: "no such class"}},
        {"n": 400, "ended": FAILED, "error": {"status": 429, "error_type": "rate_limit_error"}, "lost": 3},
    ],
)  # fmt: skip
def test_every_report_keeps_to_the_schema(write, checker, changes):
    checker.validate(of(write(**changes)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        lambda tree: tree.pop("conservation"),
        lambda tree: tree.update(schema_version=2),
        lambda tree: tree["verdict"].update(status="GOOD"),
        lambda tree: tree["conservation"]["ended"].update({"fine": 3}),
        lambda tree: tree["latency"][0].update(since="neither"),
        lambda tree: tree["latency"][0]["percentiles"].pop("p99_9"),
        lambda tree: tree["latency"][0]["percentiles"]["p99"].update(value="200 ms"),
        lambda tree: tree["slo"][0].update(outcome="passed"),
    ],
)
def test_the_schema_refuses_what_was_not_promised(sound, checker, broken):
    tree = copy.deepcopy(sound)
    checker.validate(tree)
    broken(tree)

    assert not checker.is_valid(tree)


def test_the_schema_has_every_percentile():
    assert [percentile(p).replace(".", "_") for p in QUANTILES] == list(Percentiles.__annotations__)


@pytest.mark.slow
def test_names_values_and_populations_are_the_promised_ones(write):
    report = of(write(n=400, ended=FAILED, error={"status": 429}, slo=SLO))
    ttft = {"group": "all", "metric": "ttft", "since": "scheduled"}
    completed = row(report, **ttft, population="completed")
    offered = row(report, **ttft, population="offered")
    e2e = row(report, group="all", metric="e2e", since="sent", population="completed")
    [error] = report["errors"]

    assert (completed["n"], completed["unit"], completed["mean"]) == (330, "ms", 200.0)
    assert completed["percentiles"]["p50"]["value"] == 200.0
    assert (offered["n"], offered["mean"]) == (350, None)
    assert offered["percentiles"]["p99"].items() >= {
        "value": None, "beyond": True, "value_is": "failed",
    }.items()  # fmt: skip
    assert completed["percentiles"]["p99_9"].items() >= {
        "value": None, "beyond": False, "reliable": False, "value_is": "n/a",
    }.items()  # fmt: skip
    assert row(report, group="chat", metric="tpot", population="completed")["since"] is None
    assert e2e["mean"] == pytest.approx(389.95)
    assert report["verdict"]["status"] == "VALID"
    assert [(s["name"], s["outcome"], s["bound"]) for s in report["slo"]] == [
        ("fast", "pass", 1000.0), ("slow", "fail", 10.0), ("joined", "inconclusive", 10.0),
    ]  # fmt: skip
    assert (error["ended"], error["status"], error["attempts"]) == ("rate_limited", 429, 20)


@pytest.mark.slow
def test_each_traffic_table_is_a_group_of_its_own(mixed, checker, tmp_path):
    run = mixed(duration_s=5)
    for i in range(120):
        run.request(i * 30, [{"first": 100, "kinds": "xxxx"}], "all")
        run.request(i * 30 + 5, [{"first": 300, "kinds": "xxxx"}], "slow")
    report = of(run.write(tmp_path / "run"))
    at = {
        group: row(report, group=group, metric="ttft", since="scheduled", population="offered")
        for group in ("all", "all (traffic)", "slow")
    }

    checker.validate(report)
    assert [one["n"] for one in at.values()] == [240, 120, 120]
    assert [one["mean"] for one in at.values()] == pytest.approx([200, 100, 300])
    assert at["slow"]["percentiles"]["p50"]["value"] == 300


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "key", "settings"),
    [
        ("hedged", "hedging", {}), ("fan_out", "fan_out", {}), ("cached", "cache", {}),
        ("streaming", "rate_limits", {"simulated.limits.rpm": 60}),
    ],
)  # fmt: skip
def test_the_report_of_a_dry_run_has_a_table_and_keeps_to_the_schema(
    checker, tmp_path, scenario, key, settings
):
    pairs = [("target.url", "simulated"), ("stages.duration_s", 20.0), *settings.items()]
    report_json = of(dry_run_of(scenario, pairs, tmp_path))

    checker.validate(report_json)
    assert report_json[key]
    assert [name for name in ("hedging", "fan_out") if name != key and report_json[name]] == []
