"""How the endpoint behaves: faults, limits, prefix cache, stragglers, contents, prices, a gateway.

Input: a table of the scenario, a seed, and the time of each decision. Output: decisions. Independent of: protocols, the
engine, who drives it.
"""
