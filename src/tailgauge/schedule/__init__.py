"""When requests arrive, and their sizes: the whole schedule of a run, drawn once from a seed.

Comes in: arrival settings, traces, prompt files. Goes out: arrays. Must not know: sockets, workers.
"""
