"""Quantiles, intervals, bootstrap, regression, survival, tests.

Comes in: arrays. Goes out: numbers. Must not know: runs, metrics, units.
"""
