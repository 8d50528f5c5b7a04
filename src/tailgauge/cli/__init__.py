"""The command line: arguments in, one line per mistake, exit codes out.

Input: argv. Output: text, exit codes. Independent of: how anything is measured or computed.
"""
