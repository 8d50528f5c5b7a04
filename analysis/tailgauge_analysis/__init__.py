"""Parquet in; tables, verdicts, figures and reports out. Never imports locust or gevent."""
