"""A call at the simulated endpoint, without I/O: what is sent next and when, faults, cancellation, billing.

Comes in: a parsed request, and the time of everything that happens. Goes out: due times, and the row of the server log.
Must not know: sockets, asyncio, the event queue of a dry run.
"""
