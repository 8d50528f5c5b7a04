"""The section on plugins: those of the run, those that the report had, and their errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tailgauge.plugins import plugin
from tailgauge.plugins.plugin import Plugin
from tailgauge_analysis.sections.plugins import compute, section


def of_plugins(record):
    """The section of a run with this record."""
    return section(compute(SimpleNamespace(record=record)))


def run_with(*plugins):
    return {
        "plugins": [
            {"name": name, "file": f"{name}.py", "sha256": sha256} for name, sha256 in plugins
        ]
    }


@pytest.fixture
def loaded(monkeypatch):
    """A function that lets the report have plugins of these names and hashes."""

    def have(**hashes):
        found = {
            name: Plugin(name, f"{name}.py", sha256, f"/x/{name}.py", None)
            for name, sha256 in hashes.items()
        }
        monkeypatch.setattr(plugin, "LOADED", found)
        monkeypatch.setattr(plugin, "NOTED", plugin.Faults())

    return have


def test_without_plugins_there_is_no_section(loaded):
    loaded()
    assert of_plugins(run_with()) is None


def test_the_same_plugin_is_named_and_nothing_is_missing(loaded):
    loaded(desk="ab" * 32)
    found = of_plugins(run_with(("desk", "ab" * 32)))

    assert found.facts == (("desk.py", "SHA-256 abababababab, loaded for this report"),)
    assert (found.answer, found.notes, found.brief) == ("", (), ())


@pytest.mark.parametrize(
    ("report", "state"),
    [({}, "not loaded for this report"), ({"desk": "cd" * 32}, "not the same for this report")],
    ids=["none", "another"],
)
def test_another_one_or_none_is_in_the_summary_too(loaded, report, state):
    loaded(**report)
    found = of_plugins(run_with(("desk", "ab" * 32)))

    assert found.facts == (("desk.py", f"SHA-256 abababababab, {state}"),)
    assert state in found.brief[0]
    assert found.brief == found.notes


def test_a_plugin_that_the_run_did_not_have_and_an_error_are_named(loaded):
    loaded(more="ab" * 32)
    plugin.NOTED.note(plugin.MisuseError("more.py, line 3: ValueError: x"), "metric m: ")
    found = of_plugins(run_with())

    assert found.facts == (("more", "not a plugin of the run"),)
    assert found.brief == ("Error in metric m: more.py, line 3: ValueError: x",)


def test_what_run_json_holds_otherwise_is_shown_as_text(loaded):
    loaded()
    found = of_plugins({"plugins": [{"name": 3, "file": None}, {}]})

    assert len(found.facts) == 1
