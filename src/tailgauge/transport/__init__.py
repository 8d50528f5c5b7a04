"""Sockets, bytes and timestamps under the official SDKs.

Comes in: request bytes. Goes out: response bytes with arrival and read times. Must not know: protocols, patterns, rows.
"""
