"""Bounds that others set: what kinds of use ask for, MLPerf's rules, and what operators are woken for."""
