"""A run as it is watched: web page, Prometheus metrics, terminal progress.

Comes in: the view of the master. Goes out: text and pages. Must not know: how a run is steered.
"""
