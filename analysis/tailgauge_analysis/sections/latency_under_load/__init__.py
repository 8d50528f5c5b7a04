"""Latency under load: where slow requests lose their time, and the cost of tokens and concurrency."""
