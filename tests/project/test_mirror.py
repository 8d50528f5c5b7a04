"""Where a module is tested: in the file or the folder of its name, or as the table here says."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from project.import_walk import TESTS, modules, reached, reached_by_test

# A module, or a folder for all its modules that have no test of their own -> the test that runs it.
RUN_BY = {
    "call": "patterns/test_several_calls.py",
    "errors": "cli/test_exit_codes.py",
    "protocol_violations": "protocols/test_malformed_streams.py",
    "suggestions": "cli/test_mistakes.py",
    "sanitize": "hostile/test_hostile_targets.py",
    "thresholds": "master/test_live_verdict.py",
    "channel": "end_to_end/test_headroom.py",
    "cli": "end_to_end/test_bad_input.py",
    "dry_run": "dry_run/test_answers.py",
    "experiments": "end_to_end/test_headroom.py",
    "experiments/answer": "experiments/test_conduct.py",
    "experiments/checkup": "experiments/checkup/test_planted_problems.py",
    "experiments/loads": "experiments/test_headroom.py",
    "live": "end_to_end/test_live_view.py",
    "locust_app": "end_to_end/test_plain_locust.py",
    "master": "end_to_end/test_conservation.py",
    "master/run_json": "master/test_progress.py",
    "patterns": "patterns/test_several_calls.py",
    "patterns/concurrency_gate": "end_to_end/test_conservation.py",
    "patterns/legs": "patterns/test_fan_out.py",
    "patterns/policies": "patterns/test_hedge_policy.py",
    "plan": "plan/test_resolve.py",
    "protocols": "protocols/test_request_bodies.py",
    "rows": "rows/test_recorder.py",
    "scenario": "scenario/test_defaults.py",
    "schedule": "schedule/test_schedule.py",
    "simulator": "simulator/http/test_answers.py",
    "simulator/engine": "simulator/engine/test_engine.py",
    "transport/peer": "cli/test_mistakes.py",
    "worker": "end_to_end/test_conservation.py",
    "analysis/api": "end_to_end/test_headroom.py",
    "analysis/comparing": "analysis/comparing/test_compare.py",
    "analysis/reading": "analysis/reading/test_frames.py",
    "analysis/metrics": "analysis/metrics/test_metrics.py",
    "analysis/objectives": "analysis/objectives/test_outcome.py",
    "analysis/objectives/live": "end_to_end/test_run_until_known.py",
    "analysis/metrics/timeline": "analysis/report/test_figures.py",
    "analysis/report": "analysis/report/test_report.py",
    "analysis/sections": "analysis/report/test_bad_runs.py",
    "analysis/sections/cache": "analysis/sections/cache/test_section.py",
    "analysis/sections/fan_out": "analysis/sections/fan_out/test_section.py",
    "analysis/sections/hedging": "analysis/sections/hedging/test_section.py",
    "analysis/sections/latency_under_load": "analysis/sections/latency_under_load/test_slopes.py",
    "analysis/sections/rate_limits": "analysis/sections/rate_limits/test_buckets.py",
    "analysis/text": "analysis/report/test_published.py",
    "analysis/text/picture": "analysis/report/test_figures.py",
    "analysis/verdict": "analysis/verdict/test_checks.py",
}
# Folders of tests that mirror no folder of the product.
OTHERS = {
    "bench",
    "docs",
    "end_to_end",
    "extension",
    "gateways",
    "hostile",
    "many_machines",
    "project",
    "real_engine",
    "run_folders",
    "fuzz",
    "sanitizers",
    "starting",
    "torture",
    "wire",
}


def place(module: str) -> str:
    """Where its tests lie: `worker/dispatcher`, `analysis/stats/quantiles`."""
    package, *parts = module.split(".")
    return "/".join([*(["analysis"] if package == "tailgauge_analysis" else []), *parts])


def is_tested(module: str) -> bool:
    path = TESTS / place(module)
    return path.with_name(f"test_{path.name}.py").exists() or any(path.glob("test_*.py"))


def entry(module: str) -> str | None:
    """The key of the table that holds for it: its own, or the nearest folder's."""
    name = place(module)
    return next((key for key in (name, *map(str, Path(name).parents)) if key in RUN_BY), None)


@pytest.fixture(scope="module")
def untested() -> list[str]:
    files = {name: path for name, path in modules().items() if not path.name.startswith("__")}
    assert len(files) > 200
    return [name for name in files if not is_tested(name)]


def test_every_module_has_a_test_of_its_own_or_stands_in_the_table(untested: list[str]) -> None:
    assert [name for name in untested if entry(name) is None] == []


def test_the_table_has_nothing_besides(untested: list[str]) -> None:
    assert RUN_BY.keys() - {entry(name) for name in untested} == set()


def test_every_named_test_is_there() -> None:
    assert [test for test in RUN_BY.values() if not (TESTS / test).exists()] == []


def test_the_named_test_reaches_the_module_by_its_imports_or_by_the_command_line(
    untested: list[str],
) -> None:
    by_test = cache(lambda test: reached(reached_by_test(TESTS / test)))
    named = [(name, RUN_BY[key]) for name in untested if (key := entry(name))]

    assert [(name, test) for name, test in named if name not in by_test(test)] == []


def test_every_folder_of_tests_mirrors_the_product() -> None:
    folders = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - {
        "."
    }
    product = set(map(place, modules()))

    assert {
        folder for folder in folders - product if folder.partition("/")[0] not in OTHERS
    } == set()


def test_the_lists_of_tests_that_run_alone_first_or_beside_the_others_name_what_is_there() -> None:
    tree = ast.parse((TESTS / "conftest.py").read_text(encoding="utf-8"))
    lists = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in {"ALONE", "ALONE_IN_FULL", "LONG", "TIMED", "UNTIMED"}
    }
    named = [name.removeprefix("tests/") for names in lists.values() for name in names]
    files = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")]

    assert [
        name
        for name in named
        if not any(file.startswith(name.partition("::")[0]) for file in files)
    ] == []
