"""The engine: what a model server does with its calls, and when.

Input: jobs, and time as integers of nanoseconds. Output: emissions. Independent of: clocks, I/O, threads, protocols.
"""
