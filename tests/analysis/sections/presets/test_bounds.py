"""Bounds that others set: each outcome planted, the alarms rung and unrung."""

import pytest
from run_folders.dry_runs import dry_run_of

from tailgauge_analysis.sections.presets.bounds import MLPERF, USES


@pytest.fixture(scope="module")
def report(synthetic, tmp_path_factory):
    """Written and reported: `report(n=800, ttft_ms=300)`."""
    from tailgauge_analysis.load.frames import load
    from tailgauge_analysis.report.contents import contents
    from tailgauge_analysis.report.published import published
    from tailgauge_analysis.sections.findings import find

    def told(**changes):
        folder = tmp_path_factory.mktemp("preset") / "run"
        return published(contents(find(load([synthetic.write(folder, **changes)]))))

    return told


def alarm(told, name):
    return next(one for one in told["alarms"] if one["name"] == name)


def test_a_run_is_held_against_each_use_at_each_percentile(report):
    told = report(n=800, ttft_ms=300, gap_ms=10, chunks=20)
    [whole] = told["presets"]["segments"]

    assert whole["outcomes"]["code completion"] == dict.fromkeys(("p50", "p95", "p99"), "fail")
    assert whole["outcomes"]["real-time chat"] == dict.fromkeys(("p50", "p95", "p99"), "pass")
    assert told["presets"]["sentence"] == (
        "Of everything offered, the p99 is fast enough for real-time chat, summarisation, batch; too slow for code completion."
    )
    met = [rule["name"] for rule in told["presets"]["mlperf"]["rules"] if rule["outcome"] == "pass"]
    assert met == [rule.name for rule in MLPERF if rule.ttft_ms >= 300 and rule.tpot_ms >= 10]
    assert 0 < len(met) <= len(MLPERF)


def test_failures_fail_every_use_and_few_requests_leave_it_open(report):
    failing = report(n=800, ended=dict.fromkeys(range(100, 800, 10), "server_error"), error={"status": 500})
    few = report(n=120)

    assert {o["p99"] for o in failing["presets"]["segments"][0]["outcomes"].values()} == {"fail"}
    outcomes = few["presets"]["segments"][0]["outcomes"]
    assert {outcomes[use.name]["p99"] for use in USES} == {"inconclusive"}
    assert few["presets"]["sentence"].startswith("Of everything offered, the p50 is ")


def test_alarms_ring_on_the_whole_interval_alone(report):
    ended = dict.fromkeys(range(60, 800, 20), "stream_error") | dict.fromkeys(range(61, 800, 5), "cancelled")
    told = report(n=800, ttft_ms=2500, gap_ms=60, chunks=10, ended=ended, error={"status": 200})

    states = {one["name"]: one["state"] for one in told["alarms"]}
    assert states.pop("ttft_p95") in {"raised", "open"}  # some of the slowest 5% never came
    assert states == {
        "ttft_p50": "raised", "rate_p50": "raised", "queue_p95": "unknown", "stream_errors": "raised", "cancels": "raised",
        "cache_hits": "unknown",
    }  # fmt: skip
    assert alarm(told, "rate_p50")["value"] == pytest.approx(1000 / 60)
    assert alarm(told, "queue_p95")["why"] == "the target's log does not tell"
    assert alarm(told, "cache_hits")["value"] is None


def test_a_healthy_run_is_quiet_and_an_empty_one_knows_nothing(report):
    quiet = report(n=1500)
    empty = report(n=0)

    known = [one for one in quiet["alarms"] if one["name"] not in {"queue_p95", "cache_hits"}]
    assert {one["state"] for one in known} == {"quiet"}
    assert all(one["low"] <= one["value"] <= one["high"] for one in known)
    assert {one["state"] for one in empty["alarms"]} == {"unknown"}
    assert empty["presets"] is None
    assert empty["diagnosis"]["kind"] == "unknown"


def test_cached_tokens_and_the_engine_s_queue_are_known_to_the_alarms(tmp_path):
    from tailgauge_analysis.report.report import make

    pairs = [("target.url", "simulated"), ("simulated.profile", "haiku"), ("stages.duration_s", 40.0)]
    made = make([dry_run_of("cached", pairs, tmp_path)], tmp_path)
    hits, queue = alarm(made.published, "cache_hits"), alarm(made.published, "queue_p95")
    [cache] = made.published["cache"]["traffic"].values()

    assert hits["state"] == "quiet"
    assert hits["value"] == pytest.approx(cache["token_hit"]["value"])
    assert queue["state"] == "quiet"
    assert queue["n"] > 100
    page = made.html.read_text()
    for words in (
        "Fast enough for what",
        "Percentiles of each kind of request, by use",
        "MLPerf Inference v6",
        "Alarms",
    ):
        assert words in page
