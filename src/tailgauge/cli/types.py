"""A number above 0, as an option of a command.

Rule: nothing else.
"""

from __future__ import annotations

from typing import Any

import click


class Positive(click.ParamType[float]):
    """Refuses what is no number, 0 and less, and more than a billion."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0 < number < 1e9:
            self.fail(f"expected a number above 0, got {value!r}", param, ctx)
        return number
