"""What one request does: one traffic pattern per file, as generators without I/O; hedge and retry policies.

Input: events of calls. Output: calls to send, waits, cancellations. Independent of: clocks, sockets, Parquet.
"""
