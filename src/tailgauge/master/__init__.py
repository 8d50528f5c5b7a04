"""Owns a run: workers, leases, drain, received parts, accounting, run.json.

Comes in: messages of workers. Goes out: run.json. Must not know: the worker package, how a request is sent.
"""
