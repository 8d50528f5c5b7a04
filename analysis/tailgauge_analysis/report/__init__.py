"""The report: one renderer per format (page, Markdown, terminal, JSON, JUnit), and the figures.

Input: results of the sections. Output: files. Computes nothing that a section can.
"""
