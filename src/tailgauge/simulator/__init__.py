"""The simulated endpoint: a streaming LLM server that knows when it sent each chunk.

`core` decides what an answer consists of and when each part is due, without I/O. `http` sends it in real time, and
`tailgauge.dry_run` on a simulated clock. Independent of: clients, Locust, the analysis.
"""
