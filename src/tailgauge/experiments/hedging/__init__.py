"""Hedging by load: below which load it helps, above which it hurts, and why."""
