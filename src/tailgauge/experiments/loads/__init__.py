"""A series of loads: plan it, measure and judge each load, search between them.

`run`: a run of one load as a few numbers. `judge`: whether a load holds. `search`: which loads to run next.
`limits`: the load that a known limit sustains. `planner`: the course that headroom, curve and calibrate share.
"""
