"""Run folders in, frames on the clock of the run out; damaged data becomes problems.

Independent of: what is computed from them.
"""
