"""When requests arrive, and their sizes: the whole schedule of a run, drawn once from a seed.

Input: arrival settings, traces, prompt files. Output: arrays. Independent of: sockets, workers.
"""
