"""One wire protocol per file, from the server's side, and its row in the table of `wire`.

Input: JSON bodies, an answer's plan. Output: parsed requests, refusals, bytes. Independent of: clocks, sockets, limits
in force.
"""
