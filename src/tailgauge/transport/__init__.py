"""The stopwatch: sockets, bytes and timestamps under the official SDKs."""
