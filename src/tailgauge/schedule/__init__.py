"""When requests arrive and what each asks for: the whole schedule of a run, drawn once from a seed.

Comes in: arrival settings, traces, prompt files. Goes out: arrays. Must not know: sockets, workers.
"""
