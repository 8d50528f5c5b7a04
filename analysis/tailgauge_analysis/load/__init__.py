"""Run folders in; frames on the clock of the run out.

Must not know: what is computed from them.
"""
