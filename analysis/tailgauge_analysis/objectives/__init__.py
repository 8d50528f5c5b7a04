"""Objectives on recorded rows: which requests they are about, their outcome, its text; goodput and the health of the target."""
