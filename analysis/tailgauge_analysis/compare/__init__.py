"""A/B comparison, between runs or in alternating blocks of one run: which variant is better, and how sure that is.

Comes in: folders of runs, or a steady stage. Goes out: JSON with a verdict per metric. Must not know: how it is rendered,
but for its terminal text and Markdown.
"""
