"""Headroom: which rate is sustained, which limit binds, and how much the traffic may grow."""
