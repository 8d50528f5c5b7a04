"""Variant A against variant B, between runs or in alternating blocks of one run: which is better, and how sure that is."""
