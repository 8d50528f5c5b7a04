"""The result of a run: what a manager reads first, and what a pipeline gets."""

import re
import tomllib
from xml.etree.ElementTree import fromstring

import numpy as np
import pandas as pd
import pytest
from run_folders.dry_runs import dry_run_folder, dry_run_of
from run_folders.run_data import edited_run

from tailgauge.errors import Exit
from tailgauge_analysis.report.report import make
from tailgauge_analysis.sections.result import populations, values_text
from tailgauge_analysis.stats.quantiles import FEW_EPISODES, HIDDEN_TOKENS, UNRELIABLE, Quantile
from tailgauge_analysis.text.section import (
    COMPLETED,
    FAIL,
    INCONCLUSIVE,
    INTERRUPTED,
    NO_ANSWER,
    PASS,
)

OVERLOAD = {
    "arrival.rate_per_s": 2.0, "stages.duration_s": 15.0, "limits.drain_s": 5.0, "traffic.assistant.output_tokens": 160,
    "simulated.profile": "llama3-8b-h100", "simulated.engine.slots": 1,
}  # fmt: skip


def cases(report):
    """Test cases of its junit.xml."""
    tree = fromstring(report.junit.read_text(encoding="utf-8"))  # noqa: S314 - our own file
    return list(tree.iter("testcase"))


def failures(report):
    failed = [case for case in cases(report) if len(case) and case[0].tag == "failure"]
    return {case.get("name"): case[0].get("message") for case in failed}


def first_line(report):
    return report.summary.splitlines()[0]


def simulated_answer(report):
    """The line below that it is a dry run."""
    return report.summary.splitlines()[1]


def fails_on_page(report):
    """Whether the page of a dry run says that the simulated endpoint failed."""
    page = report.html.read_text(encoding="utf-8")
    return "<title>DRY RUN · " in page and "The simulated endpoint: <b>FAIL</b>" in page


@pytest.mark.slow
def test_an_engine_far_above_its_capacity_fails(tmp_path):
    """2 requests/s for 15 s at an engine with one slot, which needs some 2.5 s for each."""
    report = make([dry_run_of("cached", list(OVERLOAD.items()), tmp_path)], tmp_path)
    complete = report.data["health"]["complete"]

    assert 0 < complete["k"] < 0.5 * complete["n"]
    assert (report.verdict, report.exit_code, fails_on_page(report)) == ("VALID", Exit.FAILED, True)
    share = f"{100 * complete['value']:.1f}%"
    assert (
        simulated_answer(report)
        == f"simulated FAIL  only {share} of {complete['n']} requests completed"
    )
    assert report.summary.splitlines()[2].startswith("  (objective 99%, 95% CI ")
    assert f"not completed: {complete['n'] - complete['k']} still open at the end" in report.summary
    assert "next      requests queue up at the target" in report.summary
    assert "--set experiment.kind=curve" in report.summary
    assert "only" in failures(report)["complete"]


@pytest.mark.slow
def test_a_copy_of_retries_without_its_objective_fails_by_the_default_one(tmp_path, checkout):
    tree = tomllib.loads((checkout / "scenarios" / "retries.toml").read_text(encoding="utf-8"))
    del tree["slo"]
    report = make([dry_run_folder(tree, tmp_path)], tmp_path)

    assert (report.exit_code, fails_on_page(report)) == (Exit.FAILED, True)
    assert simulated_answer(report) == "simulated FAIL  only 69.7% of 383 requests completed"
    assert "not completed: 116 rejected (429)" in report.junit.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_failed_objective_leads_with_value_bound_and_interval(tmp_path):
    pairs = [("slo.ttft_p95.max_ms", 150.0)]
    report = make([dry_run_of("quickstart", pairs, tmp_path)], tmp_path)
    found = report.data["slo"][0]
    value, low, high = (f"{found[key]:.0f}" for key in ("value", "low", "high"))

    assert (report.exit_code, fails_on_page(report)) == (Exit.FAILED, True)
    assert (
        simulated_answer(report)
        == f"simulated FAIL  ttft p95 {value} ms > 150 ms (95% CI {low}-{high})"
    )
    assert f"{value} ms > 150 ms (95% CI {low}-{high})" in failures(report)["ttft p95"]


@pytest.mark.slow
def test_a_run_that_passes_lists_its_objectives(made):
    slo = {"first": "ttft_sched p90 < 300ms"}
    report = made(n=1000, slo=slo)

    assert first_line(report) == "PASS  ttft_sched p90 200 ms < 300 ms (95% CI 200-200)"
    assert [one.outcome for one in report.report.result.objectives] == [PASS]
    both = made(n=1000, slo=slo | {"errors": "error_rate < 0.1"}, run_id="both")
    assert first_line(both) == "PASS  2 of 2 objectives met"
    alone = made(n=1000, run_id="alone").summary.splitlines()
    assert alone[0] == "PASS  950 of 950 requests completed, 0 failed, no objective on latency"
    assert alone[1].startswith("  (50 of the warm-up not counted; 95% CI: up to 0.")
    assert failures(report) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "silent", "to_the_end"),
    [
        (400, range(240, 400), True),
        (1000, range(930, 1000), True),
        (1000, range(400, 470), False),  # it came back
        (1000, range(997, 1000), False),  # too few to say
    ],
)
@pytest.mark.parametrize("ended", ["censored", "connect_error"])
def test_a_target_that_is_silent_to_the_end_fails_whatever_the_objective(
    made, n, silent, to_the_end, ended
):
    slo = {"first": "ttft_sched p20 < 300ms"}
    report = made(n=n, warmup_s=0, chunks=5, slo=slo, ended=dict.fromkeys(silent, ended))

    names = [one.name for one in report.report.result.objectives if one.outcome == FAIL]
    assert ("silent" in names) == to_the_end
    if to_the_end:
        since_s = float(re.search(r"silent\s+since ([\d.]+) s", report.summary)[1])
        assert since_s == pytest.approx(silent[0] / 50 + 0.2, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "failed", "counts", "excluded"),
    [
        (6, [], "6 of 6 requests completed, 0 failed", "45.9%"),
        (200, [], "200 of 200 requests completed, 0 failed", "1.8%"),
        (367, [], "367 of 367 requests completed, 0 failed", "1.0%"),
        (200, [70], "199 of 200 requests completed, 1 failed", "4.6%"),
    ],
)
def test_too_few_requests_without_an_objective_have_completed(made, n, failed, counts, excluded):
    """Exit code 0, and a skipped case for a build server."""
    ended = dict.fromkeys(failed, "server_error")
    report = made(n=n, warmup_s=0, rate_per_s=min(50.0, n / 4), ended=ended)
    case = cases(report)[-1]

    assert (report.report.result.outcome, report.exit_code) == (COMPLETED, Exit.OK)
    limit = f"95% CI: up to {excluded} of requests fail"
    first_lines = " ".join(report.summary.split("\n")[:2])
    assert first_lines.startswith("COMPLETED  ")
    assert counts in first_lines
    assert first_lines.endswith(f"({limit})")
    assert "99%" not in report.summary
    assert "detects" not in report.summary
    assert (case.get("name"), case[0].tag) == ("complete", "skipped")
    assert limit in case[0].get("message")
    assert f"{counts} ({limit})" in report.markdown.read_text(encoding="utf-8")


@pytest.mark.slow
def test_requests_of_the_warm_up_are_named_beside_a_number_without_them(made):
    """290 were sent, and fewer completed: the lines say which are left out."""
    short = made(n=200, warmup_s=1.0, run_id="short")
    judged = made(
        n=1000,
        warmup_s=2.0,
        slo={"first": "ttft_sched p50 < 300ms"},
    )

    assert "(50 of the warm-up not counted; 95% CI: up to 2.4% of requests fail" in short.summary
    assert (
        "100 of the warm-up not counted), 50 requests/s offered"
        in dict(judged.report.summary)["rates"]
    )
    assert "not counted" not in made(n=200, warmup_s=0, run_id="whole").summary


@pytest.mark.slow
def test_the_measured_line_names_the_figure_of_its_error(made):
    late = np.where(np.arange(1000) % 50 == 0, 15.0, 0.1)
    moved = made(n=1000, delay_ms=late, ttft_ms=1000.0 + late, run_id="moved")

    assert moved.report.measurement.sentence == (
        "measurement error of TTFT since scheduled p99 at most 15.0 ms, of chunk gap p50 0 ms"
    )
    assert made(n=1000).report.measurement.sentence == "measurement error < 0.1 ms"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "seconds", "ttft_ms"), [(28, 4.0, 9_000.0), (60, 1.0, 900.0), (150, 6.0, 4_000.0)]
)
@pytest.mark.parametrize("slo", [{}, {"first": "ttft_sched p50 < 60000ms"}])
def test_answers_after_the_load_pass_nothing(made, n, seconds, ttft_ms, slo):
    report = made(n=n, warmup_s=0, rate_per_s=n / seconds, ttft_ms=ttft_ms, gap_ms=0.1, slo=slo)

    assert (report.report.result.outcome, report.exit_code) == (INCONCLUSIVE, Exit.INCONCLUSIVE)
    later = sum(i * seconds / n + ttft_ms / 1e3 > (n - 1) * seconds / n for i in range(n))
    stated = int(first_line(report).split()[1])
    assert later <= stated <= later + 3  # an answer ends some ms after its first content
    assert first_line(report) == f"INCONCLUSIVE  {stated} of {n} answers came after the load ended"


@pytest.mark.slow
def test_an_objective_without_enough_requests_is_inconclusive(made):
    report = made(n=200, slo={"first": {"metric": "ttft_sched", "max_ms": 300.0}})

    assert (report.report.result.outcome, report.exit_code) == (INCONCLUSIVE, Exit.INCONCLUSIVE)
    assert (
        first_line(report)
        == "INCONCLUSIVE  ttft_sched p99: not enough requests: 150 of the 2,000 needed"
    )
    assert (
        "next      run longer:\n          tailgauge run synthetic.toml --workers 2 --duration 60s\n"
        in report.summary
    )  # 4 s were planned, 1 s of them warm-up


@pytest.mark.slow("1-INVALID")
@pytest.mark.parametrize(("lost", "verdict"), [(0, "VALID"), (1, "INVALID")])
def test_a_target_that_answers_nothing_is_no_answer_whatever_the_measurement(made, lost, verdict):
    error = {"status": 404, "error_type": "not_found_error"}
    report = made(n=200, ended=dict.fromkeys(range(200), "client_error"), error=error, lost=lost)
    advice = "the target has no such path (404): check target.url and target.protocol"

    assert (report.verdict, report.exit_code) == (verdict, Exit.TARGET)
    assert first_line(report).startswith("NO ANSWER  none of 15")
    assert "most frequent error: HTTP 404 not_found_error" in report.summary
    assert advice in " ".join(report.summary.split())
    assert failures(report)["result"].startswith("none of 15")


def test_users_who_leave_a_stream_that_had_begun_got_an_answer(mixed, tmp_path):
    run = mixed()
    for i in range(50):
        run.request(
            i * 100,
            [{"first": 100, "ended": "cancelled", "end": 150}],
            ended="cancelled",
            winner=None,
        )
    report = make([run.write(tmp_path / "run")], tmp_path)

    assert (report.report.result.outcome, report.exit_code) == (FAIL, Exit.FAILED)
    assert "not completed: 50 abandoned by their users" in report.summary


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "code", "outcome"),
    [
        ("complete", Exit.OK, PASS),
        ("guarded", Exit.OK, PASS),
        ("stopped", Exit.FAILED, FAIL),
        ("cut_short", Exit.OK, PASS),
        ("interrupted", Exit.INTERRUPTED, INTERRUPTED),
        ("unusable", Exit.TARGET, NO_ANSWER),
        ("error", Exit.INTERNAL, PASS),
        ("failed", Exit.INVALID, PASS),
    ],
)
def test_the_report_of_a_folder_ends_with_the_code_of_its_run(made, state, code, outcome):
    report = made(n=500, state=state)

    assert (report.exit_code, report.report.result.outcome) == (code, outcome)


@pytest.mark.slow("400")
@pytest.mark.parametrize(
    ("n", "warmup_s", "when", "objectives"),
    [
        (40, 5.0, r"after [\d.]+ s, before the steady stage", set()),
        (400, 1.0, r"after [\d.]+ of 60 s", {"ttft_sched p50"}),
        (3100, 1.0, "after the load of 60 s, before all requests had ended", {"ttft_sched p50"}),
    ],
)
def test_an_interrupted_run_says_when_and_how_much_it_has(made, n, warmup_s, when, objectives):
    slo = {
        "fast": "ttft_sched p50 < 300ms",
        "never": "turnaround p90 < 10ms",
    }
    scenario = {"stages": {"duration_s": 60.0}}
    report = made(n=n, warmup_s=warmup_s, slo=slo, state="interrupted", scenario=scenario)
    result = report.report.result
    case = next(case for case in cases(report) if case.get("name") == "result")
    recorded = f"{n:,} requests recorded in runs/{report.report.run_id}"

    assert (report.exit_code, result.outcome) == (Exit.INTERRUPTED, INTERRUPTED)
    assert re.fullmatch(f"{when}; {recorded}", result.sentence)
    assert {line.name for line in result.objectives} == objectives
    assert report.summary.startswith("INTERRUPTED  after ")
    # Nothing was measured before the steady stage.
    assert ("\nmeasured  " in report.summary) == ("steady" not in when)
    assert "next  " not in report.summary
    assert "run longer" not in report.summary
    assert "INTERRUPTED</span> after" in report.html.read_text(encoding="utf-8")
    assert report.markdown.read_text(encoding="utf-8").count("**INTERRUPTED**") == 1
    assert (case[0].tag, case[0].get("type")) == ("error", "INTERRUPTED")


def test_an_invalid_run_keeps_its_result_in_brackets(made):
    slow = {"first": "ttft_sched p50 < 100ms"}
    report = made(n=400, slo=slow, ended=dict.fromkeys(range(100, 200), "client_drop"))

    assert (report.report.state, report.exit_code) == ("INVALID", Exit.INVALID)
    assert first_line(report) == "INVALID  do not use these numbers"
    assert "result    (FAIL)  ttft_sched p50 200 ms > 100 ms" in report.summary


JOIN = "join: time until all awaited calls of a fan-out have answered"
TURNAROUND = "turnaround: time from the scheduled submission of a job until its result is fetched"
NAME_ERROR = "NameError: name 'x' is not defined (chat.py:12)"


@pytest.mark.slow("errors1")
@pytest.mark.parametrize(
    ("errors", "sentence"),
    [
        ([{NAME_ERROR: 300}, {NAME_ERROR: 12}], f"312 task errors: {NAME_ERROR}"),
        (
            [{NAME_ERROR: 5}, {"KeyError: 'a' (chat.py:20)": 2}],
            f"7 task errors, 5 of them {NAME_ERROR}",
        ),
    ],
)
def test_exceptions_of_tasks_fail_a_run_and_are_named(write, tmp_path, errors, sentence):
    folder = write(n=100, offsets_ns=(0, 0))
    with edited_run(folder) as run:
        for worker, found in zip(run["workers"], errors, strict=True):
            worker["task_errors"] = found

    report = make([folder], tmp_path)

    assert report.exit_code == Exit.FAILED
    assert " ".join(report.summary.split()).startswith(f"FAIL {sentence}")
    assert "fix the tasks" in report.summary


@pytest.mark.slow("changes1", "changes2")
@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"n": 1000}, "| chunk gap p50 10.0 ms, p99 10.0 ms |"),
        ({"n": 1000, "gap_ms": 25.0, "chunks": 8}, "| chunk gap p50 25.0 ms, p99 25.0 ms |"),
        ({"n": 1000, "chunks": 1}, ""),
    ],
)
def test_the_latency_line_has_the_gap_between_chunks(made, changes, line):
    report = made(**changes)
    latency = dict(report.report.summary)["latency"]

    assert latency.startswith("ttft p50 200 ms, p95 200 ms")
    assert line in latency
    assert ("chunk gap" in latency) == bool(line)
    assert "itl" not in latency
    assert re.search(r"e2e p50 [\d.]+ ms, p95 [\d.]+ ms$", latency)
    assert line.strip(" |") in report.summary  # in one line of the terminal


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrival", "overrides", "load", "described"),
    [
        ({"process": "poisson"}, [], "19 s measured, 50 requests/s offered", True),
        ({"process": "poisson"}, ["arrival.rate_per_s=50"], "19 s measured, 50 requests/s offered", False),
        ({"process": "closed", "closed": {"users": 8}}, ['arrival={process = "closed"}'], "19 s measured, closed loop of 8 users, 50 requests/s offered", False),
        ({"process": "closed", "closed": {"users": 1}}, ["seed=3"], "19 s measured, closed loop of 1 user, 50 requests/s offered", True),
    ],
)  # fmt: skip
def test_the_header_names_the_loop_that_was_run(
    write, tmp_path, arrival, overrides, load, described
):
    folder = write(n=1000)
    with edited_run(folder) as record:
        record["scenario"] |= {"arrival": arrival, "description": "Poisson arrivals"}
        record["overrides"] = overrides
    about = make([folder], tmp_path).report.about

    assert load in about
    assert ("Poisson arrivals" in about) == described


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ([(0.5, ""), (0.95, "")], "p50 302 ms, p95 608 ms"),
        ([(0.5, ""), (0.95, UNRELIABLE)], "p50 302 ms, p95 608 ms (CI 535-715, few independent values)"),
        ([(0.5, FEW_EPISODES), (0.99, "")], "p50 302 ms (CI 280-320, values above the percentile came in only 2 periods of the run), p99 608 ms"),
        ([(0.5, UNRELIABLE), (0.95, UNRELIABLE)], "p50 302 ms (CI 280-320), p95 608 ms (CI 535-715); each: few independent values"),
        ([(0.5, HIDDEN_TOKENS)], "p50 302 ms (CI 280-320, hidden tokens possible)"),
        ([(0.9, ""), (0.95, FEW_EPISODES)], "p90 and p95 have no value: too many requests failed"),
    ],
)  # fmt: skip
def test_a_percentile_that_the_report_marks_is_marked_in_the_terminal(known, text):
    values = {0.5: (302.0, 280.0, 320.0)}
    if 0.9 in dict(known):
        values = dict.fromkeys((0.9, 0.95), (np.inf, 535.0, np.inf))
    quantiles = []
    for p, mark in known:
        value, low, high = values.get(p, (608.0, 535.0, 715.0))
        quantiles.append(
            Quantile(p=p, n=238, n_eff=40, value=value, low=low, high=high, mark=mark, episodes=2)
        )

    assert values_text(quantiles) == text


@pytest.mark.parametrize(
    ("traffic", "text"),
    [
        (
            {"chat": "single", "research": "join"},
            [f"{JOIN} (traffic research); the other latencies: traffic chat"],
        ),
        ({"research": "join"}, [JOIN]),
        ({"chat": "single", "agent": "single"}, []),
        (
            {"a": "single", "b": "single", "night": "turnaround", "x": "join"},
            [
                f"{JOIN} (traffic x); {TURNAROUND} (traffic night); the other latencies: traffic a and b"
            ],
        ),
    ],
)
def test_the_latency_line_names_the_traffic_of_each_figure(traffic, text):
    requests = pd.DataFrame({"traffic": [*traffic] * 3, "answer": [*traffic.values()] * 3})

    assert list(populations(requests)) == text
