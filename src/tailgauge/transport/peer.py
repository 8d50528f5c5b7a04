"""What a port speaks, by the first bytes that come from it."""

from __future__ import annotations

import re

HTTP = "this port speaks HTTP without TLS"
TLS = "this port speaks TLS"
_FIRST_BYTES = (
    (re.compile(rb"HTTP/1|HTTP/0|<(?:!doctype|html|\?xml)", re.IGNORECASE), HTTP),
    (re.compile(rb"[\x15\x16]\x03[\x00-\x04]"), TLS),
    (re.compile(rb"SSH-"), "an SSH server answers here"),
    (re.compile(rb"220[ -].*ftp", re.IGNORECASE), "an FTP server answers here"),
    (re.compile(rb"220[ -]"), "a mail server answers here"),
    (re.compile(rb"-(?:ERR|NOAUTH|DENIED)\b"), "a Redis server answers here"),
    (re.compile(rb".\x00\x00\x00\x0a", re.DOTALL), "a MySQL server answers here"),
    (re.compile(rb"RFB \d"), "a VNC server answers here"),
    (re.compile(rb"\x00\x00.\x04\x00\x00\x00\x00\x00", re.DOTALL), "this port speaks HTTP/2 only"),
)
_LONGEST = 200  # bytes that are looked at


def peer_name(data: bytes) -> str:
    """Return what the peer is that sent these bytes first; empty where they tell nothing."""
    head = data[:_LONGEST]
    return next((name for pattern, name in _FIRST_BYTES if pattern.match(head)), "")
