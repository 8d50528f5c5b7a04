"""The same patterns and policies against the simulated endpoint on a virtual clock: a run in seconds, nothing is sent."""
