"""A call at the simulated endpoint, without I/O: what is sent next and when, faults, cancellation, billing.

Input: a parsed request, and the time of everything that happens. Output: due times, and the row of the server log.
Independent of: sockets, asyncio, the event queue of a dry run.
"""
