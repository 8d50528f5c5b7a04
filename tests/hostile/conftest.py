"""A target that means harm, in a process of its own."""

from hostile.target import malicious

__all__ = ["malicious"]
