"""Secrets of the environment: which variables hold one, and text without any of them.

Rule: a value is a secret by the name of its variable, or because that variable was named as the one with a key. What
looks like a provider's key is taken for one. A secret is replaced before its text is cut to a length, and where somebody
else has cut it before, its beginning is: no part of a key stays.
"""

from __future__ import annotations

import os
import re

MARK = "[redacted]"
MIN_SECRET = 8  # characters; shorter values are words that may stand in any text
MIN_BEGINNING = 6  # of a secret's first characters, where a text ends with them
SHORT = 90  # characters; nobody cuts a text as short as that
_NAMES = re.compile(
    r"(?:^|_)KEYS?(?:$|_)|API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|CUSTOM_HEADERS", re.IGNORECASE
)
_LOOKS = re.compile(r"\b(sk-[A-Za-z0-9_-]{8,}|Bearer\s+[A-Za-z0-9._~+/=-]{8,})")
_named: set[str] = set()  # variables of any name that were named as one with a key


def name_secret(variable: str) -> None:
    """From now on the value of this variable is a secret of this process."""
    _named.add(variable)


def holds_secret(variable: str) -> bool:
    """Whether the value of a variable is a secret."""
    return variable in _named or _NAMES.search(variable) is not None


def environment(*, with_keys: bool) -> dict[str, str]:
    """The environment for a child process; secrets only for those that send requests."""
    return {name: value for name, value in os.environ.items() if with_keys or not holds_secret(name)}


class Redaction:
    """Takes the secrets out of texts: those that the environment held when it was made."""

    def __init__(self) -> None:
        values = {value.strip() for name, value in os.environ.items() if holds_secret(name)}
        self._secrets = sorted((value for value in values if len(value) >= MIN_SECRET), key=len, reverse=True)
        self._lower = [secret.lower() for secret in self._secrets]
        self._known = re.compile("|".join(map(re.escape, self._secrets)), re.IGNORECASE)

    def __call__(self, text: str) -> str:
        """The text without secrets."""
        lower = text.lower()
        if any(secret in lower for secret in self._lower):  # a look for each costs a tenth of the search
            text = self._known.sub(MARK, text)
        text = self._without_beginning(text)
        return _LOOKS.sub(MARK, text) if "sk-" in text or "Bearer" in text else text

    def each(self, texts: list[str]) -> list[str]:
        """Each text without secrets; at the price of one where they are short and hold none, as they mostly do."""
        whole = "\n".join(texts)
        if max(map(len, texts), default=0) < SHORT and self(whole) == whole:
            return texts
        return [self(text) for text in texts]

    def _without_beginning(self, text: str) -> str:
        """The text without a secret's beginning at its end, where it was cut in the middle of one."""
        for secret in self._secrets:
            tail = text[1 - len(secret) :]
            at = tail.find(secret[:MIN_BEGINNING])
            while at >= 0:
                if secret.startswith(tail[at:]):
                    return text[: len(text) - len(tail) + at] + MARK
                at = tail.find(secret[:MIN_BEGINNING], at + 1)
        return text


def redact(text: str) -> str:
    """The text without any secret that the environment holds now."""
    return Redaction()(text)
