"""The report: one renderer per format (page, Markdown, terminal, JSON, JUnit), and the figures.

Comes in: findings of the sections. Goes out: files. Must not compute what a section can.
"""
