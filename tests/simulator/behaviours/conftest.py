"""Behaviours of the simulated endpoint as values: time is passed in, nothing is started."""

from __future__ import annotations

from hypothesis import settings

# The same examples each time, and no verdict by the clock of a busy machine.
settings.register_profile("behaviours", derandomize=True, deadline=None, database=None, max_examples=60)
settings.load_profile("behaviours")
