"""The live view of a run: web page, Prometheus metrics, terminal progress.

Comes in: the state of the master. Goes out: text and pages. Must not know: how a run is controlled.
"""
