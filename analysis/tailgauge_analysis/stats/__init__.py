"""Quantiles, intervals, bootstrap, regression, survival, tests.

Input: arrays. Output: numbers. Independent of: runs, metrics, units.
"""
