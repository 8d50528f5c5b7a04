"""Checks of the measurement: may these numbers be used?

Comes in: frames, metrics. Goes out: VALID, DEGRADED or INVALID, with reasons.
"""
