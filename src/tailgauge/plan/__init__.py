"""What a run will do, checked before it starts: overrides, estimate, spend limits, preflight.

Input: a scenario and options. Output: resolved settings. Independent of: workers, Locust.
"""
