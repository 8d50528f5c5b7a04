"""Experiments: what a run of one says, and the answer in every form that is read."""
