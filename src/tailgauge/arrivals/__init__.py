"""When requests arrive and what each asks for: the whole plan of a run, drawn once from a seed.

Rule: pure functions of plain values, except for the two readers of files, `trace_file` and `prompt_file`. Nothing is
rescaled to hit a count or a duration exactly: that would take out the variance that the process has.
"""

from tailgauge.arrivals.plan import plan
from tailgauge.arrivals.schedule import Planned, Schedule
from tailgauge.arrivals.streams import stream

__all__ = ["Planned", "Schedule", "plan", "stream"]
