"""Use cases and alerts: each outcome is planted, and found."""

import pytest
from run_folders.dry_runs import dry_run_of

from tailgauge_analysis.sections.use_cases import MLPERF, USES


@pytest.fixture(scope="module")
def report(synthetic, tmp_path_factory):
    """Written and reported: `report(n=800, ttft_ms=300)`."""
    from tailgauge_analysis.load.frames import load
    from tailgauge_analysis.report.contents import contents, published
    from tailgauge_analysis.sections.findings import find

    def made(**changes):
        folder = tmp_path_factory.mktemp("preset") / "run"
        return published(contents(find(load([synthetic.write(folder, **changes)]))))

    return made


def alert(data, name):
    return next(one for one in data["alerts"] if one["name"] == name)


def test_a_run_is_held_against_each_use_at_each_percentile(report):
    data = report(n=800, ttft_ms=300, gap_ms=10, chunks=20)
    [whole] = data["presets"]["segments"]

    assert whole["outcomes"]["code completion"] == dict.fromkeys(("p50", "p95", "p99"), "fail")
    assert whole["outcomes"]["real-time chat"] == dict.fromkeys(("p50", "p95", "p99"), "pass")
    assert data["presets"]["sentence"] == (
        "p99 of everything offered: fits real-time chat, summarisation, batch; too slow for code completion."
    )
    met = [rule["name"] for rule in data["presets"]["mlperf"]["rules"] if rule["outcome"] == "pass"]
    assert met == [name for name, ttft_ms, tpot_ms in MLPERF if ttft_ms >= 300 and tpot_ms >= 10]
    assert 0 < len(met) <= len(MLPERF)


def test_failures_fail_every_use_and_few_requests_leave_it_open(report):
    failing = report(n=800, ended=dict.fromkeys(range(100, 800, 10), "server_error"), error={"status": 500})
    few = report(n=120)

    assert {o["p99"] for o in failing["presets"]["segments"][0]["outcomes"].values()} == {"fail"}
    outcomes = few["presets"]["segments"][0]["outcomes"]
    assert {outcomes[use]["p99"] for use, *_ in USES} == {"inconclusive"}
    assert few["presets"]["sentence"].startswith("p95 of everything offered: ")


def test_alerts_fire_on_the_whole_interval_alone(report):
    ended = dict.fromkeys(range(60, 800, 20), "stream_error") | dict.fromkeys(range(61, 800, 5), "cancelled")
    data = report(n=800, ttft_ms=2500, gap_ms=60, chunks=10, ended=ended, error={"status": 200})

    states = {one["name"]: one["state"] for one in data["alerts"]}
    assert states.pop("ttft_p95") in {"firing", "inconclusive"}  # some of the slowest 5% never came
    assert states == {
        "ttft_p50": "firing", "rate_p50": "firing", "queue_p95": "unknown", "stream_errors": "firing", "cancels": "firing",
        "cache_hits": "unknown",
    }  # fmt: skip
    assert alert(data, "rate_p50")["value"] == pytest.approx(1000 / 60)
    assert alert(data, "queue_p95")["why"] == "no queue times in a server log"
    assert alert(data, "cache_hits")["value"] is None


def test_a_healthy_run_fires_no_alert_and_an_empty_one_knows_nothing(report):
    healthy = report(n=1500)
    empty = report(n=0)

    known = [one for one in healthy["alerts"] if one["name"] not in {"queue_p95", "cache_hits"}]
    assert {one["state"] for one in known} == {"not firing"}
    assert all(one["low"] <= one["value"] <= one["high"] for one in known)
    assert {one["state"] for one in empty["alerts"]} == {"unknown"}
    assert empty["presets"] is None
    assert empty["diagnosis"]["kind"] == "unknown"


def test_cached_tokens_and_the_engine_s_queue_are_known_to_the_alerts(tmp_path):
    from tailgauge_analysis.report.report import make

    pairs = [("target.url", "simulated"), ("simulated.profile", "haiku"), ("stages.duration_s", 40.0)]
    made = make([dry_run_of("cached", pairs, tmp_path)], tmp_path)
    hits, queue = alert(made.published, "cache_hits"), alert(made.published, "queue_p95")
    [cache] = made.published["cache"]["traffic"].values()

    assert hits["state"] == "not firing"
    assert hits["value"] == pytest.approx(cache["token_hit"]["value"])
    assert queue["state"] == "not firing"
    assert queue["n"] > 100
    page = made.html.read_text()
    for title in (
        "Fit by use case",
        "Percentiles by use case",
        "MLPerf Inference v6",
        "Alerts",
    ):
        assert title in page
