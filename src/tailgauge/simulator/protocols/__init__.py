"""One wire protocol a file, from the server's side, and a row of the table in `wire`.

Comes in: JSON bodies, an answer's plan. Goes out: parsed requests, refusals, bytes. Must not know: clocks, sockets, limits
in force.
"""
