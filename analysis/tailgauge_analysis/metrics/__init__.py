"""The table of metrics and objectives, and what is computed for each.

Comes in: frames. Goes out: values with intervals, of the steady stage. Must not know: sections and formats.
"""
