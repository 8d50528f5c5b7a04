"""What a command's exit code means, as its help says it.

Rule: text for click, whose \\b keeps the lines as they are; errors.py holds the codes themselves.
"""

from __future__ import annotations

RUN = """\b
Exit codes, the first that holds; of several runs, the first of 2, 130, 4, 3, 1, 0:
  2    wrong usage or scenario
  130  interrupted (what was recorded is kept and reported)
  4    the target could not be used
  3    the run is INVALID, or rows were lost
  1    an SLO failed
  3    an SLO is inconclusive
  0    all well; DEGRADED alone changes nothing"""

COMPARE = """\b
Exit codes:
  2  wrong usage, or a folder without a run
  1  B is worse by more than the threshold
  3  inconclusive, or not comparable
  0  B is no worse"""

CALIBRATE = """\b
Exit codes:
  2    wrong usage, or a run that could not be made
  3    no rate passed, or the planned one did not
  130  interrupted: no certificate was stored
  0    the certificate names a rate"""

WORKER = """\b
Exit codes:
  0    the master let it go
  2    wrong usage
  3    the master vanished; what was recorded stays, and where is told
  4    no master answered, or it refused this worker
  130  interrupted"""

EXPERIMENT = """\b
Exit codes:
  2    wrong usage or scenario
  130  interrupted (answered by the runs that had ended)
  4    the target could not be used
  1    something was found: less room than needed, no model that meets the objectives, a disease
  3    no answer: too little was seen, or INVALID runs
  0    answered, and all well"""
