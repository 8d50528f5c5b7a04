"""Drives the traffic patterns in real time, on greenlets and real sockets."""
