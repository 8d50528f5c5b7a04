"""The 429 report: what was planted is found, and what the endpoint knows is recovered from what its client saw."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from run_folders.planted_frames import calls, frames_of, run_of

from tailgauge_analysis.report.report import make
from tailgauge_analysis.sections.rate_limits.refusals import bins, kinds, shares
from tailgauge_analysis.sections.rate_limits.section import compute, section
from tailgauge_analysis.stats.binomial import clopper_pearson
from tailgauge_analysis.text.quantile import plain_values


def finite(found):
    """As report.json has it; fails on NaN and infinity, as every program that reads it would."""
    return json.loads(json.dumps(plain_values(found), allow_nan=False))


def test_the_share_of_429s_is_of_the_attempts_of_the_steady_stage():
    run = calls(100, refused=range(0, 40, 2), stage=["warmup"] * 20 + ["steady"] * 80)
    found = shares(frames_of(run).requests, run, kinds(run))

    of = found.refused
    assert (of.n, of.k, found.requests, found.requests_refused) == (80, 10, 80, 10)
    assert of.value == pytest.approx(10 / 80)
    assert of.n_eff <= 80
    assert of.low <= clopper_pearson(10, 80)[0] < of.value < clopper_pearson(10, 80)[1] <= of.high


@pytest.mark.parametrize("warmup", [0, 5, 20])
def test_a_limit_has_one_first_429_whatever_the_length_of_the_warm_up(warmup):
    stages = ["warmup"] * warmup + ["steady"] * (40 - warmup)
    run = calls(
        40, refused=range(4, 40, 2), stage=stages, message="rate limit of 300 requests per minute"
    )
    found = compute(run_of(frames_of(run)))

    first_s = run.loc[4, "sent_at_ns"] / 1e9
    (limit,) = found.shares.by_kind
    assert found.first_at_s == limit.first_at_s == pytest.approx(first_s)
    shown = section(found)
    # 39 requests in 3.9 s beyond 300 a minute: a burst of 3 lasts 3 / (10.26 - 5) s.
    when = f"at {first_s:,.3g} s of the run (with these arrivals; a full burst of 3 lasts 0.57 s on average)"
    assert dict(shown.facts)["First 429"] == when
    assert f"first 429 {when}" in shown.card.lines
    assert "binding limit: 300 requests per minute (5/s), burst 3" in shown.card.lines
    assert shown.tables[0].header[:4] == (
        "limit",
        "429s, steady stage",
        "share of its attempts",
        "first, s of the whole run",
    )


def test_a_429_behind_content_is_one_and_was_admitted_by_its_bucket():
    left = np.full(40, 299.0)
    columns = {"header_requests_limit": np.full(40, 300.0), "header_requests_remaining": left}
    run = calls(40, every_s=1.0, refused=[3], limit_kind="requests", **columns)
    run.loc[3, ["ended", "error_class"]] = ["stream_error", "rate_limited"]
    found = compute(run_of(frames_of(run)))
    (bucket,) = found.buckets

    assert (found.shares.refused.k, bucket.refused) == (1, 1)
    assert bucket.burst.why == "no 429 by this limit: its bucket was never seen empty"


def test_a_limit_per_day_stands_beside_that_per_minute():
    day = np.linspace(120, 81, 40)
    columns = {
        "header_requests_limit": np.full(40, 300.0), "header_requests_remaining": np.full(40, 290.0),
        "header_requests_limit_86400_s": np.full(40, 1000.0), "header_requests_remaining_86400_s": day,
    }  # fmt: skip
    found = compute(run_of(frames_of(calls(40, every_s=1.0, **columns))))
    shown = section(found)
    (table,) = [one for one in shown.tables if one.title == "Buckets"]

    assert [row[0] for row in table.rows] == ["requests", "requests per day"]
    assert [row[2] for row in table.rows] == ["290 of 300", "81 of 1,000"]
    assert ("Nearest to empty", "requests per day: 81 of 1,000 were left") in shown.facts
    (window,) = finite(found)["further_windows"]
    assert (window["kind"], window["remaining"]["window_s"]) == ("requests", 86_400)


def test_of_one_window_nothing_further_is_shown():
    columns = {
        "header_requests_limit": np.full(40, 300.0),
        "header_requests_remaining": np.full(40, 290.0),
    }
    shown = section(compute(run_of(frames_of(calls(40, every_s=1.0, **columns)))))

    assert "Nearest to empty" not in dict(shown.facts)


def test_the_529s_are_counted_separately():
    run = calls(40, refused=[3])
    run.loc[10:19, "ended"] = "overloaded"
    found = shares(frames_of(run).requests, run, kinds(run))

    assert (found.refused.k, found.overloaded.k, found.overloaded.n) == (1, 10, 40)
    assert found.overloaded.low < 0.25 < found.overloaded.high
    assert found.overloaded.n_eff < 40  # they came together


def test_each_bin_has_its_calls_and_its_kinds():
    run = calls(
        30, every_s=0.1, refused=range(10, 15), message="rate limit of 300 requests per minute"
    )
    found = bins(run, kinds(run))

    assert found.width_s == 1
    assert found.attempts.tolist() == [10, 10, 10]
    assert found.refused.tolist() == [0, 5, 0]
    assert {kind: counts.tolist() for kind, counts in found.by_kind.items()} == {
        "requests": [0, 5, 0]
    }


def test_a_bin_without_calls_has_no_share():
    found = bins(run := calls(4, at_s=[0.1, 0.2, 3.1, 3.2], refused=[3]), kinds(run))

    assert found.attempts.tolist() == [2, 0, 0, 2]
    assert np.isnan(found.share).tolist() == [False, True, True, False]


@pytest.mark.parametrize(
    ("body", "recorded", "kind", "how"),
    [
        ('{"error":{"error_code":"ramp_limit_exceeded"}}', "unknown", "ramp", "error code"),
        ('{"error":{"error_code":"enforced_spend_limit_reached"}}', "requests", "spend", "error code"),
        ('{"error":{"code":"insufficient_quota"}}', "unknown", "spend", "error code"),
        ("", "output_tokens", "output_tokens", "empty in the headers"),
        ("would exceed the rate limit of 50,000 input tokens per minute", "unknown", "input_tokens", "message"),
        ("exceed your organization's rate limit of 8,000 output tokens per minute", "unknown", "output_tokens", "message"),
        ("Rate limit reached for gpt on requests per min (RPM): Limit 3", "unknown", "requests", "message"),
        ("Rate limit reached for gpt on tokens per min (TPM): Limit 9", "unknown", "tokens", "message"),
        ("slow down", "unknown", "unknown", ""),
        (None, None, "unknown", ""),
    ],
)  # fmt: skip
def test_the_kind_of_a_429_is_the_first_that_applies(body, recorded, kind, how):
    run = calls(3, refused=[1], message=body, limit_kind=recorded)

    assert kinds(run).to_numpy().tolist() == [[kind, how]]


def test_what_is_left_in_the_buckets_names_no_limit():
    headers = {
        "header_requests_limit": [60.0] * 4, "header_requests_remaining": [59.0, 58.0, 50.0, 55.0],
        "header_input_tokens_limit": [1000.0] * 4, "header_input_tokens_remaining": [900.0, 500.0, 400.0, 450.0],
    }  # fmt: skip
    run = calls(4, refused=[2], input_tokens=100, **headers)

    assert kinds(run).to_numpy().tolist() == [["unknown", ""]]


def test_a_run_without_limits_or_retries_has_no_section():
    assert compute(run_of(frames_of(calls(20)))) is None
    assert section(None) is None


def test_what_is_unknown_is_null_with_a_reason():
    values = finite(compute(run_of(frames_of(calls(40, refused=[3, 4], message="slow down")))))

    assert values["binding"] == {
        "kind": None, "how": None, "why": "nothing identifies the limit behind the 429s",
    }  # fmt: skip
    assert values["buckets"] == []
    assert values["growth"]["value"] is None
    assert values["growth"]["why"]


def test_headers_alone_bound_the_burst():
    left = 300.0 - np.arange(40) % 4 - 1
    run = calls(
        40, every_s=1.0, header_requests_limit=np.full(40, 300.0), header_requests_remaining=left
    )
    found = compute(run_of(frames_of(run)))
    values = finite(found)
    bucket = values["buckets"][0]

    assert values["shares"]["refused"]["k"] == 0
    assert bucket["rate"]["value"] == 5.0
    assert bucket["remaining"] == {
        "limit": 300.0,
        "window_s": 60.0,
        "least": 296.0,
        "low": 296.0,
        "high": 296.0,
    }
    assert bucket["burst"]["value"] is None
    assert bucket["burst"]["high"] == 300.0
    assert "never seen empty" in bucket["burst"]["why"]
    assert "No 429 in 40 attempts" in section(found).answer


def test_one_call_and_nothing_but_429s_make_a_section():
    for run in (
        calls(1, refused=[0]),
        calls(30, refused=range(30)),
        calls(30, at_s=[5.0] * 30, refused=[3]),
    ):
        found = compute(run_of(frames_of(run)))
        assert finite(found)["shares"]["refused"]["k"] in {1, 30}
        assert section(found).facts


def limited_run(mixed):
    """Every third call is refused, with headers, and retried a second later."""
    run = mixed(duration_s=12)
    for i in range(60):
        left = {
            "anthropic-ratelimit-requests-limit": "300",
            "anthropic-ratelimit-requests-remaining": str(299 - i % 3),
        }
        headers = {"rate_limit_headers": json.dumps(left)}
        body = {
            "error_body": "<b>limit</b> of 300 requests per minute",
            "limit_kind": "unknown",
            "retry_after_s": 1.0,
        }
        first = {"sent": 0.05, "ended": "rate_limited", "end": 5, "status": 429, **headers, **body}
        again = {"attempt": 1, "cause": "retry", "sent": 900, "first": 1000, **headers}
        run.request(
            i * 200,
            [first, again] if i % 3 == 2 else [{"first": 100, **headers}],
            winner=int(i % 3 == 2),
        )
    return run


@pytest.mark.slow
def test_the_report_has_the_section_its_figure_and_its_numbers(mixed, tmp_path):
    report = make([limited_run(mixed).write(tmp_path / "run")], tmp_path)
    page, text = (path.read_text(encoding="utf-8") for path in (report.html, report.markdown))
    values = json.loads(report.json.read_text(encoding="utf-8"))["rate_limits"]

    assert (values["shares"]["refused"]["n"], values["shares"]["refused"]["k"]) == (80, 20)
    assert (values["retry_after"]["violations"]["k"], values["retry_after"]["violations"]["n"]) == (
        20,
        20,
    )
    assert '<h2 id="rate-limits">Rate limits</h2>' in page
    assert 'id="title-refusals"' in page
    assert "of 80 attempts got a 429" in page
    assert "## Rate limits" in text
    assert "nan" not in text.lower().split("## rate limits")[1].split("\n## ")[0]


@pytest.mark.slow
def test_columns_with_holes_never_make_nan(full_size):
    """Whatever is missing from the rows: plain values, or null."""
    for seed in range(300 if full_size else 25):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 60))
        columns = {}
        for kind in ("requests", "input_tokens", "tokens"):
            if rng.random() < 0.5:
                columns[f"header_{kind}_limit"] = holes(rng, rng.choice([0.0, 1.0, 300.0], n))
                columns[f"header_{kind}_remaining"] = holes(
                    rng, rng.integers(0, 400, n).astype(float)
                )
        run = calls(
            n, at_s=np.sort(rng.random(n) * rng.choice([0.001, 1, 100])), refused=np.flatnonzero(rng.random(n) < 0.4),
            message=str(rng.choice(["x", "requests per min", "input tokens per min", "ramp_limit_exceeded"])),
            input_tokens=float(rng.choice([np.nan, 0, 100])), retry_after_s=float(rng.choice([np.nan, -5, 1e9])), **columns,
        )  # fmt: skip
        run["sent_at_ns"] = holes(rng, run["sent_at_ns"])
        run["cause"] = rng.choice(["primary", "retry", "hedge"], n)
        run["stage"] = rng.choice(["preflight", "warmup", "steady"], n)
        found = compute(run_of(frames_of(run)))
        finite(found)
        shown = section(found)
        if shown is not None:
            assert not re.search(r"\b(nan|inf)\b", repr(replace(shown, figures=())))


def holes(rng, values):
    """Some of the values missing."""
    return np.where(rng.random(len(values)) < 0.3, np.nan, values)
