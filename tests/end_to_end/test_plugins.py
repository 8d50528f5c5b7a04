"""Plugins in whole runs: permission, every kind of row at work, and what a run says of one that raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugins.documented import PLUGIN, example
from run_folders.run_data import assert_conserved
from starting.command import Finished, free_port
from starting.programs import LOCUST

TOOK_PLACE = {0, 3}  # beside other tests a measurement may be INVALID
RAISING = Path(__file__).parents[1] / "plugins/raising.py"
LEAVES_A_MARK = (
    'from pathlib import Path\nPath(__file__).with_name("imported").touch()\nPATTERNS = []\n'
)
RAISES = """
description = "Requests of which most end in an error of the plugin"
[arrival]
process = "constant"
rate_per_s = 20
[stages]
duration_s = 4
warmup_s = 0
[traffic.pattern]
pattern = "raises"
output_tokens = 4
[traffic.early]
pattern = "forgets"
[traffic.source]
prompts.source = "mute"
output_tokens = 4
[traffic.fine]
output_tokens = 4
[simulated]
ttft_ms = 10.0
chunk_gap_ms = 1.0
[slo.complete]
metric = "complete"
min = 0.1
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """The scenario of the page, beside its plugin."""
    return example(tmp_path / "user")


def shows_everything(done: Finished) -> None:
    """Pattern, prompts, protocol, metric and section of the page's example are in the run and its report."""
    facts, report = done.run.facts, done.report_data
    assert set(facts["patterns"]) == {"follow_up"}
    assert facts["scenario"]["traffic"]["tickets"]["follow_up"] == {"pause_s": 0.1}
    assert [(one["name"], one["file"], len(one["sha256"])) for one in facts["plugins"]] == [
        ("desk", PLUGIN, 64)
    ]
    attempts = done.run.table("attempts").query("request_id >= 0")
    assert set(attempts.protocol) == {"plain_chat"}
    assert set(attempts.groupby("request_id").leg.agg(tuple)) == {(0, 1)}
    assert [
        row["n"] > 5
        for row in report["latency"]
        if (row["metric"], row["group"]) == ("decode", "all")
    ]
    text = done.report_text
    assert "Silence by traffic" in text
    assert PLUGIN in text.partition("tailgauge run ")[2].partition("\n")[0], (
        "the command that repeats the run"
    )
    assert "desk.py" not in done.stdout, "all is well"


def test_a_plugin_with_one_of_each_kind_works_in_a_dry_run(start, desk):
    bounds = ("--slo", "decode p50 < 9s", "--slo", "tickets: decode p90 < 1ms")
    done = start("run", desk, "--dry-run", "--plugin", desk.with_name(PLUGIN), *bounds).finish()

    assert done.code == 1, done.stderr
    objectives = done.report_data["slo"]
    assert [(one["metric"], one["outcome"]) for one in objectives] == [
        ("decode", "pass"),
        ("decode", "fail"),
    ]
    shows_everything(done)
    assert_conserved(done.run)


@pytest.mark.slow
def test_it_works_with_workers_and_a_report_without_it_says_what_is_missing(start, desk):
    done = start("run", desk, "--allow-plugins", "--workers", "2", "--duration", "3").finish()

    assert done.code in TOOK_PLACE, done.stderr
    shows_everything(done)
    assert assert_conserved(done.run)["ended"].keys() == {"ok"}

    again = start("report", done.run.path, "--out", done.out).finish()

    assert again.code == done.code
    assert "desk.py was not loaded for this report" in done.report_text
    report = done.report_data
    assert report["conservation"]["ended"]["ok"] > 10
    assert "decode" not in {row["metric"] for row in report["latency"]}


@pytest.mark.slow
def test_a_scenario_that_names_a_plugin_loads_nothing_without_permission(start, tmp_path):
    (tmp_path / "mark.py").write_text(LEAVES_A_MARK, encoding="utf-8")
    scenario = tmp_path / "mark.toml"
    scenario.write_text('plugins = ["mark.py"]\n[traffic.chat]\n', encoding="utf-8")

    for options in ((), ("--dry-run",)):
        refused = start("run", scenario, *options).finish()

        assert refused.code == 2
        assert f"{scenario}: plugins: the scenario lists plugins" in refused.stderr
        assert refused.stderr.rstrip().endswith(
            "'mark.py': check the code, then add --plugin mark.py"
        )
    assert not (tmp_path / "imported").exists()

    start("run", scenario, "--dry-run", "--duration", "2", "--allow-plugins").finish()
    assert (tmp_path / "imported").exists()


def test_under_locust_too(start, desk, checkout, full_size):
    if not full_size:
        pytest.skip("make verify")
    line = (
        "-f",
        checkout / "locustfiles/streaming.py",
        "--headless",
        "--host",
        "simulated",
        "--scenario",
        desk,
    )
    refused = start(*line, program=LOCUST).finish()
    assert refused.code == 2
    assert f"add --plugin {PLUGIN}" in refused.stderr

    done = start(*line, "--plugin", desk.with_name(PLUGIN), program=LOCUST).finish()
    assert done.code in TOOK_PLACE, done.stderr
    shows_everything(done)


def raising_line(statement: str) -> int:
    """The number of the line of the plugin that has this statement."""
    lines = RAISING.read_text(encoding="utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if statement in line]
    return number


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--dry-run",), ()], ids=["dry run", "real"])
def test_what_raises_is_named_by_file_and_line_and_the_rest_goes_on(start, tmp_path, options):
    scenario = tmp_path / "raises.toml"
    scenario.write_text(RAISES, encoding="utf-8")
    done = start("run", scenario, "--plugin", RAISING, *options).finish()

    assert "Traceback" not in done.stderr
    notes = "\n".join(done.run.facts["notes"])
    raises = raising_line('raise KeyError("which")')
    yields = raising_line("yield 3")
    forgets = raising_line("raise RuntimeError")
    is_mute = raising_line("{}[use]")
    assert f"plugin raising.py, line {raises}: KeyError: 'which'" in notes
    assert (
        f"plugin raising.py, line {yields}: TypeError: a pattern yielded 3, which is not a step"
        in notes
    )
    assert "TypeError: a pattern returned None, not Done" in notes
    assert f"plugin raising.py, line {forgets}: RuntimeError" in notes
    assert f"plugin raising.py, line {is_mute}: KeyError" in notes
    assert notes.count(f"line {is_mute}") == notes.count(f"line {forgets}") == 1, "one note a place"
    assert_conserved(done.run)
    requests = done.run.requests()
    ended = requests.groupby("traffic").ended.agg(set).to_dict()
    both = {"ok", "plugin_error"}
    assert ended == {"pattern": both, "early": {"plugin_error"}, "source": both, "fine": {"ok"}}
    assert (requests.ended_at_ns >= requests.dispatched_at_ns).all()
    odd = requests.request_id // 65536 % 2 == 1
    assert set(requests[(requests.traffic == "source") & odd].ended) == {"ok"}

    text = done.report_text
    assert done.code in {0, 3, 5}, "the target did what the objective asks"
    for shown in (
        (text, " ".join(done.stdout.split())) if options else (text,)
    ):  # an INVALID run has no such lines
        gone = raising_line('Metric("gone"')
        assert f"metric gone: raising.py, line {gone}: AttributeError" in shown
        assert "expected nanoseconds" in shown
    broken = raising_line("return run.nothing")
    assert f"Not made. raising.py, line {broken}: AttributeError" in text
    assert "## Latency" in text


def test_a_worker_without_the_plugin_is_refused_and_one_with_it_takes_part(
    start, desk, tmp_path, full_size
):
    if not full_size:
        pytest.skip("make verify")
    bind = f"127.0.0.1:{free_port()}"
    plugin_file = desk.with_name(PLUGIN)
    other = tmp_path / "other" / PLUGIN
    other.parent.mkdir()
    other.write_text(plugin_file.read_text() + "# changed\n", encoding="utf-8")
    env = {"TAILGAUGE_TOKEN": "0123456789abcdef"}
    line = (
        "run",
        desk,
        "--plugin",
        plugin_file,
        "--bind",
        bind,
        "--expect-workers",
        "1",
        "--duration",
        "3",
    )
    master = start(*line, env=env)
    for given, why in (
        ((), "it has no plugin 'desk'"),
        (("--plugin", other), "it has another file as plugin"),
    ):
        refused = start("worker", "--master", bind, *given, env=env).finish()
        assert refused.code == 4
        assert why in refused.stderr
    taken = start("worker", "--master", bind, "--plugin", plugin_file, env=env).finish()
    done = master.finish()

    assert "joined run" in taken.stderr
    assert done.code in TOOK_PLACE, done.stderr
    shows_everything(done)
