"""What one request does: traffic patterns, as generators without I/O; hedge and retry policies.

Input: events of calls. Output: calls to send, waits, cancellations. Independent of: clocks, sockets, Parquet.
"""
