"""Redaction of secrets: what is one, what looks like one, and text without them.

`shown` is the one way from a peer's text into a row, a message, a log or an error: it redacts, then cuts. The value of a
variable is a secret by where it came from: the variable's name, or because the scenario names it. What the value looks like
decides only whether its parts go, too. No text of a peer keeps 8 characters in a row of a value of 16 characters or more, in
any case, wherever it was cut before; nor in base64, percent-encoded, with the escapes of JSON or HTML, or in other characters
of the same meaning. The words in a value may occur in any text: they stay, where they stand alone. In our own texts, which
hold names, columns and numbers, the parts of a value of digits, or of a path, stay as well.

Text that looks like a provider's key is redacted too. A target that means harm has the key already: what it could do to hide
it from this search, and from no reader, has no end.
"""

from __future__ import annotations

import base64
import html
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import AnyStr
from urllib.parse import unquote

from tailgauge.sanitize import harmless

MARK = "[redacted]"
MIN_SECRET = 8  # characters; shorter values may occur in any text
FRAGMENT = 8  # and so may shorter parts of a secret
MIN_BEGINNING = 6  # first characters of a secret at the end of a text
_APART = 16  # characters of a value whose parts tell it apart
_PIECE = 4  # bytes; every run holds a whole one, counted from the beginning of its text
# Levels at which a text is searched: as it is, and with 1, 2 and 3 levels of its escapes undone.
_LEVELS = 4
_REMEMBERED = 256  # texts that were shown last: models, stop reasons, names of headers
# How long a value is that may be a key, in characters.
MIN_RANDOM = 20
MAX_RANDOM = 250
# Characters of a part of it: longer than words with digits in them, and longer than words.
_WORD = 12
_LONG = 16
_WORK = 1000  # characters beyond those shown that are redacted too, so that no cut is near what is shown
_NAMES = re.compile(
    r"(?i)(?:^|_)KEYS?(?:$|_)|API_?KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|CUSTOM_HEADERS"
)
_LOOKS = re.compile(r"\b(sk-[A-Za-z0-9_-]{8,}|Bearer\s+[A-Za-z0-9._~+/=-]{8,})")
# A field of these names holds a secret; of the next, one whose value is random; of those behind, none of that look.
_SECRET_NAME = re.compile(
    r"(?:api|access|private|secret|auth|subscription|account|master|admin|signing|encryption|app|service|client"
    r"|functions?|license)keys?$|passw(?:or)?d$|passphrase$|pwd$|secrets?$|credentials?$|authorization$|cookie$|jwt$|bearer$"
    r"|(?<!stop)(?<!end)(?<!start)(?<!first)(?<!last)(?<!next)(?<!eos)(?<!bos)(?<!pad)(?<!unk)(?<!mask)(?<!sep)(?<!page)"
    r"(?<!special)(?<!continuation)(?<!max)(?<!min)(?<!per)token$"
)
_MAY_BE_SECRET = re.compile(
    r"(?<!idempotency)(?<!cache)(?<!websocket)(?<!partition)(?<!routing)(?<!public)keys?$"
    r"|tokens$|auth$|sig(?:nature)?$|sas$|env$"
)
_IS_NO_SECRET = re.compile(
    r"(?:ids?|trace|traceparent|tracestate|hash|digest|sha\d*|md5|etag|match|checksum|key|cursor|baggage)$"
)
# Of a name: what it is, is before.
_KIND_OF_VALUE = re.compile(r"(?:value|text|string|header|base64|b64|raw)$")
_SECRET_VALUE = re.compile(
    r"\b(?:sk-(?=[\w-]*\d)[\w-]{8,}|[srp]k_(?:live|test)_\w{8,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
    r"|xox[abeoprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}\b|AIza[\w-]{30,}|ya29\.[\w-]{20,}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?:hf|gsk|r8|npm)_\w{20,}|nvapi-[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]+)|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|^(?i:Bearer\s+\S{8,}|(?:Basic|Token|ApiKey)\s+(?=\S*[\d=])\S{8,})$"
)
_USER = re.compile(r"://[^/@\s:]+:[^/@\s]+@")
_QUERY = re.compile(r"[?&]([^=&#\s]+)=([^&#\s]+)")
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PLACEHOLDERS = re.compile(r"(?:\{[a-z_]+\}|\W)*")
# How a character may be written: percent, JSON, Python, HTML.
_HEX = "[0-9A-Fa-f]"
_ESCAPE = re.compile(  # its first character is of one class: only so is the search fast
    rf"[%\\&](?:(?<=%)(?:25)*(?:u00)?({_HEX}{{2}})"
    rf"|(?<=\\)\\{{0,31}}(?:u({_HEX}{{4}})|u\{{0*({_HEX}{{1,5}})\}}|x({_HEX}{{2}}))|(?<=\\)(.)"
    r"|(?<=&)(?:amp;)*(#?\w{2,30};?))"
)
_CONTROLS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}  # what JSON writes as a letter
# Kinds of characters that nobody sees, or only on others.
_UNSEEN = {
    "Mn",
    "Me",
    "Cc",
    "Cf",
    "Zl",
    "Zp",
}
# Words of 5 letters and more in keys that people choose, and in what providers, engines and this program write.
_VOCABULARY = re.compile(
    "[a-z]*(?:access|account|action|admin|anthropic|arrival|assistant|attempt|author|backend|balance|batch|bearer|bench|bucket|budget"
    "|build|cache|censor|change|choice|chunk|claude|client|cluster|compl|config|connect|contain|content|context|count|creden"
    "|custom|debug|default|delta|deploy|develop|docker|document|dummy|endpoint|engine|error|event|example|fail|fallback"
    "|finish|format|function|gateway|group|header|hedge|hello|hidden|history|image|index|input|intern|invalid|invoke|label"
    "|large|latency|letme|limit|llama|local|logger|login|logprob|machine|master|message|method|metric|mistral|model|monitor"
    "|needed|normal|number|object|openai|option|organi|output|overload|owner|param|passw|permi|person|placeholder|platform"
    "|private|process|produc|profile|project|prompt|provid|proxy|public|query|quota|reason|refus|region|release|replace"
    "|request|reset|respon|result|retry|reuse|sample|sandbox|scenario|schedul|second|secret|server|service|session|setting"
    "|share|simple|simul|smoke|something|source|stage|start|state|status|storage|stream|string|support|system|tailgauge"
    "|target|templat|tenant|testing|think|thread|timeout|token|traffic|unique|update|upstream|usage|value|vendor"
    "|version|worker|workspace)[a-z]*"
)
_values: set[str] = set()  # that came from elsewhere than the environment
_named: set[str] = set()  # variables configured as one with a secret


def name_secret(variable: str) -> None:
    """Treat the value of this variable as a secret."""
    if variable not in _named:
        _named.add(variable)
        forget()


def name_value(value: str) -> None:
    """Treat this text as a secret."""
    if value not in _values:
        _values.add(value)
        forget()


def forget() -> None:
    """Read the environment again before the next text."""
    known.cache_clear()
    _shown.cache_clear()


def holds_secret(variable: str) -> bool:
    """Return whether the value of a variable is a secret."""
    return variable in _named or _NAMES.search(variable) is not None


def secret_like(name: str, field_value: str | int) -> str:
    """Return what of a field looks like a secret: its "name", its "value", or a "query" in it; empty where nothing does."""
    value = str(field_value)
    is_number = not isinstance(field_value, str)
    label = _KIND_OF_VALUE.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))
    # A number under a name such as max_token counts tokens.
    if _PLACEHOLDERS.fullmatch(value) or (is_number and label.endswith("token")):
        return ""
    if _SECRET_NAME.search(label):
        return "name"
    if "://" in value or value.startswith("/"):
        for key, text in _QUERY.findall(value):
            if secret_like(unquote(key), unquote(text)):
                return "query"
    is_secret = (
        _SECRET_VALUE.search(value)
        or (_MAY_BE_SECRET.search(label) and _is_opaque(value))
        or (label != "url" and _USER.search(value))
        or (not _IS_NO_SECRET.search(label) and _is_random_text(value))
    )
    return "value" if is_secret else ""


def _is_opaque(value: str) -> bool:
    """Return whether a word of letters and digits means nothing: neither a UUID nor the name of a variable."""
    if _UUID.fullmatch(value):
        return False
    longest = max(re.split(r"[-_.:/\s]", value), key=len)
    if len(longest) < _LONG:
        return False
    return bool(re.search(r"\d", longest)) and any(map(str.islower, longest))


def _is_random_text(value: str) -> bool:
    """Return whether a value is one word of random letters and digits, as keys are, and no text in base64."""
    if not re.fullmatch(rf"[\w+/=.~-]{{{MIN_RANDOM},{MAX_RANDOM}}}", value):
        return False
    longest = max(re.split(r"[-_.:/+=~]", value), key=len)
    kinds = re.sub(r"[a-z]", "a", re.sub(r"[A-Z]", "A", re.sub(r"\d", "0", longest)))
    changes = sum(kind != other and kind + other != "Aa" for kind, other in pairwise(kinds))
    if len(longest) < _WORD or len(set(kinds)) < 3 or changes < len(longest) / 4:
        return False
    try:
        text = base64.b64decode(value + "=" * (-len(value) % 4), altchars=b"-_").decode()
    except ValueError:
        return True
    return not text.isprintable()


def environment(*, with_keys: bool) -> dict[str, str]:
    """Return the environment for a child process; secrets only for those that send requests."""
    variables = dict(os.environ)
    if not with_keys:
        for name in filter(holds_secret, os.environ):
            del variables[name]
    return variables


def printable(text: str) -> str:
    """Return a text of ours as it may leave: without secrets and control characters, which errors and paths may hold."""
    return harmless(known()(text))


def shown(text: str | bytes, size: int) -> str:
    """Return the beginning of a peer's text, without secrets and without lone surrogates, which no file can hold."""
    return _shown(text[: 4 * size + _WORK], size)


@lru_cache(_REMEMBERED)
def _shown(text: str | bytes, size: int) -> str:
    if isinstance(text, str):
        data = text.encode("utf-8", "replace")
    else:
        data = text
    return known().of_peer(data.decode("utf-8", "replace"))[:size]


@cache
def known() -> Redaction:
    """Of the secrets that this process knows."""
    return Redaction()


class Redaction:
    """Removes the secrets that the environment held at its creation."""

    def __init__(self) -> None:
        """Collect the secrets of the environment and those that were named, in every form in which they may be repeated.

        Values that are too short are no secrets. Later changes of the environment are not seen.
        """
        values = set(_values)
        for name in filter(holds_secret, os.environ):
            values.add(os.environ[name].strip())
        forms: list[str] = []
        # The parts of secrets that are removed from every text.
        self._fragments: set[str] = set()
        # The parts that are removed from what a peer (a target) has sent: those and more.
        self._peer_fragments: set[str] = set()
        for value in values:
            if len(value) >= MIN_SECRET:
                # Also fills both sets of fragments.
                forms += self._add(value)
        self._peer_fragments |= self._fragments
        self._forms = sorted(set(forms))
        # Four bytes each, at every place of a form, as numbers: a text is read in steps of four. Fragments are parts of forms, so
        # a text without any piece has no secret.
        self._quick_pieces: set[int] = set()
        for form in forms:
            pieces = _at_every_place(form.encode("utf-8", "replace"), _PIECE)
            self._quick_pieces.update(map(_number, pieces))

    def _add(self, value: str) -> list[str]:
        """Add the parts of a secret that tell it apart; returns its forms."""
        plain = _plain_forms(value)
        encoded = list(_encoded_forms(value))
        for form in encoded:
            self._fragments.update(_at_every_place(form, FRAGMENT))
        for form in plain:
            for piece in _VOCABULARY.split(form):
                if _is_random(piece):
                    self._fragments.update(_at_every_place(piece, FRAGMENT))
                elif len(value) >= _APART:
                    self._peer_fragments.update(_at_every_place(piece, FRAGMENT))
        return plain + encoded

    def __call__(self, text: str) -> str:
        """A text of ours without secrets."""
        return self._without(text, self._spans(text, self._fragments))

    def of_peer(self, text: str) -> str:
        """Return a peer's text without secrets and their parts."""
        return self._without(text, self._spans(text, self._peer_fragments))

    def spans_of_peer(self, text: str) -> list[tuple[int, int]]:
        """Return where a peer's text has a secret, or what looks like a provider's key: begins and ends, which may overlap."""
        secrets = list(self._spans(text, self._peer_fragments))
        return secrets + [match.span() for match in _LOOKS.finditer(text)]

    @staticmethod
    def _without(text: str, spans: Iterator[tuple[int, int]]) -> str:
        """Return the text with a mark in place of each span, or of several that touch."""
        parts: list[str] = []
        covered = 0  # up to here the text is in `parts` or under a mark
        for begin, end in sorted(spans):
            if begin > covered or not parts:
                parts += [text[covered:begin], MARK]
            covered = max(covered, end)
        text = "".join([*parts, text[covered:]])
        if "sk-" in text or "Bearer" in text:
            text = _LOOKS.sub(MARK, text)
        return text

    def _spans(self, text: str, fragments: set[str]) -> Iterator[tuple[int, int]]:
        """Yield where a secret stands, as the text is or with its escapes undone; spans may overlap."""
        places: Sequence[int] = range(len(text) + 1)
        if not self._quick_pieces:
            return
        for _ in range(_LEVELS):
            low, low_places = _folded(text, places)
            if self._may_hold(low):
                for begin, end in self._spans_in(low, fragments):
                    yield low_places[begin], low_places[end]
            if not ("%" in text or "\\" in text or "&" in text):
                return
            text, places = _unescaped(text, places)

    def _may_hold(self, low: str) -> bool:
        """Return a quick test: whether it has a piece of a secret. One of another secret's form may do."""
        data = low.encode("utf-8", "replace")
        numbers = memoryview(data[: len(data) // _PIECE * _PIECE]).cast("I")
        return (
            not self._quick_pieces.isdisjoint(numbers)
            or _number(data[-_PIECE:]) in self._quick_pieces
        )

    def _spans_in(self, low: str, fragments: set[str]) -> Iterator[tuple[int, int]]:
        """Yield where parts of secrets and whole secrets stand, and a secret's beginning at the end of the text."""
        for place in range(len(low) - FRAGMENT + 1):
            if low[place : place + FRAGMENT] in fragments:
                yield place, place + FRAGMENT
        for form in self._forms:
            place = low.find(form)
            while place >= 0:
                yield place, place + len(form)
                place = low.find(form, place + 1)
            for length in range(len(form) - 1, MIN_BEGINNING - 1, -1):
                if low.endswith(form[:length]):
                    yield len(low) - length, len(low)
                    break


def _plain_forms(value: str) -> list[str]:
    """Return a secret as it may be repeated, in lower case: as text, and as its bytes."""
    data = value.encode("utf-8", "surrogateescape")
    return [_folded(form, range(len(form) + 1))[0] for form in (value, data.decode("latin-1"))]


def _encoded_forms(value: str) -> Iterator[str]:
    """Yield a secret in base64, in lower case, behind 0, 1 or 2 bytes of something else."""
    data = value.encode("utf-8", "surrogateescape")
    for padding in range(3):
        padded = bytes(padding) + data
        # Six bits are a character: only those that are of the secret alone count.
        begin = -(-8 * padding // 6)
        end = 8 * len(padded) // 6
        for text in (base64.b64encode(padded), base64.urlsafe_b64encode(padded)):
            yield text[begin:end].decode().lower()


def _at_every_place(form: AnyStr, length: int) -> Iterator[AnyStr]:
    """Yield the parts of so many characters or bytes, which overlap."""
    return (form[place : place + length] for place in range(len(form) - length + 1))


def _number(piece: bytes) -> int:
    return int.from_bytes(piece, sys.byteorder)


def _is_random(form: str) -> bool:
    """Return whether parts of it tell it apart in a text of ours too, which has words, numbers and paths."""
    if form.startswith(("/", "~", ".")) or form.isdigit():
        return False
    return any(map(str.isdigit, form))


@lru_cache(4096)
def _fold(character: str) -> str:
    """Return a character in lower case and in its plain form; empty where nobody sees it."""
    plain = unicodedata.normalize("NFKD", character).lower()
    return "".join([part for part in plain if unicodedata.category(part) not in _UNSEEN])


def _folded(text: str, places: Sequence[int]) -> tuple[str, Sequence[int]]:
    """Text in one form of the many in which it may be written; `places` as in `_unescaped`."""
    if text.isascii() and text.isprintable():
        return text.lower(), places
    parts = []
    origins: list[int] = []
    for place, character in zip(places, text, strict=False):
        part = _fold(character)
        parts.append(part)
        origins += [place] * len(part)
    return "".join(parts), [*origins, places[len(text)]]


def _unescaped(text: str, places: Sequence[int]) -> tuple[str, list[int]]:
    """Text with one level of its escapes undone; `places`: where each character begins in the original, and its end."""
    parts: list[str] = []
    origins: list[int] = []
    end = 0
    for match in _ESCAPE.finditer(text):
        begin = match.start()
        plain = _meant(match)
        parts += [text[end:begin], plain]
        origins += [*places[end:begin], *[places[begin]] * len(plain)]
        end = match.end()
    return "".join([*parts, text[end:]]), [*origins, *places[end:]]


def _meant(escape: re.Match[str]) -> str:
    """Return the characters that an escape stands for."""
    *codes, escaped, entity = escape.groups()
    code = next(filter(None, codes), None)
    if code:
        return chr(int(code, 16))
    if entity:
        return html.unescape(f"&{entity}")
    return _CONTROLS.get(escaped, escaped or "")
