"""Messages over Locust's channel, their authentication, and child processes.

Comes in and goes out: messages. Must not know: what they mean.
"""
