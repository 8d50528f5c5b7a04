"""Redaction of secrets: which environment variables hold one, and text without them.

A value is a secret by its variable's name, or because the variable was configured as the one with a key. Text that looks
like a provider's key is redacted too. Redact before cutting a text; the beginning of a secret at the end of a text that was
cut elsewhere is redacted as well.
"""

from __future__ import annotations

import os
import re

MARK = "[redacted]"
MIN_SECRET = 8  # characters; shorter values may occur in any text
MIN_BEGINNING = 6  # first characters of a secret at the end of a text
SHORT = 90  # characters; shorter texts were not cut
_NAMES = re.compile(
    r"(?:^|_)KEYS?(?:$|_)|API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|CUSTOM_HEADERS", re.IGNORECASE
)
_LOOKS = re.compile(r"\b(sk-[A-Za-z0-9_-]{8,}|Bearer\s+[A-Za-z0-9._~+/=-]{8,})")
_named: set[str] = set()  # variables configured as the one with a key


def name_secret(variable: str) -> None:
    """Treat the value of this variable as a secret."""
    _named.add(variable)


def holds_secret(variable: str) -> bool:
    """Whether the value of a variable is a secret."""
    return variable in _named or _NAMES.search(variable) is not None


def environment(*, with_keys: bool) -> dict[str, str]:
    """The environment for a child process; secrets only for those that send requests."""
    return {name: value for name, value in os.environ.items() if with_keys or not holds_secret(name)}


class Redaction:
    """Removes the secrets that the environment held at its creation."""

    def __init__(self) -> None:
        values = {value.strip() for name, value in os.environ.items() if holds_secret(name)}
        self._secrets = sorted((value for value in values if len(value) >= MIN_SECRET), key=len, reverse=True)
        self._lower = [secret.lower() for secret in self._secrets]
        self._known = re.compile("|".join(map(re.escape, self._secrets)), re.IGNORECASE)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        lower = text.lower()
        if any(secret in lower for secret in self._lower):  # this test costs a tenth of the search
            text = self._known.sub(MARK, text)
        text = self._without_beginning(text)
        return _LOOKS.sub(MARK, text) if "sk-" in text or "Bearer" in text else text

    def each(self, texts: list[str]) -> list[str]:
        """Each text without secrets; as cheap as one text if all are short and clean, as usual."""
        whole = "\n".join(texts)
        if max(map(len, texts), default=0) < SHORT and self(whole) == whole:
            return texts
        return [self(text) for text in texts]

    def _without_beginning(self, text: str) -> str:
        """The text without the beginning of a secret at its end."""
        for secret in self._secrets:
            tail = text[1 - len(secret) :]
            at = tail.find(secret[:MIN_BEGINNING])
            while at >= 0:
                if secret.startswith(tail[at:]):
                    return text[: len(text) - len(tail) + at] + MARK
                at = tail.find(secret[:MIN_BEGINNING], at + 1)
        return text
