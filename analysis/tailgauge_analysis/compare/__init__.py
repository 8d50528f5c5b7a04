"""Arm A against arm B: which of two ways of doing it is better, and how sure that is."""
