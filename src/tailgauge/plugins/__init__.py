"""Rows that users bring: a Python file or an installed package adds patterns, prompt sources, protocols, metrics and sections."""
