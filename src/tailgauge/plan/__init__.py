"""What a run will do, checked before it starts: overrides, estimate, spend limits, preflight, certificate.

Comes in: a scenario and options. Goes out: resolved settings. Must not know: workers, Locust.
"""
