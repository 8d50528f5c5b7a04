"""Sends requests on time: dispatch, admission, rows, health, transfer of parts to the master.

Input: leased slices of the schedule. Output: rows, health. Independent of: Locust, the master package, the analysis.
"""
