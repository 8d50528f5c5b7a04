"""The command line: arguments in, one line per mistake, exit codes out.

Comes in: argv. Goes out: text, exit codes. Must not know: how anything is measured or computed.
"""
