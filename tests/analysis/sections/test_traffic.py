"""What was sent: each traffic table has its counts and details, and a row in the report."""

import re

import pytest

from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import latency
from tailgauge_analysis.sections.traffic import compute, section

HEDGE = {"attempt": 1, "cause": "hedge", "of_attempt": 0}
USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


def fan_outs(run, n):
    """The run with so many fan-outs of three legs."""
    legs = [{"leg": k, "first": 100} for k in range(3)]
    for i in range(n):
        run.request(i * 100 + 50, legs, "fan", "fan_out", joined_ms=121)
    return run


@pytest.fixture
def everything(mixed):
    """Every kind of traffic, ten requests each."""
    run = mixed()
    thinks = {"first": 100, "kinds": "ttxx", "phases": '{"retrieval": 20000000}'}
    closed = {"ended": "cancelled", "end": 110}
    copy_wins = [{"first": 90, **closed}, {**HEDGE, "sent": 50, "first": 100}]
    copy_loses = [{"first": 80}, {**HEDGE, "sent": 50, "ended": "cancelled"}]
    retried = [{"ended": "overloaded"}, {"attempt": 1, "cause": "retry", "first": 100}]
    legs = [{"leg": k, "first": 100} for k in range(5)]
    for i in range(10):
        at = i * 900
        tags = f'{{"tenant": "{"ab"[i % 2]}", "tier": "free"}}'
        run.request(at, [thinks], tags=tags, name="greeting")
        if i < 3:
            run.request(at, copy_wins, "hedged", "hedged", winner=1)
        elif i == 3:
            run.request(at, copy_loses, "hedged", "hedged")
        else:
            held = "budget" if i < 6 else None
            run.request(at, [{"first": 100}], "hedged", "hedged", hedge_held=held)
        column = "cache_read_input_tokens" if i else "cache_creation_input_tokens"
        cached = {"first": 100, **USAGE, column: 90, "prefix": i % 2}
        cached["cache_expected"] = "warm" if i else "cold"
        run.request(at, [cached], "cached", "cached", tags=tags)
        run.request(at, legs, "fan", "fan_out", joined_ms=121)
        run.request(at, retried, "retried", winner=1)
        run.request(at, [{"first": 500, "reader_paused_ns": 400_000_000}], "slow")
    return run


HALF = "the requests asked for 128 output tokens and got 128 in 50.0% of 2 answers. The work was not fixed."


@pytest.mark.parametrize(
    ("asked", "got", "sentence"),
    [
        (
            (128, 128),
            (128, 128),
            "the requests asked for 128 output tokens and got 128 in 100% of 2 answers.",
        ),
        ((128, 128), (128, 127), HALF),
        (
            (128, 64),
            (128, 64),
            "the requests asked for 64 to 128 output tokens and got as many in 100% of 2 answers.",
        ),
        ((128, 128), (128, None), HALF),
        (
            (128, 128),
            (None, None),
            "the target reports no output tokens, so that nothing proves them.",
        ),
    ],
)
def test_exact_lengths_are_proved_or_not(mixed, tmp_path, asked, got, sentence):
    run = mixed(run={"scenario": {"traffic": {"chat": {"output": "exact"}}}})
    for i, (wanted, tokens) in enumerate(zip(asked, got, strict=True)):
        run.request(i * 900, [{"first": 100, "output_tokens": tokens}], asked_output_tokens=wanted)
    run.request(2000, [{"ended": "overloaded"}], asked_output_tokens=128)
    run.request(
        2500,
        [{"leg": k, "first": 100, "output_tokens": 5} for k in range(2)],
        asked_output_tokens=9,
    )
    made = section(compute(Run([run.write(tmp_path / "run")])))

    assert made is not None
    assert made.notes[0].endswith(sentence)


def test_each_traffic_table_has_its_details(everything, tmp_path):
    found = compute(Run([everything.write(tmp_path / "run")])).traffic
    chat, hedged, fan = (found[name] for name in ("chat", "hedged", "fan"))

    assert (chat.requests, chat.attempts, chat.ended) == (10, 10, {"ok": 10})
    assert hedged.causes["hedge"] == 4
    assert (fan.legs_max, fan.legs_per_request, fan.attempts) == (5, 5.0, 50)
    assert found["retried"].causes["retry"] == 10
    assert found["slow"].slow_readers == 10


@pytest.mark.slow
def test_each_kind_of_traffic_prompt_and_tag_has_its_latency(everything, tmp_path):
    found = latency.compute(Run([everything.write(tmp_path / "run")]))
    by = {(group.by, group.name): group for group in found.groups}

    assert found.smaller_groups == 0
    assert sorted(name for kind, name in by if kind == "traffic") == [
        "cached",
        "chat",
        "fan",
        "hedged",
        "retried",
    ]
    assert by["tag", "tenant = a"].requests == 10
    assert by["tag", "tier = free"].requests == 20
    assert by["name", "greeting"].requests == 10
    assert [row.metric for row in by["traffic", "fan"].latency] == ["join"]
    assert by["slow reader", "slow"].latency[0].percentiles["p50"].value == 500


def test_users_who_left_and_what_was_open_at_the_end_are_offered_requests_of_their_group(
    mixed, tmp_path
):
    run = mixed()
    for i in range(6):
        run.request(i * 100, [{"first": 100}])
    for ended in ("cancelled", "cancelled", "censored", "server_error"):
        run.request(1000, [{"ended": ended}], ended=ended, winner=None)
    (chat,) = latency.compute(Run([run.write(tmp_path / "run")])).groups

    assert (chat.requests, chat.cancelled) == (10, 2)
    assert (chat.ok.k, chat.ok.n) == (6, 10)


def test_many_groups_are_cut_and_counted(mixed, tmp_path):
    run = mixed()
    for i in range(50):
        run.request(i * 100, [{"first": 100}], name=f"prompt {i}")
    found = latency.compute(Run([run.write(tmp_path / "run")]))

    assert (len(found.groups), found.smaller_groups) == (21, 30)


@pytest.mark.slow
def test_a_report_of_everything_says_so(everything, tmp_path):
    answered = {"ended": "ok", "status": 200}
    preflight = [answered, {"ended": "ok", "status": 204}, answered]
    trace = {"rows": 70, "dropped": {"no tokens": 3}}
    everything.run = {"arrival": "closed", "trace": trace, "preflight": preflight}
    report = make([everything.write(tmp_path / "run")], tmp_path)
    page, text = report.html.read_text().partition("<script>")[0], report.markdown.read_text()

    for shown in (page, text):
        assert "Closed loop: arrivals waited for answers" in shown
        assert "10 attempts read slowly on purpose" in shown
    assert "40.0% of 10 calls were hedged, 75.0% of the hedges won" in page
    assert "2 requests: budget 2" in page
    assert "attempts per call" in text
    assert "| fan | fan_out | 10 | 5 | 50 |" in text
    assert text.count("2 preflight requests, not in the statistics: ok (200)") == 1
    assert text.count("1 preflight request, not in the statistics: ok (204)") == 1
    paces = text.partition("### Pace by traffic\n")[2].partition("\n\nAmong successes.")[0]
    assert (
        "| chat, chunk gap | 10.0 (10.0 – 10.0), few independent values | too few | too few | 30 |"
        in paces
    )
    assert "| retried, TPOT |" in paces
    assert "| fan, " not in paces, "its legs are no answers"
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_a_dry_run_is_never_called_anything_else(mixed, tmp_path):
    run = mixed(run={"dry_run": True})
    for i in range(50):
        run.request(i * 100, [{"first": 100}])
    report = make([run.write(tmp_path / "run")], tmp_path)

    assert report.summary.startswith("DRY RUN  nothing was sent; ")
    assert report.data["findings"][0].startswith("nothing was sent; ")
    verdicts = {check["check"]: check["verdict"] for check in report.data["verdict"]["checks"]}
    assert verdicts["client_error"] == verdicts["clock_offset"] == "not applicable"
    assert verdicts["conservation"] == "passed"


def test_a_run_of_fan_outs_alone_leads_with_the_join(mixed, tmp_path):
    report = make([fan_outs(mixed(), 100).write(tmp_path / "run")], tmp_path)

    assert "latency   join p50 120 ms, p95 120 ms |\n" in report.summary
    assert " join: time until all awaited calls of a fan-out have answered\n" in report.summary


@pytest.mark.slow("80-1-note1", "0-60-note2")
@pytest.mark.parametrize(
    ("chats", "fans", "note"),
    [
        (80, 0, ""),
        (80, 1, "1 fan-out has a join time instead of TTFT, TPOT, chunk gap and end to end; the times of their legs are in the section Fan-out."),
        (0, 60, "60 fan-outs have a join time instead of TTFT, TPOT, chunk gap and end to end; the times of their legs are in the section Fan-out."),
    ],
)  # fmt: skip
def test_the_first_latency_table_names_the_requests_that_are_in_one_row_only(
    mixed, tmp_path, chats, fans, note
):
    run = mixed()
    for i in range(chats):
        run.request(i * 100, [{"first": 100}])
    found = Run([fan_outs(run, fans).write(tmp_path / "run")])
    first, *others = latency.section(found.result(latency.compute)).tables

    assert first.note.startswith(note)
    assert ("a join time instead" in first.note) == bool(note)
    assert not any("a join time instead" in table.note for table in others)


def test_tags_and_phases_that_are_no_json_are_no_traceback(mixed, tmp_path):
    run = mixed()
    for i in range(5):
        run.request(
            i * 100,
            [{"first": 100, "phases": "[1"}],
            tags="not json",
            name="<script>alert(1)</script>",
        )
        run.request(i * 100, [{"first": 100, "phases": '{"a": "b"}'}], tags="[1]")
    report = make([run.write(tmp_path / "run")], tmp_path)

    assert "<script>alert" not in report.html.read_text()
    assert report.data["phases"] is None
