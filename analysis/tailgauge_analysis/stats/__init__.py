"""Quantiles, intervals, bootstrap, regression, survival, tests.

Input: arrays. Output: numbers. Independent of: run folders, frames, metrics.
"""
