"""Messages over Locust's channel, their authentication, and child processes.

Input and output: messages. Independent of: what is done about them.
"""
