"""Experiments: commands that plan runs, judge them, and answer one question.

In: a scenario with a table [experiment]. Out: an answer in reports/<id>/, and the run folders of its runs.
Each experiment is one folder, with what it needs of: `plan` (which runs, in which order), `measure` (one run to a few
numbers), `judge` (all runs to a decision), `report` (the decision as text, tables and figures); and one row of `table`.
Only commands that need an experiment import it: pandas comes with it; plotly and Jinja only with `write`.
"""
