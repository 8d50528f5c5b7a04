"""The engine: what a model server does with its calls, and when.

Rule: pure. Time comes in as integers of nanoseconds and goes out the same way; no clock, no I/O, no threads. Imports
numpy, `tailgauge.rows.schema` and the standard library only. A virtual driver and a real-time one run the same core.
"""
