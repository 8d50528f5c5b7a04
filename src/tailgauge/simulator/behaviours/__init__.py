"""One behaviour of the endpoint a file: faults, limits, prefix cache, stragglers, contents, prices, a proxy.

Comes in: a table of the scenario, a seed, and the time of each decision. Goes out: decisions. Must not know: protocols, the
engine, who drives it.
"""
