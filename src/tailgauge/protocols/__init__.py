"""One wire protocol a file: requests through the official SDK, streams decoded into chunks.

Comes in: calls, payload bytes. Goes out: requests, chunks, usage. Must not know: why a call is sent.
"""
