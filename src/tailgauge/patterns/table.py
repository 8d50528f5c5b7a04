"""The table of traffic patterns, and the table `[traffic.NAME]` of a scenario with the settings of each.

A pattern is a row here and a file beside this one, or a plugin's; nothing else knows its name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from tailgauge.patterns import batch, fan_out, job, progressive, resume, streaming, structured
from tailgauge.patterns.pattern import Pattern
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.plugins import plugin
from tailgauge.table import add_class, by_name, with_choices

ROWS: tuple[type[Pattern], ...] = (
    streaming.Streaming,
    streaming.Cached,
    fan_out.FanOut,
    streaming.Hedged,
    structured.Structured,
    progressive.Progressive,
    batch.Batch,
    job.Job,
    resume.Resume,
)
PATTERNS = by_name(ROWS)
# Keys of a traffic table that have a meaning with some patterns only; see Pattern.uses.
OPTIONAL = frozenset[str]().union(*(row.uses for row in ROWS))


def pattern_of(traffic: TrafficSettings) -> Pattern:
    """Return the pattern of a traffic table, at work; one for each worker, because its requests share budgets."""
    return PATTERNS[traffic.pattern](traffic)


def facts(tables: Iterable[TrafficSettings]) -> dict[str, dict[str, Any]]:
    """Return what the analysis needs to know of the patterns in use, for run.json."""
    facts_by_name = {}
    for traffic in tables:
        name = traffic.pattern
        row = PATTERNS[name]
        facts_by_name[name] = {
            "answer": row.answer,
            "like": row.like or name,
            "price_share": row.price_share,
        }
    return facts_by_name


class _Checked(TrafficSettings):
    __doc__ = TrafficSettings.__doc__

    @model_validator(mode="after")
    def _used(self) -> _Checked:
        rows = PATTERNS.values()
        used_by = {row.name: {row.name} for row in rows if row.settings_type is not None}
        used_by |= {key: {row.name for row in rows if key in row.uses} for key in OPTIONAL}
        self.refuse_unused("pattern", used_by)
        self.check()
        pattern_of(self).check()
        return self


if TYPE_CHECKING:

    class Traffic(_Checked):
        """One kind of request, with the table of its pattern."""

else:
    Traffic = with_choices("Traffic", _Checked, "pattern", ROWS)


def _add(row: Any) -> None:
    """Add a pattern of a plugin."""
    wrong = sorted(getattr(row, "uses", OPTIONAL) - OPTIONAL)
    if wrong:
        expected = ", ".join(sorted(OPTIONAL))
        raise ValueError(
            f"{row.__name__}.uses: expected some of {expected}, got {', '.join(wrong)}"
        )
    add_class(PATTERNS, row, Pattern, Traffic, "pattern")


plugin.subscribe(plugin.PATTERNS, _add)
