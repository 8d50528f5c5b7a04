"""Locust's side of a run: start of the processes, hooks, options, the report process.

Comes in: settings, Locust's events. Goes out: runs and their results. Must not know: how a request is sent. Besides
channel, the only folder that imports Locust.
"""
