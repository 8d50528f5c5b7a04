"""Traffic patterns as generators without I/O: one pattern a file."""
