"""One wire protocol a file, from the server's side, and a row of the table in `wire`.

Input: JSON bodies, an answer's plan. Output: parsed requests, refusals, bytes. Independent of: clocks, sockets, limits
in force.
"""
