"""API keys: which one a target gets, and that none of them reaches a row, a log or a message.

Rule: a key comes from the environment. It goes to the provider's own host over TLS, or where `target.api_key_env`
says; every other target gets a placeholder, because the SDKs would send the provider's key to any base URL.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tailgauge.errors import TargetError

PLACEHOLDER = "unused"
_SECRET_NAME = re.compile(r"(API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL)", re.IGNORECASE)
_SECRET_TEXT = re.compile(r"\b(sk-[A-Za-z0-9_-]{8,}|Bearer\s+[A-Za-z0-9._~+/=-]{8,})")


def key_for(url: str, provider_host: str, provider_variable: str, named_variable: str | None) -> str:
    """The key to send to `url`. Raises TargetError naming the variable that is missing."""
    parts = urlsplit(url)
    at_provider = parts.scheme == "https" and parts.hostname == provider_host
    variable = named_variable or (provider_variable if at_provider else None)
    if variable is None:
        return PLACEHOLDER
    key = os.environ.get(variable, "").strip()
    if not key:
        why = "target.api_key_env names it" if named_variable else f"{provider_host} wants a key"
        raise TargetError(
            f"no API key: the environment variable {variable} is not set ({why}). Set it and run again"
        )
    if any(ord(c) < 33 or ord(c) > 126 for c in key):
        raise TargetError(f"the API key in {variable} has characters that no key has (spaces, line ends?)")
    return key


@contextmanager
def hidden(variables: tuple[str, ...], *, unless: bool) -> Iterator[None]:
    """Environment variables that an SDK would read and send, out of its sight while its client is built."""
    saved = {} if unless else {name: os.environ.pop(name) for name in variables if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)


def redact(text: str) -> str:
    """`text` without any secret of this process's environment, and without what looks like a key."""
    for name, value in os.environ.items():
        if len(value) >= 8 and _SECRET_NAME.search(name):
            text = text.replace(value, "[redacted]")
    return _SECRET_TEXT.sub("[redacted]", text)
