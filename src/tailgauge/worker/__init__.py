"""Sends requests on time: dispatch, admission, rows, health, transfer of parts to the master.

Comes in: leased slices of the schedule. Goes out: rows, health. Must not know: Locust, the master package, the analysis.
"""
