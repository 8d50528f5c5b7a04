"""The record: schema, recorder, Parquet parts, the run folder, also in an object store.

Input: rows. Output: files. Independent of: who wrote a row, and why.
"""
