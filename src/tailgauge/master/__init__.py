"""Owns a run: workers, leases, drain, received parts, accounting, run.json.

Input: messages of workers. Output: run.json. Independent of: the worker package, how a request is sent.
"""
