"""Sockets, bytes and timestamps under the official SDKs.

Input: request bytes. Output: response bytes with arrival and read times. Independent of: protocols, patterns, rows.
"""
