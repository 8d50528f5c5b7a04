"""The simulated endpoint in real time: aiohttp routes, and asyncio as the driver of the core.

Input: HTTP requests. Output: streams, the server log, /metrics. Independent of: what decides a due time.
"""
