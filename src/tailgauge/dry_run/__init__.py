"""The traffic's own patterns and policies against the simulated endpoint, on a simulated clock: a run in seconds.

Comes in: a scenario and its schedule. Goes out: a run folder like any other; nothing is sent. Must not know: sockets, Locust,
how the simulated endpoint decides.
"""
