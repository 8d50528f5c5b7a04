"""Clocks of a worker: timers of the hub, and its offset from the master."""
