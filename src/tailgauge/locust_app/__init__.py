"""Locust's side of a run: start of the processes, hooks, options, the report process.

Input: settings, Locust's events. Output: runs and their results. Independent of: how a request is sent. Besides
channel, the only folder that imports Locust.
"""
