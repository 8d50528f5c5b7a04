"""The table of metrics and objectives, and what is computed for each.

Input: frames. Output: values with intervals, of the steady stage. Independent of: sections and formats.
"""
