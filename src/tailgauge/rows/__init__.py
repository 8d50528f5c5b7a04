"""The record: schema, recorder, Parquet parts, the run folder.

Input: rows. Output: files. Independent of: who wrote a row, and why.
"""
