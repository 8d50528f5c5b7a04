"""What one request does: one traffic pattern a file, as generators without I/O; hedge and retry policies.

Comes in: events of calls. Goes out: calls to send, waits, cancellations. Must not know: clocks, sockets, Parquet.
"""
