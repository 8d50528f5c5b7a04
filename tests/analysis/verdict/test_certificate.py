"""What a report says of a certificate: cited, refused, exceeded."""

import json

import numpy as np
import pytest

from tailgauge_analysis.metrics.steady import steady
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.build import build
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.sections.findings import find
from tailgauge_analysis.verdict.certificate import busiest

CITED = {
    "id": "20261121T154000Z-3fa9", "why": None, "made_at": "2026-11-21T15:40:00Z", "host": "host-a", "transport": "plain",
    "holds_to_per_s": 4000.0, "failed_at_per_s": 8000.0, "ttft_bias_ms": 0.004, "ttft_spread_ms": 0.011, "gap_bias_ms": 0.0,
    "gap_spread_ms": 0.067, "cpu_us_per_chunk": 81.7,
}  # fmt: skip


def found(folder, cited):
    """The findings of a run that cites this; its workers ran on host-a."""
    path = folder / "run.json"
    run = json.loads(path.read_text())
    for worker in run["workers"]:
        worker["host"] = "host-a"
    path.write_text(json.dumps({**run, "certificate": cited}))
    return find(load([folder]))


def cited_text(folder, cited):
    findings = found(folder, cited)
    return findings, build(findings).data["certificate"]["text"]


def test_the_busiest_worker_is_known_from_its_answers(write):
    frames = load(
        [write(n=2000, rate_per_s=100, chunks=20)]
    )  # two workers, 50 answers of 20 chunks a second each

    worker, rate = busiest(frames, steady(frames))

    assert worker in {0, 1}
    assert rate == pytest.approx(1000, rel=0.02)


def test_an_answer_of_one_chunk_counts(write):
    frames = load([write(n=2000, rate_per_s=100, chunks=1)])

    assert busiest(frames, steady(frames))[1] == pytest.approx(50, rel=0.03)


def test_a_run_within_the_certified_rate_says_its_error_and_is_valid(write):
    findings, text = cited_text(write(n=1000), CITED)

    assert findings.verdict == "VALID"
    assert findings.explanations == []
    assert text.startswith(
        "Certificate 20261121T154000Z-3fa9 of 2026-11-21: this machine's error is at most 0.011 ms (TTFT since sent) and "
        "0.067 ms (chunk gaps) at p99, up to 4,000 chunks/s per worker. The busiest worker received "
    )
    assert text in markdown(build(findings)).replace("\\", "")


def test_beyond_what_is_certified_is_explained_and_changes_no_verdict(write):
    findings, text = cited_text(write(n=1000), {**CITED, "holds_to_per_s": 200.0, "failed_at_per_s": None})

    assert findings.verdict == "VALID"
    assert len(findings.explanations) == 1
    assert "more than the certified 200: use more workers" in findings.explanations[0]
    assert text.endswith(", which is more.")


def test_where_the_client_was_seen_to_fail_the_run_is_degraded(write):
    findings, _ = cited_text(write(n=1000), {**CITED, "holds_to_per_s": 200.0, "failed_at_per_s": 400.0})

    assert [(reason.check, reason.verdict) for reason in findings.reasons] == [("certificate", "DEGRADED")]
    assert "times were right up to 200 and wrong at 400 chunks/s" in findings.reasons[0].text
    assert findings.reasons[0].advice.startswith("Use 3 times as many workers")
    assert findings.explanations == []


def test_just_below_where_it_failed_is_not_degraded(write):
    folder = write(n=1000)
    rate = busiest(load([folder]), steady(load([folder])))[1]

    below = found(folder, {**CITED, "holds_to_per_s": 200.0, "failed_at_per_s": rate * 1.01})
    above = found(folder, {**CITED, "holds_to_per_s": 200.0, "failed_at_per_s": rate * 0.99})

    assert (below.verdict, above.verdict) == ("VALID", "DEGRADED")


@pytest.mark.parametrize(
    ("cited", "sentence"),
    [
        (None, "run.json names none"),
        ({}, "run.json names none"),
        (
            {"id": None, "why": "expired: made on 2026-01-01, more than 30 days ago"},
            "expired: made on 2026-01-01",
        ),
        ({**CITED, "host": "host-b"}, "worker 0, 1 ran on another machine"),
        ({**CITED, "ttft_spread_ms": "small"}, "its entry in run.json is incomplete"),
        ({**CITED, "holds_to_per_s": True}, "its entry in run.json is incomplete"),
        ([1], "run.json names none"),
    ],
)
def test_a_run_without_one_says_why_and_what_to_do_and_is_judged_as_before(write, cited, sentence):
    findings, text = cited_text(write(n=1000), cited)

    assert findings.verdict == "VALID"
    assert text.startswith(f"Certificate: {sentence}")
    assert text.endswith("Run `tailgauge calibrate` to measure this machine's error.")


def test_nothing_foreign_is_judged_by_it(write):
    findings, _ = cited_text(
        write(n=1000), {**CITED, "host": "host-b", "holds_to_per_s": 1.0, "failed_at_per_s": 2.0}
    )

    assert (findings.verdict, findings.explanations) == ("VALID", [])


def test_a_run_of_failures_has_no_rate(write):
    frames = load([write(n=200, ended=dict.fromkeys(range(200), "server_error"))])

    assert busiest(frames, steady(frames)) == (None, 0.0)


def test_a_burst_counts_and_not_the_mean(write):
    """All answers of 20 s of arrivals come within the same second: an endpoint that let go."""
    waits = 21_000.0 - np.arange(1000) * 20.0
    frames = load([write(n=1000, rate_per_s=50, ttft_ms=waits, offsets_ns=(0,), chunks=20)])

    worker, rate = busiest(frames, steady(frames))

    assert (worker, rate > 2000) == (0, True)
