"""A/B comparison, between runs or in alternating blocks of one run: which variant is better, and how sure that is.

Input: folders of runs, or a steady stage. Output: JSON with a verdict per metric. Independent of: how it is rendered,
but for its terminal text and Markdown.
"""
