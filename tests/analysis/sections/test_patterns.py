"""The sentence of each pattern, against the endpoint's own log and the closed forms of its latency model."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from math import exp
from statistics import NormalDist

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_folder, dry_run_report, exact
from run_folders.loaded import LoadedRun

from tailgauge.rows.schema import TURNS
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections.hedging.waste import Waste
from tailgauge_analysis.sections.patterns import _input_tokens, compute

NORMAL = NormalDist()
TTFT, SIGMA, GAP = 300.0, 0.6, 8.0
CHAT = {"prompt_tokens": 100, "output_tokens": 20}
LEAVES = {"share": 0.5, "after_chunks": 5}
TRAFFIC = {
    "falls": {**CHAT, "fallback": {"after_s": 0.5}},
    "again": {**CHAT, "cancel": {"share": 0.4, "after_s": 0.2, "resubmit": True}},
    "leaves": {**CHAT, "cancel": LEAVES},
    "early": {**CHAT, "pattern": "progressive", "progressive": {"fast_tokens": 6}},
    "fields": {
        **CHAT,
        "pattern": "structured",
        "structured": {"mode": "two_calls", "field_tokens": 12},
    },
    "whole": CHAT,
}


def scenario(names, seconds, rate=30.0, seed=20261123, **simulated):
    tables = {name: TRAFFIC[name] for name in names}
    return {
        "seed": seed, "arrival": {"rate_per_s": rate * len(tables)}, "stages": {"duration_s": seconds, "warmup_s": 0.0},
        "traffic": tables,
        "simulated": {"ttft_ms": TTFT, "ttft_sigma": SIGMA, "chunk_gap_ms": GAP, **simulated},
    }  # fmt: skip


def texts(report):
    return {(one["traffic"], one["pattern"]): one["text"] for one in report["patterns"]}


def value(text, before, unit=" ms"):
    """The number behind some words, with its interval."""
    number, low, high = re.search(rf"{re.escape(before)} ([\d.,]+){unit} \((?:median, )?95% CI ([\d.,]+|\?)%? – ([\d.,]+|\?)", text).groups()  # fmt: skip
    low, high = (np.nan if end == "?" else float(end.replace(",", "")) for end in (low, high))
    return float(number.replace(",", "")), low, high


def shown(number):
    """As precise as the report writes it."""
    return pytest.approx(number, rel=0.006, abs=0.06)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, full_size):
    return dry_run_report(
        scenario(TRAFFIC, 200.0 if full_size else 14.0), tmp_path_factory.mktemp("patterns")
    )


def calls(ran, traffic):
    """The rows of the log of each request, by attempt and leg."""
    rows = ran.steady(traffic)
    return {key: part.set_index("request_id") for key, part in rows.groupby(["leg", "attempt"])}


def waited(rows, column="first_ns"):
    return rows[column] - rows["scheduled_at_ns"]


@pytest.mark.slow
@pytest.mark.parametrize(("traffic", "pattern"), [("falls", "fallback"), ("again", "resubmit")])
def test_the_second_calls_are_those_of_the_log(ran, traffic, pattern):
    first, second = calls(ran, traffic)[0, 0], calls(ran, traffic)[0, 1]
    text = texts(ran.report)[traffic, pattern]

    assert re.match(rf"([\d.]+)% of {len(first):,} requests", text)
    assert float(text.split("%")[0]) == shown(100 * len(second) / len(first))
    assert f"The {len(second):,} wasted first calls took " in text
    assert "; 100.0% (" in text or "; 100% (" in text


@pytest.mark.slow
def test_what_duplicates_take_is_what_the_log_has_of_the_calls_left_behind(ran):
    first, second = calls(ran, "again")[0, 0], calls(ran, "again")[0, 1]
    text, lost = texts(ran.report)["again", "resubmit"], first.loc[second.index]
    made = int((lost["output_tokens"] + lost["tokens_after_cancel"].fillna(0)).sum())

    assert (
        f"The {len(second):,} wasted first calls took {lost['input_tokens'].sum():,} input tokens"
        in text
    )
    assert f" and {made:,} output tokens (endpoint's log)" in text
    cost = lost["input_tokens"].sum() + 5 * lost["billed_output_tokens"].sum()
    low, high = (
        float(end.replace(",", ""))
        for end in re.search(
            r"The cost is ([\d,]+) to ([\d,]+) input-token equivalents", text
        ).groups()
    )
    assert low <= cost <= high


@pytest.mark.slow
def test_a_progressive_answer_gains_what_the_large_model_alone_would_have_taken_longer(ran):
    legs, text = calls(ran, "early"), texts(ran.report)["early", "progressive"]
    large, fast = waited(legs[0, 0]), waited(legs[1, 0])
    first = np.fmin(large, fast.reindex(large.index))

    assert value(text, "the first content took")[0] == shown(exact(first, 0.5))
    assert value(text, "with the large model alone")[0] == shown(exact(large, 0.5))
    assert value(text, "the whole answer took")[0] == shown(
        exact(waited(legs[0, 0], "last_ns"), 0.5)
    )
    assert value(text, "came first in", "%")[0] == pytest.approx(
        100 * (first < large).mean(), abs=0.1
    )
    assert exact(first, 0.5) == pytest.approx(
        TTFT * exp(SIGMA * NORMAL.inv_cdf(1 - 0.5**0.5)), rel=0.1
    )


@pytest.mark.slow
def test_a_progressive_answer_has_its_first_text_from_either_model(ran):
    rows = {row["metric"]: row for row in ran.report["latency"] if row["group"] == "early" and row["since"] == "scheduled"
            and row["population"] == "completed"}  # fmt: skip

    assert rows["ttft_text"]["percentiles"] == rows["ttft"]["percentiles"]


def test_the_second_call_of_a_structured_answer_adds_its_whole_time_and_its_tokens(ran):
    legs, text = calls(ran, "fields"), texts(ran.report)["fields", "two calls"]
    prose, fields = legs[0, 0], legs[1, 0]
    added = fields["last_ns"] - prose["last_ns"]
    tokens = [(rows["input_tokens"] + rows["output_tokens"]).mean() for rows in (prose, fields)]

    assert value(text, "adds p50")[0] == shown(exact(added, 0.5))
    assert value(text, "to p50")[0] == shown(exact(waited(prose, "last_ns"), 0.5))
    assert f"{tokens[1]:,.0f} tokens per request to {tokens[0]:,.0f}" in text


@pytest.mark.slow
def test_the_card_has_short_lines_with_numbers_of_the_sentence(tmp_path):
    folder = dry_run_folder(scenario(TRAFFIC, 6.0), tmp_path)
    for one in compute(Run([folder])):
        numbers = set(re.findall(r"[\d.,]*\d", one.text))

        card = one.card
        assert 1 <= len(card.lines) <= 2
        assert card.value.interval
        for line in (f"{card.value.text} {card.detail}", *card.lines):
            assert len(line) <= 72, line
            assert "CI" not in line
            assert set(re.findall(r"[\d.,]*\d", line)) <= numbers, (line, one.text)


def test_a_call_that_is_read_to_its_end_has_no_sentence(ran):
    assert {traffic for traffic, _ in texts(ran.report)} == set(TRAFFIC) - {"whole"}


@pytest.mark.slow("next_step", "never")
@pytest.mark.parametrize("mode", ["immediate", "next_step", "never"])
def test_what_is_made_after_a_user_left_is_what_the_engine_made(tmp_path, full_size, mode):
    if not full_size and mode == "immediate":
        pytest.skip("make verify: it stops at once")
    tree = scenario(["leaves"], 6.0, profile="llama3-8b-h100", engine={"cancel_mode": mode})
    ran = dry_run_report(tree, tmp_path)
    text, rows = texts(ran.report)["leaves", "cancel"], ran.steady("leaves")
    left = rows[rows["cancelled_at_ns"].notna()]
    after = int(left["tokens_after_cancel"].sum())
    stopped = 0.0
    if after:
        stopped = value(text, "the server generated for another")[0]
    pace = ran.latency("all", "tpot", None)["percentiles"]["p50"]["value"]

    assert len(left) > 30
    assert value(text, "Users left", r"% of [\d,]+ requests")[0] == shown(
        100 * len(left) / len(rows)
    )
    made = f"it made {after:,} more tokens in all"
    assert ("the server stopped generating at once" if after == 0 else made) in text.lower()
    assert stopped == pytest.approx(pace * left["tokens_after_cancel"].median(), rel=0.02, abs=0.01)
    assert (after == 0) == (mode == "immediate")
    if mode == "never":  # 15 of 20 were left of each
        assert after == (20 * len(left) - left["output_tokens"].sum())


def test_second_calls_after_a_failure_are_counted(tmp_path):
    faults = {"down": {"kind": "status", "share": 0.1, "status": 500}}
    ran = dry_run_report(scenario(["falls"], 20.0, ttft_sigma=0.1, faults=faults), tmp_path)
    text = texts(ran.report)["falls", "fallback"]
    first, second = calls(ran, "falls")[0, 0], calls(ran, "falls")[0, 1]
    failed = (first["status"] == 500).sum()
    of_both = second["status"].eq(500).sum()  # such an answer reports no input tokens
    sources = f"(those of the second call for {failed - of_both}, unknown for {of_both})"

    assert f"{failed} of them after a failure" in text
    assert f"{100 * (failed - of_both):,} input tokens {sources}" in text


@pytest.mark.parametrize(
    ("reported", "unknown", "sources"),
    [
        (9, 0, "40 input tokens (reported by the target)"),
        (0, 0, "40 input tokens (those of the second call for 9)"),
        (0, 2, "40 input tokens (those of the second call for 7, unknown for 2)"),
        (5, 1, "40 input tokens (reported by the target for 5 of them, those of the second call for 3, unknown for 1)"),
        (0, 9, "an unknown number of input tokens"),
    ],
)  # fmt: skip
def test_input_tokens_have_their_source(reported, unknown, sources):
    losses = Waste(
        losers=9,
        closed=9,
        output_low=0,
        output_high=0,
        by_max_tokens=0,
        input_tokens=40,
        input_reported=reported,
        input_unknown=unknown,
        server_log=None,
    )

    assert _input_tokens(losses) == sources


@pytest.mark.slow
def test_without_the_endpoint_s_log_nobody_knows_what_was_made_for_users_who_left(tmp_path):
    folder = dry_run_folder(scenario(["falls", "leaves"], 12.0, seed=7), tmp_path)
    shutil.rmtree(folder / "target")
    report = make([folder], tmp_path).report
    cancel = texts(report.data)["leaves", "cancel"]

    assert "It is not known what the target generates after a user left" in cancel
    low, high = (int(end.replace(",", "")) for end in re.search(r"and ([\d,]+) to ([\d,]+) output tokens", cancel).groups())  # fmt: skip
    assert (low, high) == (high / 4, high)  # 5 of 20
    (card,) = report.cards
    assert {card.label, card.lines[-1].rpartition("(")[2].rstrip(")")} == {"fallback", "cancel"}


@pytest.mark.slow
def test_a_small_sample_is_called_small(tmp_path):
    ran = dry_run_report(scenario(["early"], 1.0, seed=3), tmp_path)
    text = texts(ran.report)["early", "progressive"]

    assert re.search(r"Small sample: \d\d requests\.$", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost", ["the first calls", "what they repeat", "the answers", "the log's ids"]
)
def test_rows_that_are_missing_leave_a_sentence_of_the_others(tmp_path, lost):
    frames = load([dry_run_folder(scenario(list(TRAFFIC), 3.0, seed=11), tmp_path)])
    rows, log = frames.attempts, frames.server_log
    half = rows["request_id"] % (2 * TURNS) == 0
    if lost == "the first calls":
        rows = rows[~(half & (rows["attempt"] == 0) & (rows["leg"] == 0))]
    elif lost == "the answers":
        rows = rows[~(half & (rows["ended"] == "ok"))]
    elif lost == "what they repeat":
        rows = rows.assign(of_attempt=rows["of_attempt"].where(~half))
    else:
        log = log.assign(request_id=np.nan)
    frames = replace(frames, attempts=rows, server_log=log)

    found = {one.traffic: one.text for one in compute(LoadedRun(frames))}

    assert set(found) == set(TRAFFIC) - {"whole"}
    assert not any(word in " ".join(found.values()) for word in ("nan", "NaN", "inf"))


REFUSED = {"ended": "rate_limited", "status": 429}


def retried(mixed, tmp_path, saved, tries=2, plain=20, **failure):
    """40 requests that are retried, of which so many complete by their last try, among others that need no retry."""
    run = mixed()
    for i in range(40):
        attempts = [
            {**REFUSED, **failure, "attempt": n, "cause": "retry" if n else "primary", "of_attempt": n - 1 if n else None,
             "sent": 0.1 + 500 * n, "end": 20 + 500 * n}
            for n in range(tries + 1)
        ]  # fmt: skip
        if i < saved:
            last = attempts[-1]
            attempts[-1] = {
                key: last[key] for key in ("attempt", "cause", "of_attempt", "sent")
            } | {"first": 500 * tries + 100}
        run.request(i * 200, attempts, ended="ok" if i < saved else "rate_limited", winner=tries)
    for i in range(plain):
        run.request(i * 200 + 100, [{"first": 100}])
    return compute(Run([run.write(tmp_path / "run")]))


@pytest.mark.parametrize(
    ("saved", "tries", "begin", "share"),
    [(0, 2, "Retrying gained nothing: 66.7% of 60 requests", "80 retries, 57.1% of all attempts"),
     (1, 3, "Retrying gained hardly anything: 66.7% of 60 requests", "120 retries, 66.7% of all attempts"),
     (34, 1, "66.7% of 60 requests", "40 retries, 40.0% of all attempts"),
     (38, 1, "66.7% of 60 requests", "40 retries, 40.0% of all attempts")],
)  # fmt: skip
def test_what_retries_took_and_gained_is_in_a_sentence(mixed, tmp_path, saved, tries, begin, share):
    (found,) = retried(mixed, tmp_path, saved, tries)

    assert found.pattern == "retry"
    assert found.text.startswith(begin)
    assert share in found.text
    assert (f"did not complete ended {500 * tries:,} ms (median" in found.text) == (
        saved < 38
    )  # of two no median is known
    assert "too few" not in found.text
    assert found.card.lines == (f"{saved} of the 40 retried requests completed", share)
    assert found.card.tone == ("warn" if saved < 4 else "")


def test_tokens_of_failed_retries_are_counted_and_a_run_without_retries_has_no_sentence(
    mixed, tmp_path
):
    usage = {"input_tokens": 10, "output_tokens": 5}
    (found,) = retried(mixed, tmp_path, 0, 1, **usage)

    assert "40 retries, 40.0% of all attempts, 600 tokens of retries that failed" in found.text

    run = mixed()
    for i in range(30):
        run.request(i * 200, [{"first": 100}])
    assert compute(Run([run.write(tmp_path / "without")])) == []
