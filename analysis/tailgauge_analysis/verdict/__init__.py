"""Checks of the measurement: may these numbers be used?

Input: frames and the steady stage. Output: VALID, DEGRADED or INVALID with reasons and advice, and explanations.
Independent of: whether the target is good.
"""
