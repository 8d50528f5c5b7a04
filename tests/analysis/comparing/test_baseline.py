"""`tailgauge baseline` and `tailgauge compare --baseline`: what is kept of a run, and how a run is judged by it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tailgauge.cli.main import cli
from tailgauge_analysis.comparing.baseline import load, save
from tailgauge_analysis.comparing.history import judge, refused
from tailgauge_analysis.comparing.run_summary import RunFigure, RunSummary, summarize
from tailgauge_analysis.report.junit import junit
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.text.section import Report

FACTS = {
    "clock": {"dry_run": "false"}, "schema": {"schema_version": "8"}, "seed": {"seed": "1"},
    "hosts": {"master.cpu_model": "Xeon", "master.cpu_count": "4", "workers": "1 on the master's (kernel stamps)"},
    "versions": {"tailgauge": "0.1.0", "anthropic": "0.40", "kernel": "6.1"},
    "target": {"target.url": "http://10.0.0.1", "target.model": "tiny", "answering model": "tiny"},
    "scenario": {"arrival.rate_per_s": "8", "traffic.chat.output_tokens": "100"},
}  # fmt: skip
WITHIN, SPREAD = 0.02, 0.08
OTHER_ROWS = (
    ("ttft_sched", 0.5, 200.0),
    ("ttft_sched", 0.99, 700.0),
    ("tpot", 0.95, 12.0),
    ("e2e_sched", 0.95, 900.0),
)


def run_of(
    number: int,
    ttft: float,
    *more: RunFigure,
    within: float = WITHIN,
    n: int = 1500,
    **changes: Any,
) -> RunSummary:
    """A run with this TTFT p95 in ms; `within`: standard error of its logarithm."""
    of_run = RunSummary(
        run_id=f"run-{number:04d}", started_at=f"2026-11-{1 + number % 28:02d}T00:00:{number // 28:02d}Z", dry_run=False, seed=1, seconds=60.0, offered=n,
        verdict="VALID", reason="", primary=("ttft_sched", 0.95), work={"output tokens": 100.0}, facts=FACTS,
        figures=(latency("ttft_sched", 0.95, ttft, within, n), *more, share(1.0)),
    )  # fmt: skip
    return replace(of_run, **changes)


def latency(metric: str, p: float, ms: float, within: float = WITHIN, n: int = 1500) -> RunFigure:
    ends = (ms * math.exp(side * 1.96 * within) for side in (-1, 1))
    low, high = (end if math.isfinite(end) else None for end in ends)
    return RunFigure(
        metric=metric, p=p, value=ms if math.isfinite(ms) else None, low=low, high=high, n=n
    )


def share(value: float, n: int = 1500) -> RunFigure:
    error = 1.96 * math.sqrt(max(value * (1 - value), 1 / n) / n)
    return RunFigure(
        metric="answered",
        p=None,
        value=value,
        low=max(0.0, value - error),
        high=min(1.0, value + error),
        n=n,
    )


def drawn(
    rng: np.random.Generator,
    number: int,
    factor: float = 1.0,
    *,
    rows: int = 0,
    others: float = 1.0,
) -> RunSummary:
    """A run whose figures vary by 8% between runs, within the runs included."""
    noise = np.exp(rng.normal(0, SPREAD, rows + 1))
    more = [
        latency(m, p, ms * others * by)
        for (m, p, ms), by in zip(OTHER_ROWS[:rows], noise[1:], strict=True)
    ]
    return run_of(number, 400 * factor * float(noise[0]), *more)


def repeated(n: int, factor: float, times: int, seed: int, **rows: Any) -> list[Report]:
    rng = np.random.default_rng([n, round(100 * factor), seed])
    return [
        judge(
            [drawn(rng, i, **{**rows, "others": 1.0}) for i in range(n)],
            drawn(rng, n, factor, **rows),
        )
        for _ in range(times)
    ]


def found(judged: list[Report]) -> float:
    return sum(one.exit_code == 1 for one in judged) / len(judged)


@pytest.fixture
def times(full_size: bool) -> int:
    return 1000 if full_size else 200


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 10, 20])
def test_a_build_that_is_worse_by_the_threshold_is_called_a_regression_once_in_twenty(
    n: int, times: int
) -> None:
    assert found(repeated(n, 1.05, times, 11)) <= (0.07 if times == 1000 else 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 10, 20])
def test_more_rows_call_few_more_builds_a_regression(n: int, times: int) -> None:
    """Where each of five rows is worse by the threshold, then where none is; 6 and 2 of 100 are expected."""
    assert found(repeated(n, 1.05, times, 2, rows=4, others=1.05)) <= (
        0.08 if times == 1000 else 0.12
    )
    assert found(repeated(n, 1.00, times, 3, rows=4)) <= (0.04 if times == 1000 else 0.07)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "factor"), [(10, 1.4), (5, 1.5), (20, 1.4)])
def test_a_large_regression_is_found_nine_times_in_ten(n: int, factor: float, times: int) -> None:
    assert found(repeated(n, factor, times, 4)) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("n", [5, 10, 20])
def test_the_smallest_detectable_change_is_found_nine_times_in_ten(n: int, times: int) -> None:
    """Each run is worse by what its own history says that it finds."""
    rng, seen = np.random.default_rng([n, 5]), []
    for _ in range(times):
        history = [drawn(rng, i) for i in range(n)]
        smallest = judge(history, drawn(rng, n)).data["rows"][0]["smallest"]
        assert smallest is not None
        seen.append(judge(history, drawn(rng, n, 1 + smallest)))

    assert found(seen) == pytest.approx(0.9, abs=0.03 if times == 1000 else 0.07)


@pytest.mark.parametrize(
    ("outlier", "outcome"), [(1.0, "REGRESSION"), (1.6, "PASS"), (1.3, "REGRESSION")]
)
def test_a_worse_run_is_worse_than_each_earlier_one(outlier: float, outcome: str) -> None:
    history = [run_of(number, 400 + number) for number in range(19)] + [run_of(19, 400 * outlier)]
    report = judge(history, run_of(20, 600))

    assert (report.exit_code == 1) == (outcome == "REGRESSION")
    limit = report.data["rows"][0]["limit"]
    assert limit >= 1.05 * 400 * outlier - 1


@pytest.mark.parametrize(
    ("between", "within", "n"),
    [(0.08, 0.02, 8), (0.3, 0.05, 5), (0.04, 0.005, 15), (0.08, 0.08, 8), (0.3, 0.3, 5), (0.04, 0.04, 15)],
)  # fmt: skip
def test_a_spread_is_marked_where_the_intervals_do_not_explain_it(
    between: float, within: float, n: int
) -> None:
    history = [run_of(i, 400 * math.exp(between * (-1) ** i), within=within) for i in range(n)]
    report = judge(history, run_of(n, 400, within=within))
    row = report.data["rows"][0]
    (low, high), (run_low, run_high) = row["a_interval"], row["b_interval"]
    spread = dict(report.summary)["spread"]
    why = report.result.objectives[0].why
    varies = between > within

    assert row["varies"] == varies
    assert not varies or low < run_low < 400 < run_high < high
    assert ("wider than the interval of one run" in why) == bool(why) == varies
    assert ("wider than" in spread) == varies
    assert "95% of such runs lie within" in spread


def test_a_shorter_run_is_judged_by_its_own_interval_too(times: int) -> None:
    """Runs of 2% around the same figure, and a new one a fraction as long with 12%: without that a third would be called worse."""
    rng = np.random.default_rng(6)
    reports = []
    for _ in range(times):
        history = [run_of(i, 400 * math.exp(rng.normal(0, 0.02))) for i in range(10)]
        short = run_of(10, 420 * math.exp(rng.normal(0, 0.12)), within=0.12, n=60)
        reports.append(judge(history, short))

    assert found(reports) <= (0.07 if times == 1000 else 0.11)


def alike(n: int = 8, **changes: Any) -> list[RunSummary]:
    """A history in which little varies."""
    return [
        run_of(i, 400 + i % 3, latency("tpot", 0.95, 12 + i % 2 / 10), **changes) for i in range(n)
    ]


def judged(
    new: RunSummary, history: Sequence[RunSummary] = tuple(alike()), **options: Any
) -> Report:
    return judge(list(history), new, **options)


def test_a_regression_has_its_row_limit_and_exit_code() -> None:
    made = judged(run_of(9, 520, latency("tpot", 0.95, 12)))
    first = made.data["rows"][0]

    assert (made.exit_code, made.data["verdict"], made.result.outcome) == (1, "regression", "FAIL")
    assert made.result.sentence == "Regression: TTFT since scheduled p95 +29.7%"
    assert (first["metric"], first["p"], first["verdict"], first["worse_in"], first["pairs"]) == ("ttft_sched", 0.95, "worse", 8, 8)  # fmt: skip
    assert 420 < first["limit"] < 430
    assert first["low"] < first["change"] < first["high"]
    assert "✗" not in terminal(made, None, 80)  # the sentence says it
    assert ": 9 of 10 runs would show a change of +" in terminal(made, None, 80)
    assert max(map(len, terminal(made, None, 80).splitlines())) <= 80


def test_no_regression_says_what_is_ruled_out() -> None:
    made = judged(run_of(9, 404, latency("tpot", 0.95, 12)))

    assert (made.exit_code, made.result.outcome) == (0, "PASS")
    assert made.result.sentence == "No regression beyond 5%: TTFT since scheduled p95 +0.78%"
    wide = judged(run_of(9, 435), [run_of(i, 400 * (1 + i / 40)) for i in range(8)])
    assert wide.result.sentence.startswith("No regression beyond 1")


def test_fewer_than_five_runs_are_not_enough_whatever_the_run_is() -> None:
    for n in range(5):
        made = judged(run_of(9, 4000), alike(n))
        assert (made.exit_code, made.data["verdict"]) == (5, "not enough history")
        assert made.result.sentence == f"Not enough history: the baseline has {n} of 5 runs"
    assert judged(run_of(9, 4000), alike(5)).exit_code == 1


def test_another_row_that_is_much_worse_is_a_regression_too() -> None:
    made = judged(run_of(9, 401, latency("tpot", 0.95, 24)))

    assert made.exit_code == 1
    assert made.result.sentence == "Regression: TPOT p95 +99.2%"


def test_answers_that_are_missing_are_a_regression() -> None:
    """A tenth of all requests, then so many that the p95 falls among them."""
    some = replace(run_of(9, 401), figures=(latency("ttft_sched", 0.95, 401), share(0.9)))
    most = replace(run_of(9, 401), figures=(latency("ttft_sched", 0.95, math.inf), share(0.8)))

    assert judged(some).result.sentence == "Regression: Complete answers, of all offered -10.0 pt"
    made = judged(most)
    assert made.result.sentence.startswith(
        "Regression: TTFT since scheduled p95 has no value: too many requests have no complete answer"
    )
    assert made.exit_code == 1
    json.dumps(made.data, allow_nan=False)


def test_a_backlog_that_grows_is_a_regression() -> None:
    assert "not stable at this rate, the backlog grows by 1.7 requests/s" in judged(run_of(9, 400, growth_per_s=1.7)).result.sentence  # fmt: skip


def test_a_threshold_of_the_user() -> None:
    assert judged(run_of(9, 440)).exit_code == 1
    assert judged(run_of(9, 440), threshold=0.2).exit_code == 0


@pytest.mark.parametrize(
    ("group", "key", "value", "text"),
    [
        ("scenario", "traffic.chat.output_tokens", "200", "traffic.chat.output_tokens: 100 in the baseline, 200 in this run. To allow this difference: --allow traffic.chat.output_tokens"),
        ("target", "target.url", "http://10.0.0.2", "--allow target"),
        ("target", "answering model", "tiny-2", "target, answering model: tiny in the baseline, tiny-2 in this run"),
        ("hosts", "master.cpu_model", "EPYC", "hosts, master.cpu_model: Xeon in the baseline, EPYC in this run"),
        ("versions", "tailgauge", "0.2.0", "versions, tailgauge: 0.1.0 in the baseline, 0.2.0 in this run"),
        ("clock", "dry_run", "true", "some runs are dry runs, others are real"),
        ("seed", "seed", "2", "--allow seed"),
    ],
)  # fmt: skip
def test_what_differs_is_refused_with_what_allows_it(
    group: str, key: str, value: str, text: str
) -> None:
    facts = {**FACTS, group: {**FACTS[group], key: value}}
    new = run_of(9, 400, facts=facts, seed=int(value) if group == "seed" else 1)
    made = judged(new)

    assert (made.exit_code, made.data["verdict"], made.data["rows"]) == (3, "not comparable", [])
    assert text in made.data["against"][0]
    assert refused(alike(), new, ()) == made.data["against"]
    if group != "clock":
        allowed = judged(new, allow=[key if group == "scenario" else group])
        assert allowed.exit_code == 0
        assert allowed.result.details[0].startswith(f"differs: {key}: ")


def test_other_versions_and_seeds_that_vary_are_no_obstacle() -> None:
    newer = {**FACTS, "versions": {**FACTS["versions"], "anthropic": "0.42"}}
    varied = [
        replace(run, seed=i, facts={**FACTS, "seed": {"seed": str(i)}})
        for i, run in enumerate(alike())
    ]

    assert judged(run_of(9, 400, facts=newer)).exit_code == 0
    assert (
        judged(run_of(9, 400, facts={**FACTS, "seed": {"seed": "99"}}, seed=99), varied).exit_code
        == 0
    )


def test_a_mixed_history_is_refused() -> None:
    other = {**FACTS, "scenario": {**FACTS["scenario"], "arrival.rate_per_s": "16"}}
    mixed = [replace(run, facts=other) if i % 2 else run for i, run in enumerate(alike())]

    assert (
        "arrival.rate_per_s: 8 and 16 in the baseline, 8 in this run"
        in judged(run_of(9, 400), mixed).data["against"][0]
    )


def test_other_work_is_refused_but_not_what_varies_from_run_to_run() -> None:
    rng = np.random.default_rng(7)
    lengths = [{"output tokens": 100 * math.exp(rng.normal(0, 0.02))} for _ in range(8)]
    varied = [replace(run, work=work) for run, work in zip(alike(), lengths, strict=True)]

    assert judged(run_of(9, 400, work={"output tokens": 103.0})).data["against"] == ["the work differs: 3.0% more output tokens per call than in the baseline"]  # fmt: skip
    assert judged(run_of(9, 400, work={"output tokens": 103.0}), varied).exit_code == 0
    assert judged(run_of(9, 400, work={"output tokens": 60.0}), varied).exit_code == 3
    assert judged(run_of(9, 400, work={"output tokens": 100.5})).exit_code == 0


def test_an_invalid_run_is_neither_judged_nor_added() -> None:
    new = run_of(9, 400, verdict="INVALID", reason="worker 0 was stalled")

    assert judged(new).exit_code == 3
    assert refused([], new, ()) == ["run-0009 is INVALID: worker 0 was stalled"]
    assert judged(run_of(9, 400, verdict="DEGRADED")).measurement.verdict == "DEGRADED"


def test_a_dry_run_that_repeats_one_is_not_added() -> None:
    history = alike(3, dry_run=True)

    assert "use another --seed" in refused(history, run_of(9, 400, dry_run=True), ())[0]
    assert "backlog grows" in refused(alike(), run_of(9, 400, growth_per_s=0.5), ())[0]


def test_the_run_itself_does_not_count_as_its_history() -> None:
    history = [*alike(), run_of(9, 520)]
    made = judged(run_of(9, 520), history)

    assert made.exit_code == 1
    assert made.result.details == ("run-0009 is in the baseline itself: left out",)


def test_rows_that_cannot_be_compared_say_why_and_another_one_decides() -> None:
    without = [replace(run, figures=run.figures[1:]) for run in alike()]
    made = judged(run_of(9, 400, latency("tpot", 0.95, 12)), without)
    lost = [*alike(7), run_of(7, math.inf)]

    assert made.data["rows"][0]["metric"] == "tpot"
    assert "too few requests in a run" in [row["why"] for row in made.data["rows"]]
    assert "has no value in 1 of 9 runs: too many requests have no complete answer" in [row["why"] for row in judged(run_of(9, 400), lost).data["rows"]]  # fmt: skip
    unsure = replace(latency("ttft_sched", 0.95, 400), low=None, high=None)
    for figure, why in (
        (latency("ttft_sched", 0.95, 0.0), "is 0 in a run"),
        (unsure, "too few effective requests"),
    ):
        new = replace(run_of(9, 400), figures=(figure, share(1.0)))
        assert why in [row["why"] for row in judged(new).data["rows"]]


def test_every_format_has_the_answer() -> None:
    made = judged(run_of(9, 520, latency("tpot", 0.95, 12)))
    xml, page = junit(made), markdown(made)

    assert 'failures="1"' in xml
    assert 'name="TTFT since scheduled p95"' in xml
    assert "| offered requests, ms | verdict | change | history | run |" in page
    assert 'errors="1"' in junit(judged(run_of(9, 400, verdict="INVALID", reason="x")))
    assert 'skipped="1"' in junit(judged(run_of(9, 400), alike(2)))


# --- folders and commands -------------------------------------------------------------------------------------------


def invoke(*line: object) -> Any:
    return CliRunner().invoke(cli, [*map(str, line)], terminal_width=80, catch_exceptions=True)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `compare` writes its report."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture(scope="module")
def folders(synthetic: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Run folders of one scenario: seven that vary by some per cent, and one that is half as slow again."""
    root, rng, made = tmp_path_factory.mktemp("runs"), np.random.default_rng(3), []
    for i in range(8):
        ttft = (
            200
            * rng.lognormal(0, 0.2, 200)
            * math.exp(rng.normal(0, 0.04))
            * (1.5 if i == 7 else 1)
        )
        spec = {
            "n": 200,
            "warmup_s": 0.0,
            "chunks": 2,
            "parts": 1,
            "offsets_ns": (0,),
            "run_id": f"2026112{i}T000000Z-s-00a{i}",
        }
        made.append(synthetic.write(root / str(i), ttft_ms=ttft, **spec))
    return made


@pytest.fixture(scope="module")
def kept(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A baseline of the first six."""
    place = tmp_path_factory.mktemp("kept") / "new" / "baseline"
    done = invoke("baseline", "add", place, *folders[:6])
    assert done.exit_code == 0, done.output + str(done.exception)
    assert done.output.count("added ") == 6
    return place


@pytest.mark.slow
def test_a_file_has_what_the_run_measured_and_is_stable(kept: Path, folders: list[Path]) -> None:
    of = summarize(folders[0])
    path = kept / f"{of.run_id}.json"
    tree = json.loads(path.read_text())

    assert load(str(kept))[0] == of
    assert list(tree) == sorted(tree)
    assert tree["schema_version"] == 1
    assert path.stat().st_size < 20_000
    p95 = of.figure("ttft_sched", 0.95)
    assert p95 is not None
    assert p95.low is not None
    assert p95.low < (p95.value or 0) < (p95.high or math.inf)
    assert of.facts["versions"]["tailgauge"]


@pytest.mark.slow
def test_the_commands_end_to_end(kept: Path, folders: list[Path], tmp_path: Path) -> None:
    same = invoke("compare", "--baseline", kept, folders[6])
    slow = invoke("compare", "--baseline", f"{kept}/", folders[7], "--out", tmp_path)
    listed = invoke("baseline", "list", kept)

    assert same.exit_code == 0, same.output
    assert same.output.startswith("PASS  No regression beyond ")
    assert slow.exit_code == 1
    assert slow.output.startswith("FAIL  Regression: ")
    written = {
        path.name for path in (tmp_path / "reports" / "20261127T000000Z-s-00a7-baseline").iterdir()
    }
    assert written == {"report.html", "report.md", "report.json", "junit.xml"}
    assert listed.exit_code == 0
    assert max(map(len, listed.output.splitlines())) <= 80
    assert listed.output.count("VALID") == 6
    assert ": 9 of 10 runs would show a change of +" in listed.output
    assert (
        json.loads(invoke("compare", "--baseline", kept, folders[7], "--json").output)["verdict"]
        == "regression"
    )
    assert (
        "**FAIL** Regression"
        in invoke("compare", "--baseline", kept, folders[7], "--markdown").output
    )


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "least", "most"), [(1.05, 0, 1), (1.6, 4, 5)])
def test_the_command_answers_as_the_judgement_does(
    folders: list[Path], tmp_path: Path, factor: float, least: int, most: int
) -> None:
    """Five histories of ten runs around a real one that is worse by this factor."""
    of, rng, called = summarize(folders[6]), np.random.default_rng(12), 0
    for i in range(5):
        for k in range(10):
            by = math.exp(rng.normal(0, SPREAD)) / factor
            scaled = [
                one
                if one.p is None
                else replace(
                    one,
                    **{
                        end: (getattr(one, end) or 0) * by or None
                        for end in ("value", "low", "high")
                    },
                )
                for one in of.figures
            ]
            save(
                str(tmp_path / str(i)),
                replace(of, run_id=f"h{k}", started_at=f"2026-11-{10 + k}", figures=tuple(scaled)),
            )
        done = invoke("compare", "--baseline", tmp_path / str(i), folders[6], "--json")
        assert done.exit_code in {0, 1}, done.output
        called += done.exit_code

    assert least <= called <= most


@pytest.mark.slow
def test_dry_runs_with_a_planted_slowdown(tmp_path: Path) -> None:
    """Six runs and one more of the same scenario, each with its seed, and one of an endpoint that is 40% slower."""
    from run_folders.dry_runs import dry_run_folder

    def run(seed: int, ttft_ms: float = 200.0) -> Path:
        return dry_run_folder(
            {
                "seed": seed, "arrival": {"rate_per_s": 20}, "stages": {"duration_s": 15, "warmup_s": 1},
                "traffic": {"chat": {"prompt_tokens": 50, "output_tokens": 10}},
                "simulated": {"ttft_ms": ttft_ms, "ttft_sigma": 0.3, "chunk_gap_ms": 5},
            },
            tmp_path / str(seed),
        )  # fmt: skip

    added = invoke("baseline", "add", tmp_path / "kept", *map(run, range(1, 7)))
    same = invoke("compare", "--baseline", tmp_path / "kept", run(7))
    slow = invoke(
        "compare", "--baseline", tmp_path / "kept", run(8, 280.0), "--allow", "simulated.ttft_ms"
    )
    again = invoke("baseline", "add", tmp_path / "kept", run(1))

    assert added.exit_code == 0, str(added.exception)
    assert same.exit_code == 0, same.output
    assert same.output.splitlines()[1].startswith("simulated PASS  No regression beyond ")
    assert slow.exit_code == 1, slow.output
    assert slow.output.splitlines()[1].startswith(
        "simulated FAIL  Regression: TTFT since scheduled p95 +"
    )
    assert "it repeats a dry run of the baseline with seed 1" in str(again.exception)


@pytest.mark.slow
def test_runs_are_dropped_by_name_or_age(kept: Path, tmp_path: Path) -> None:
    for run in load(str(kept)):
        save(str(tmp_path), run)
    (tmp_path / "README.md").write_text("ours")

    assert invoke("baseline", "drop", tmp_path, "00a2").output == "dropped 1 of 6 runs\n"
    assert invoke("baseline", "drop", tmp_path, "--keep", "2").output == "dropped 3 of 5 runs\n"
    assert invoke("baseline", "drop", tmp_path, "nothing-like-it").output == "dropped 0 of 2 runs\n"
    assert sorted(path.name[-9:] for path in tmp_path.iterdir()) == [
        "00a4.json",
        "00a5.json",
        "README.md",
        "here",
    ]
    for line in ((), ("00a2", "--keep", "2")):
        assert invoke("baseline", "drop", tmp_path, *line).exit_code != 0


def test_a_run_is_added_once(kept: Path, folders: list[Path]) -> None:
    done = invoke("baseline", "add", kept, folders[0])

    assert done.exception is not None
    assert "the run is in this baseline already" in str(done.exception)


@pytest.mark.slow
def test_an_empty_or_missing_folder_is_no_history(folders: list[Path], tmp_path: Path) -> None:
    assert invoke("baseline", "list", tmp_path / "here").output == "no runs in this baseline\n"
    for place in (tmp_path / "here", tmp_path / "missing"):
        done = invoke("compare", "--baseline", place, folders[0])
        assert done.exit_code == 5
        assert "Not enough history: the baseline has 0 of 5 runs" in done.output
        assert ("missing: no such folder: the baseline has no runs" in done.output) == (
            place.name == "missing"
        )
    assert "no such file: expected a folder" in str(
        invoke("baseline", "list", tmp_path / "missing").exception
    )


GOOD = "20261120T000000Z-s-00a0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            lambda tree: {**tree, "schema_version": 2},
            "schema_version: expected 1, got 2. Move it elsewhere, or add the run again",
        ),
        (
            lambda tree: {**tree, "run_id": "other"},
            f"run_id: expected {GOOD} as the file is named, got other",
        ),
        (lambda tree: {**tree, "figures": 3}, "figures: "),
        (
            lambda tree: {**tree, "figures": [{**tree["figures"][0], "value": -1}]},
            "figures.0.value: ",
        ),
        (lambda tree: {key: value for key, value in tree.items() if key != "work"}, "work: "),
        (lambda tree: {**tree, "mood": "good"}, "mood: "),
        (lambda _: {"hello": 1}, "not a run of a baseline"),
        (lambda _: [1, 2], "not a run of a baseline"),
        (lambda _: "NaN", "not a run of a baseline"),
    ],
)
def test_a_file_that_is_none_of_a_baseline_is_named(kept: Path, folders: list[Path], tmp_path: Path, change: Any, text: str) -> None:  # fmt: skip
    tree = json.loads((kept / f"{GOOD}.json").read_text())
    (tmp_path / f"{GOOD}.json").write_text(json.dumps(change(tree)))
    for line in (("baseline", "list", tmp_path), ("compare", "--baseline", tmp_path, folders[1]), ("baseline", "add", tmp_path, folders[1])):  # fmt: skip
        done = invoke(*line)
        assert text in str(done.exception), done.output
        assert f"{tmp_path}/{GOOD}.json: " in str(done.exception)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"schema_version": 1e999}'], ids=["empty", "cut", "bytes", "deep", "infinite"])  # fmt: skip
def test_a_file_that_is_no_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)

    assert f"{tmp_path}/x.json" in str(invoke("baseline", "list", tmp_path).exception)


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_and_a_run_that_is_missing(
    folders: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    assert "cannot be written" in str(
        invoke("baseline", "add", tmp_path / "file" / "b", folders[0]).exception
    )
    for odd in (tmp_path / "file", "a" * 300, "/dev/zero"):
        assert "expected a folder" in str(invoke("baseline", "add", odd, folders[0]).exception)
    (tmp_path / "pipe.json").symlink_to("/dev/zero")
    assert "pipe.json: not a regular file" in str(invoke("baseline", "list", tmp_path).exception)
    for line in (
        ("baseline", "add", tmp_path / "here"),
        ("compare", "--baseline", tmp_path / "here"),
    ):
        assert "no such run folder" in str(invoke(*line, tmp_path / "nowhere").exception)


def test_options_that_do_not_go_together(folders: list[Path], tmp_path: Path) -> None:
    for more in ((folders[1],), ("--metric", "tpot")):
        assert "give one run" in str(
            invoke("compare", "--baseline", tmp_path, folders[0], *more).exception
        )
    assert "expected a folder, or a URL" in str(
        invoke("baseline", "list", "ftp://host/x").exception
    )
