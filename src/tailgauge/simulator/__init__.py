"""The simulated endpoint: a streaming LLM server that knows when it sent each chunk.

Rule: what it decides (latency, wire formats, token counts, refusals) is computed without I/O; `server`, `routes` and
`delivery` are the only files that touch sockets. Nothing here imports a client, Locust or the analysis.
"""
