"""Sends requests on time: dispatch, admission, rows of what happened, parts on their way to the master.

Comes in: leased slices of the schedule. Goes out: rows, health. Must not know: Locust, the analysis.
"""
