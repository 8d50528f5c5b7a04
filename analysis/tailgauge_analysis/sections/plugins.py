"""The section on plugins: which the run had, whether this report had the same, and what went wrong in their metrics and sections.

What a plugin's own section says is made by the plugin; report/build.py calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailgauge.plugins import plugin
from tailgauge_analysis.run import Run
from tailgauge_analysis.text.formatting import plain
from tailgauge_analysis.text.json_values import text
from tailgauge_analysis.text.quantile import UNPUBLISHED
from tailgauge_analysis.text.section import Section

KEY = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """The plugins of the run and of this report, and those that this report lacks."""

    facts: tuple[tuple[str, str], ...] = field(metadata=UNPUBLISHED)
    lacking: tuple[str, ...] = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Plugins:
    """Compare the plugins of the run with those that are loaded for this report, by name and SHA-256.

    `lacking`: what to do about each plugin that this report has not, or not as the run had it.
    """
    loaded = plugin.hashes()
    run_plugins = {}
    for plugin_record in run.record["plugins"]:
        run_plugins[text(plugin_record.get("name"))] = plugin_record
    facts: list[tuple[str, str]] = []
    lacking: list[str] = []
    for name, plugin_record in run_plugins.items():
        file = plain(text(plugin_record.get("file")), 100)
        sha256 = text(plugin_record.get("sha256"))
        state = "loaded for this report"
        if loaded.get(name) != sha256:
            state = (
                "not the same for this report" if name in loaded else "not loaded for this report"
            )
            remedy = "take the file of the run"
            if name not in loaded:
                remedy = f"make the report with --plugin {file}"
            lacking.append(f"{file} was {state}: its metrics and sections may be missing; {remedy}")
        facts.append((file, f"SHA-256 {sha256[: plugin.SHOWN]}, {state}"))
    for name in loaded:
        if name not in run_plugins:
            facts.append((name, "not a plugin of the run"))
    return Plugins(facts=tuple(facts), lacking=tuple(lacking))


def section(plugins: Plugins) -> Section | None:
    """Return the section; None where neither the run nor the report had a plugin; errors are those until now."""
    if not plugins.facts:
        return None
    notes = (*plugins.lacking, *(f"Error in {message}" for message in plugin.NOTED.texts.values()))
    answer = ""
    if notes:
        answer = f"{len(notes)} of what plugins add is missing."
    return Section("plugins", "Plugins", answer, plugins.facts, notes=notes, brief=notes)
