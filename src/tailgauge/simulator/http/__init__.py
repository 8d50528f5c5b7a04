"""The simulated endpoint in real time: aiohttp routes, and asyncio as the driver of the core.

Comes in: HTTP requests. Goes out: streams, the server log, /metrics. Must not know: what decides a due time.
"""
