"""A report of Locust's users has their words: no schedule, no turns, and the command line of Locust."""

import re

import pytest
from run_folders.run_data import edited_run

from tailgauge.rows.schema import TURNS
from tailgauge.scenario.model import parse
from tailgauge.thresholds import ENDLESS_S
from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import load_steps
from tailgauge_analysis.sections.commands import again
from tailgauge_analysis.sections.environment import of_locustfile
from tailgauge_analysis.sections.result import result as answer
from tailgauge_analysis.text.json_values import key_lines

COMMAND = ["locust", "-f", "my chat.py", "--headless", "-u", "6", "-r", "2", "-t", "12s"]
LINE = "locust -f 'my chat.py' --headless -u 6 -r 2 -t 12s"
OK = {"first": 100, "stop_reason": "stop", "output_tokens": 20}
LIMIT = {"ended": "rate_limited", "status": 429, "error_type": "some_error"}
SLOW = {**OK, "first": 900}


@pytest.fixture
def folder(mixed, tmp_path):
    """Return the run folder of requests of six users in turn; each opened a connection for its first one."""

    def of(*attempts, process="tasks", is_ramp=False, **changes):
        run = mixed(duration_s=0.1 * len(attempts) + 1)
        for number, attempt in enumerate(attempts):
            share = number / len(attempts)
            at_ms = 100 * len(attempts) * (share**0.5 if is_ramp else share)
            shared = {"name": "greet", "tags": '{"task": "greet", "tenant": "a"}'}
            run.request(at_ms, [attempt], ended=attempt.get("ended", "ok"), **shared)
        for row in (*run.requests, *run.attempts, *run.chunks):
            number = row["request_id"] // TURNS
            row["request_id"] = number % 6 * TURNS + number // 6
        for row in run.attempts:
            row["connection_is_new"] = row["request_id"] % TURNS == 0
        path = run.write(tmp_path / "run")
        with edited_run(path) as record:
            record["scenario"]["arrival"] = {"process": process}
            record.update({"arrival": "closed", "command": COMMAND, **changes})
        return path

    return of


@pytest.fixture
def report(folder, tmp_path):
    """Return summary and report.md of such a run."""

    def of(**changes):
        made = make([folder(*[OK] * 60, **changes)], tmp_path)
        (text,) = tmp_path.glob("reports/*/report.md")
        return made.summary, text.read_text()

    return of


@pytest.mark.slow
def test_nothing_is_scheduled_where_tasks_make_the_requests(report):
    summary, text = report()

    latency = text[text.index("## Latency\n") : text.index("## Throughput")]
    assert latency.startswith("## Latency\n\nTTFT since sent: p50 100 ms")
    assert "| TTFT since requested |" in latency
    assert "“Since requested” starts when the task of a Locust user makes the call" in latency
    assert "\nTimes count since sent; failures count as slowest." in latency
    kinds = latency[latency.index("### By kind") :]
    assert re.findall(r"^\| (\w[^|(]*) \(", kinds, re.MULTILINE) == ["chat", "greet", "tenant = a"]
    assert "since scheduled" not in text.lower()
    assert "which their times since requested include" in text
    assert "so a slow target gets less" in summary
    # Posts of their own are no turns.
    assert not re.search(r"\bturns?\b", summary + text)


def test_errors_of_an_objective_on_some_requests_have_the_words_of_users(folder):
    path = folder(*[OK] * 60)
    with edited_run(path) as record:
        record["scenario"]["slo"] = {"first": "task=greet: ttft_sched p50 < 500ms"}
    titles = {error.title for error in Run([path]).evidence.errors}

    assert "TTFT since requested (task=greet)" in titles
    assert not [title for title in titles if "since scheduled" in title]


def test_a_closed_loop_of_conversations_has_its_turns(report):
    summary, text = report(process="closed")

    assert "\nturns " in summary
    assert "up to 10 turns per session or user" in text


@pytest.mark.parametrize(
    ("process", "why"),
    [
        (
            "tasks",
            "how much Locust's users send depends on their number, their tasks and the answers",
        ),
        ("trace", "the offered load follows a trace"),
        ("on_off", "the offered load or the traffic changes on purpose"),
    ],
)
def test_stability_is_not_judged_for_the_reason_that_holds(folder, process, why):
    run = Run([folder(*[OK] * 60, process=process)])

    assert run.evidence.stability.sentence.startswith(f"Stability is not judged: {why}.")


@pytest.mark.slow("trace-The offered load of the trace chan")
@pytest.mark.parametrize(
    ("process", "begin"),
    [
        ("tasks", "Locust's users did not send at one rate: "),
        ("trace", "The offered load of the trace changes: "),
    ],
)
def test_rates_that_differ_are_no_purpose(folder, process, begin):
    run = Run([folder(*[OK] * 300, process=process, is_ramp=True)])

    assert load_steps.remark(run).startswith(begin)


def test_the_command_of_locust_repeats_the_run(report):
    _, text = report()

    assert f"| Reproduce | `{LINE}` |" in text
    assert "Options that the locustfile adds" in text


def test_a_run_that_did_not_note_its_command_says_so(report):
    _, text = report(command=[])

    assert (
        "| Reproduce | Start the locustfile again: this run does not have Locust's command line. |"
        in text
    )


def test_what_a_report_proposes_is_a_command_of_locust(folder):
    stopped = "9 s into the run: 24 of the last 53 requests completed (stop.min_completed 50%)"
    found = answer(Run([folder(*[OK, LIMIT] * 30, state="stopped", stopped=stopped)]))

    first, alternative = found.advice.splitlines()
    assert first == "a rate limit of the target rejects calls: use fewer users"
    assert alternative.endswith(f": {LINE} --set stop.min_completed=0")


def test_a_run_that_was_too_short_is_to_be_run_longer_by_locust(folder):
    path = folder(*[OK, OK, OK, OK, SLOW] * 12)
    with edited_run(path) as record:
        record["scenario"]["slo"] = {"first": "ttft p75 < 500ms"}

    found = answer(Run([path]))

    assert found.outcome == "INCONCLUSIVE"
    assert re.search(r"locust -f 'my chat.py' --headless -u 6 -r 2 -t \d+s$", found.advice), (
        found.advice
    )


def test_a_length_replaces_that_of_the_command_or_is_added():
    record = {"scenario": {"arrival": {"process": "tasks"}}, "command": COMMAND}
    longer = again(record, ["a.b=1"], ["--duration", "60s"])

    assert longer == "locust -f 'my chat.py' --headless -u 6 -r 2 -t 60s --set a.b=1"
    assert again({**record, "command": [*COMMAND, "--set", "a=" + "b" * 3000]}) is None, (
        "cut, it would run something else"
    )
    endless = {**record, "command": COMMAND[:-2]}
    assert again(endless, options=["--duration", "60s"]).endswith("-r 2 -t 60s")


def test_the_scenario_lists_what_applies_to_tasks():
    scenario = parse(
        {
            "name": "chat",
            "arrival": {"process": "tasks"},
            "stages": {"duration_s": ENDLESS_S, "warmup_s": 2.0},
            "traffic": {
                "Chat": {"model": "m", "retry": {"policy": "polite"}},
                "Long": {"output_tokens": 70},
            },
        },
        "chat.py",
    ).model_dump()

    target, simulated = (
        "\n".join(key_lines(of_locustfile(scenario, is_simulated=value))) for value in (False, True)
    )
    assert 'traffic.Chat.retry: policy "polite"' in target
    assert "output_tokens 70" in target
    assert "stages: warmup_s 2.0" in target
    for key in (
        "duration_s",
        "prompt_tokens",
        "output_tokens 50",
        "hedge",
        "fan_out",
        "batch",
        "sse",
        "on_off",
    ):
        assert key not in target.replace("deadline_s", ""), key
    assert "traffic.Long.retry" not in target
    assert "\nsimulated" not in target
    assert "\nsimulated: " in simulated


@pytest.mark.slow("anthropic-False")
@pytest.mark.parametrize(("protocol", "is_named"), [("openai", True), ("anthropic", False)])
def test_the_usage_that_a_task_can_ask_for_is_named(folder, tmp_path, protocol, is_named):
    silent = {**OK, "output_tokens": None, "kinds": "xxxxx"}
    path = folder(*[silent] * 12, target={"url": "http://127.0.0.1:1", "protocol": protocol})
    make([path], tmp_path)
    (text,) = tmp_path.glob("reports/*/report.md")

    assert ("include_usage" in text.read_text()) == is_named
    assert "the target reports no output tokens" in text.read_text()
