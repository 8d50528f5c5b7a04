"""Run folders in, frames on the clock of the run out; damaged data becomes problems.

Must not know: what is computed from them.
"""
