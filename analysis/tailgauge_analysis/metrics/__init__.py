"""The table of metrics and objectives, and what is computed for each.

Comes in: frames. Goes out: plain values with intervals.
"""
