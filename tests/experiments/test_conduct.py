"""An experiment with two rates by dry runs: order of steps, results, bounds, files."""

import dataclasses
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from tailgauge.errors import Exit, UsageError
from tailgauge.experiments.answer import (
    Answer,
    AnswerFile,
    RunRow,
    caveat,
    exit_code,
    measured,
    report,
)
from tailgauge.experiments.conduct import conduct
from tailgauge.experiments.course import Base, Planner, SpentError, Step
from tailgauge.experiments.runners import DryRunner
from tailgauge.experiments.table import planner_of
from tailgauge.scenario import model as scenarios
from tailgauge.scenario.experiment import EXPERIMENTS
from tailgauge_analysis.report.report import write_report
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.text.picture import Mark, Panel, Picture, PlotCurve
from tailgauge_analysis.text.section import (
    FAIL,
    INCONCLUSIVE,
    ObjectiveLine,
    Result,
    Section,
    Table,
)
from tailgauge_analysis.verdict.checks import COMPARABLE

TEXT = """
description = "two rates"
[experiment]
kind = "headroom"
minutes = 1
[arrival]
rate_per_s = 5
[traffic.chat]
prompt_tokens = 10
output_tokens = 2
[traffic.chat.hedge]
[simulated]
profile = "tiny"
[simulated.limits]
rpm = 600
"""


@dataclass
class Doubling:
    """Doubles the rate while nothing is refused."""

    checks = COMPARABLE
    rates: tuple[float, ...] = (5.0, 20.0)

    def course(self):
        results = []
        try:
            for number, rate in enumerate(self.rates):
                step = Step(
                    f"{rate:g} requests/s",
                    (("arrival.rate_per_s", rate), ("traffic.chat.hedge", None)),
                    20.0,
                    number + 7,
                )
                results += yield [step]
        except SpentError as spent:
            return answer(results, str(spent))
        return answer(results, "")

    def measure(self, step, reading):  # noqa: ARG002 - as the protocol has it
        return {
            "calls": reading.calls,
            "refused": int((reading.steady.attempts["ended"] == "rate_limited").sum()),
        }


FIGURE = Picture(
    name="a",
    title="A",
    caption="b",
    panels=(Panel("y", (PlotCurve((1.0, 2.0), (3.0, 4.0), "l"),)),),
    x="x",
    marks=(Mark(1.0, 2.0, "m"),),
)


def answer(results, remark):
    rows = tuple(
        (one.step.name, str(one.measured["calls"]), str(one.measured["refused"])) for one in results
    )
    line = ObjectiveLine("20 requests/s", FAIL, "5 requests/s", ">= 20 requests/s")
    details = (remark,) if remark else ()
    return Answer(
        kind="headroom",
        result=Result(FAIL, "5 requests/s are sustained, 20 are not", (line,), details),
        finding={"levels": len(results)},
        sections=(
            Section(
                "rates",
                "Rates",
                tables=(Table("One row per rate", ("rate", "calls", "429"), rows),),
                figures=(FIGURE,),
            ),
        ),
        smallest="a third",
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    path = folder / "levels.toml"
    path.write_text(TEXT, encoding="utf-8")
    return Base(path, scenarios.load(str(path)), (), folder)


@pytest.fixture(scope="module")
def done(base, tmp_path_factory):
    return conduct(
        Doubling(), base, DryRunner(base.out), tmp_path_factory.mktemp("steps"), lambda _: None
    )


@pytest.mark.slow
def test_the_course_gets_the_results_of_its_steps_in_order(done):
    first, second = done.steps

    assert [one.step.name for one in done.steps] == ["5 requests/s", "20 requests/s"]
    assert first.verdict == "VALID"
    assert first.measured["refused"] == 0 < second.measured["refused"]  # 10 a second, 60 at once
    assert done.ledger.runs == 2
    assert done.ledger.calls == first.measured["calls"] + second.measured["calls"]


def test_a_step_is_a_whole_scenario_with_its_own_seed_and_without_the_experiment(base, tmp_path):
    step = Step("one", (("arrival.rate_per_s", 3.5), ("traffic.chat.hedge", None)), 12.0, 99)
    made = base.prepare(step, 4, tmp_path, sends=False)
    tree = tomllib.loads(made.file.read_text())

    assert (tree["seed"], tree["arrival"], tree["stages"]) == (
        99,
        {"rate_per_s": 3.5},
        {"duration_s": 12.0},
    )
    assert "experiment" not in tree
    assert "hedge" not in tree["traffic"]["chat"]
    assert made.settings.scenario.name == "levels-004"


def test_a_step_that_cannot_be_is_refused_with_its_name(base, tmp_path):
    step = Step("too far", (("arrival.rate_per_s", -1.0),), 12.0, 99)

    with pytest.raises(UsageError, match=r"step 1 \(too far\)"):
        base.prepare(step, 1, tmp_path, sends=False)


class Counting(DryRunner):
    """Dry runs in the place of real runs, which are bounded."""

    sends = True


def test_where_the_guard_ends_the_course_answers_with_what_it_has(base, tmp_path):
    path = tmp_path / "guarded.toml"
    path.write_text(TEXT + "[guard]\nmax_requests = 60\n", encoding="utf-8")
    guarded = Base(path, scenarios.load(str(path)), (), tmp_path)
    doubling = Doubling((5.0, 5.0, 5.0))
    found = conduct(doubling, guarded, Counting(tmp_path), tmp_path, lambda _: None)

    assert len(found.steps) < 3
    assert "guard.max_requests: used up" in found.answer.result.details[0]


class Interrupted(Counting):
    """Ctrl-C in the second run."""

    def run(self, steps):
        for number, path in enumerate(super().run(steps)):
            if number == 1:
                raise KeyboardInterrupt
            yield path


def test_a_course_without_time_for_a_run_answers_too(base, tmp_path):
    out = conduct(Doubling(rates=()), base, DryRunner(tmp_path), tmp_path, print)

    assert (out.steps, out.ledger.runs) == ((), 0)
    assert out.answer.facts == {"levels": 0}


def test_after_ctrl_c_it_answers_with_the_runs_that_had_ended(base, tmp_path):
    doubling = Doubling((5.0, 5.0))
    doubling.course = lambda: together(doubling)
    found = conduct(doubling, base, Interrupted(tmp_path), tmp_path, lambda _: None)

    assert found.interrupted
    assert [one.step.name for one in found.steps] == ["5 requests/s"]
    assert found.answer.facts == {"levels": 1}


def test_ctrl_c_before_the_first_run_has_ended_leaves_nothing_to_answer_with(base, tmp_path):
    class AtOnce(Counting):
        def run(self, steps):
            raise KeyboardInterrupt
            yield steps

    with pytest.raises(KeyboardInterrupt):
        conduct(Doubling(), base, AtOnce(tmp_path), tmp_path, lambda _: None)


def together(doubling):
    results = yield [
        Step(f"{rate:g} requests/s", (), 20.0, n) for n, rate in enumerate(doubling.rates)
    ]
    try:
        yield [Step("never run", (), 20.0, 9)]
    except SpentError as spent:
        return answer(results, str(spent))


def report_of(found, runs=()):
    measurement = measured(runs)
    return report(AnswerFile(
        kind=found.kind, result=found.result, measurement=measurement, facts=found.facts, sections=found.sections,
        smallest=found.smallest, exit_code=exit_code(found.result, measurement, interrupted=False),
        run_id="20260101T000000Z-levels-0000", runs=tuple(runs), dry_run=True, expected="", planned=("plan: a minute",),
        took="2 runs.", scenario="levels", description="", target="simulated", started_at="2026-01-01T00:00:00Z",
        command="tailgauge run levels",
    ))  # fmt: skip


def test_the_answer_is_the_same_in_every_file(done, tmp_path, checkout):
    runs = [RunRow(one.step.name, one.run_id, one.verdict, one.reason) for one in done.steps]
    made = write_report(
        report_of(done.answer, runs),
        tmp_path,
        80,
        colours=False,
    )

    values = json.loads(made.json.read_text())
    schema = checkout / "docs" / "reference" / "answer.schema.json"
    jsonschema.validate(values, json.loads(schema.read_text("utf-8")))
    assert set(values) == {field.name for field in dataclasses.fields(AnswerFile)}
    assert (values["result"]["outcome"], values["exit_code"]) == ("FAIL", Exit.FAILED)
    for text in (made.summary, made.markdown.read_text(), made.html.read_text()):
        assert "5 requests/s are sustained, 20 are not" in text
        assert done.steps[1].step.name in text
    assert 'failures="1"' in made.junit.read_text()


def test_in_the_terminal_columns_that_do_not_fit_are_left_to_the_report():
    rows = (("short", "1", "x" * 60), ("second", "20", "few"))
    table = Table("c", ("check", "a number", "evidence"), rows, prose=(2,))
    made = dataclasses.replace(answer([], ""), sections=(Section("s", "S", tables=(table,)),))
    wide, narrow = (terminal(report_of(made), Path("p"), width).splitlines() for width in (80, 60))

    assert narrow[6:10] == ["check        a", "        number", "short        1", "second      20"]
    assert wide[7].split() == ["short", "1", "x" * 60]


def run_row(name, verdict):
    return RunRow(name, name, verdict, "" if verdict == "VALID" else "rows are lost")


def test_invalid_runs_are_not_used_and_nothing_else_is_an_invalid_answer():
    some = measured([run_row("a", "VALID"), run_row("b", "INVALID")])
    none = measured([run_row("a", "INVALID"), run_row("b", "INVALID")])
    result = Result(INCONCLUSIVE, "no answer")

    assert (some.verdict, some.sentence) == ("DEGRADED", "1 of 2 runs INVALID and not used")
    assert some.reasons == (("b: rows are lost", ""),)
    assert none.verdict == "INVALID"
    assert exit_code(result, some, interrupted=False) == Exit.INCONCLUSIVE
    assert exit_code(result, none, interrupted=False) == Exit.INVALID
    assert exit_code(result, none, interrupted=True) == Exit.INTERRUPTED


@pytest.mark.parametrize(
    ("verdicts", "text"),
    [
        (["VALID", "VALID"], ""),
        (["VALID", "DEGRADED", "VALID"], ""),
        (["DEGRADED"], "the only run is DEGRADED"),
        (["DEGRADED", "DEGRADED", "DEGRADED"], "all 3 runs DEGRADED"),
        (["VALID", "INVALID", "DEGRADED"], "1 of 3 runs INVALID and not used"),
        (
            ["INVALID", "DEGRADED", "INVALID"],
            "2 of 3 runs INVALID and not used, the others DEGRADED",
        ),
        (["INVALID", "INVALID"], ""),  # the report begins with INVALID
    ],
)
def test_the_first_line_says_where_runs_are_not_valid(verdicts, text):
    runs = [run_row(str(number), verdict) for number, verdict in enumerate(verdicts)]

    assert caveat(runs, measured(runs)) == text
    if "INVALID" not in verdicts and "DEGRADED" in verdicts:
        assert measured(runs).sentence.startswith(
            f"{verdicts.count('DEGRADED')} of {len(verdicts)} run"
        )


def test_runs_whose_outcome_rests_on_no_moved_figure_are_not_in_the_first_line():
    """Chunk gaps that cannot be used say nothing of a TTFT; one run of which that is not known is named as before."""
    moved = [
        RunRow(name, name, "DEGRADED", "reads late", spoils)
        for name, spoils in (("a", ("chunk gap",)), ("b", ("TPOT", "chunk gap")))
    ]
    measurement = measured(moved)

    assert caveat(moved, measurement) == ""
    assert (
        measurement.sentence
        == "2 of 2 runs: the client moved only chunk gap and TPOT, no figure of an objective"
    )
    assert caveat([*moved, run_row("c", "DEGRADED")], measurement) == "all 3 runs DEGRADED"
    lines = terminal(
        dataclasses.replace(report_of(answer([], "")), measurement=measurement), None, 100
    )

    assert "a: reads late\n" in lines
    assert lines.index("a: reads late") < lines.index("and 1 more reason")


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_every_row_leads_to_a_planner(kind):
    assert issubclass(planner_of(kind), Planner)


def test_options_of_another_kind_are_refused(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(TEXT + "[experiment.hedging]\npairs = 7\n", encoding="utf-8")

    with pytest.raises(
        UsageError, match=r"experiment.hedging: does not apply with kind = 'headroom'"
    ):
        scenarios.load(str(path))
