"""One wire protocol per file: requests through the official SDK, streams decoded into chunks.

Input: calls, payload bytes. Output: requests, chunks, usage. Independent of: why a call is sent.
"""
