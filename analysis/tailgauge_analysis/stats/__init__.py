"""Quantiles, intervals, bootstrap, regression, survival: arrays in, numbers out. Must not know: runs."""
