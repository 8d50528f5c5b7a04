"""Checks of the measurement: may these numbers be used?

Comes in: frames and the steady stage. Goes out: VALID, DEGRADED or INVALID with reasons and advice, and explanations.
Must not know: whether the target is good.
"""
