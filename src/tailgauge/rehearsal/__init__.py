"""A rehearsal: the traffic's own patterns and policies against the simulated endpoint, in virtual time."""
