"""The live view of a run: web page, Prometheus metrics, terminal progress.

Input: the state of the master. Output: text and pages. Independent of: how a run is controlled.
"""
