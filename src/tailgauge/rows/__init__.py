"""The record: schema, recorder, Parquet parts, the run folder.

Comes in: rows. Goes out: files. Must not know: who wrote a row, and why.
"""
