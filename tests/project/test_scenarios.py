"""The packaged scenarios: each loads, has a description, can be planned, and is documented."""

import itertools
import re
import tomllib

import pytest

from tailgauge.protocols.protocol import SIMULATED
from tailgauge.scenario.model import load, override
from tailgauge.scenario.packaged import packaged
from tailgauge.schedule.schedule import plan

PACKAGED = sorted(packaged("scenarios").glob("*.toml"))


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
class TestPackagedScenario:
    def test_it_loads_by_path_and_by_name_alike(self, path):
        assert load(str(path)) == load(path.stem)

    def test_it_runs_against_the_simulated_endpoint_by_default(self, path):
        assert load(path.stem).target.url == SIMULATED

    def test_it_opens_with_a_comment_and_has_a_description(self, path):
        text = path.read_text(encoding="utf-8")

        assert text.startswith("# ")
        assert tomllib.loads(text)["description"]

    def test_its_plan_is_90_seconds_of_light_traffic_at_most_but_for_blocks_and_finds_its_files(
        self, path
    ):
        scenario = load(path.stem)
        stages = scenario.stages
        schedule = plan(
            scenario.arrival, scenario.traffic, stages.duration_s, scenario.seed, folder=path.parent
        )

        assert stages.duration_s <= 90 or scenario.crossover is not None
        assert 0 < len(schedule) <= 50 * 1.2 * stages.duration_s


def test_the_command_of_each_locustfile_loads(checkout):
    for path in sorted((checkout / "locustfiles").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        (command,) = re.findall(r"^locust (.+)$", text, re.MULTILINE)
        (default,) = re.findall(r'^    scenario = "(\w+)"$', text, re.MULTILINE)
        arguments = command.split()
        options = dict(itertools.pairwise(arguments))
        sets = [override(options["--set"])] if "--set" in options else []

        assert options["-f"] == f"locustfiles/{path.name}"
        assert load(options.get("--scenario", default), sets).traffic
        assert load(default).traffic


def test_every_scenario_that_a_command_of_a_page_names_is_packaged(checkout):
    """`run NAME`, `scenario show NAME` and `scenario copy NAME`; a file of the user's has a suffix."""
    pages = [
        checkout / "README.md",
        checkout / "CONTRIBUTING.md",
        *sorted(checkout.glob("docs/**/*.md")),
    ]
    command = re.compile(r"tailgauge (?:run|scenario (?:show|copy)) ([a-z]\w*)(?![\w/.])")
    named = {name for page in pages for name in command.findall(page.read_text(encoding="utf-8"))}

    assert {"streaming", "headroom", "hedging"} <= named
    assert named - {path.stem for path in PACKAGED} == set()
