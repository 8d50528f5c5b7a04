"""The engine: what a model server does with its calls, and when.

Comes in: jobs, and time as integers of nanoseconds. Goes out: emissions. Must not know: clocks, I/O, threads, protocols.
"""
