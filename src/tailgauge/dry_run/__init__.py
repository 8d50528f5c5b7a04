"""The traffic's own patterns and policies against the simulated endpoint, on a simulated clock: a run in seconds.

Input: a scenario and its schedule. Output: a run folder like any other; nothing is sent. Independent of: sockets,
Locust.
"""
