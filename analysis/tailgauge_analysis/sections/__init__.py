"""One section of the report per file or folder. In: frames of one run. Out: findings, their part of report.json, their text.

`findings.py` computes all of them once, in order. A section knows no format (HTML, Markdown, terminal) and no other run.
"""
