"""What a file seems to be that cannot be read as TOML in UTF-8: its encoding, its format, the line of the fault.

The texts are for a user who gave the wrong file, or made a slip in the right one. A line is shown without secrets.
`text_file` reads such files.
"""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import dataclass
from tomllib import TOMLDecodeError

from tailgauge.redaction import MARK, known, secret_like
from tailgauge.sanitize import plain

LONGEST_SHOWN = 100  # characters of a line
SAVED = "Save it as UTF-8"  # where the file is text
_MARKED = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
_FORMATS = (
    (b"\x1f\x8b", "a gzip file"),
    (b"PK\x03\x04", "a zip file"),
    (b"\x7fELF", "a program"),
    (b"MZ\x90\x00", "a program"),
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"%PDF", "a PDF file"),
    (b"PAR1", "a Parquet file"),
    (b"\xd0\xcf\x11\xe0", "a Microsoft Office file"),
    (b"SQLite format 3", "an SQLite file"),
    (b"\x28\xb5\x2f\xfd", "a zstd file"),
)
_CONTROLS = re.compile(rb"[\x00-\x08\x0b\x0e-\x1a\x1c-\x1f]")
_BY_SUFFIX = {
    ".json": "JSON",
    ".jsonl": "JSON",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".py": "Python",
    ".md": "Markdown",
    ".html": "HTML",
    ".xml": "XML",
    ".js": "JavaScript",
    ".ts": "JavaScript",
    ".sh": "a shell script",
    ".csv": "CSV",
    ".ipynb": "a notebook",
}
# By the first line that is no comment.
_BY_LINE = (
    (re.compile(r"<!doctype html|<html", re.IGNORECASE), "HTML"),
    (re.compile(r"<"), "XML"),
    (re.compile(r"\{"), "JSON"),
    (re.compile(r"import .* from ['\"]|(?:const|let|var) \w+ ?=|export "), "JavaScript"),
    (
        re.compile(r"(?:import|from) [\w.]+(?: import .*| as \w+)?$|(?:def|class) \w+.*:$|@\w+"),
        "Python",
    ),
    (re.compile(r"---$|- |[\w./-]+:(?: |$)"), "YAML"),
    (re.compile(r"```|[*>] |!?\[[^\]]*\]\("), "Markdown"),
)
_STRINGS = re.compile(
    r"""\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}.*?'{3}|(?<!")"(?!"")(?:[^"\\\n]|\\.)*"|(?<!')'(?!'')[^'\n]*'|\#[^\n]*""",
    re.DOTALL,
)
_PLACE = re.compile(r" ?\((?:at )?(?:line (\d+), column (\d+)|end of document)\)$")
_REPEATED = re.compile(r"Cannot (?:declare|mutate|overwrite|define|redefine)\b")
_PAIR = re.compile(r"""([\w.-]+)["']?\s*[=:]\s*["']?([^"',}\]]*)""")
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_UNIT = re.compile(r"(-?\d[\d_]*\.?\d*)\s?([a-zA-Z%]+)\s*(?:#|$)")
_HEADER = re.compile(r"^[ \t]*\[\[?[\w.-]+\]\]?[ \t]*(?:#.*)?$", re.MULTILINE)  # of a table in TOML
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_BEGINS = re.compile(r"\s*(?:\[+[\w.-]+\]|[\w.-]+\s*=)")  # a table or a key
_BARE = re.compile(r"[A-Za-z/~.][^\s#\"']*")


def beginning_problem(data: bytes) -> str:
    """Return why a file that begins with these bytes is no UTF-8 text; empty where its first bytes do not say."""
    for mark, name in _MARKED:
        if data.startswith(mark):
            return f"line 1: not UTF-8 text: it begins with the mark of {name}. {SAVED}"
    for begin, name in _FORMATS:
        if data.startswith(begin):
            return f"not UTF-8 text: it seems to be {name}"
    return ""


def encoding_problem(data: bytes) -> str:
    """Return why these bytes are no UTF-8 text, what they seem to be, and in which line; empty where they are one."""
    problem = beginning_problem(data)
    if problem:
        return problem
    # The place of the first byte that is no text: a 0, or one that is not UTF-8.
    try:
        data.decode("utf-8")
        place = data.find(0)
        if place < 0:
            return ""
    except UnicodeDecodeError as error:
        place = error.start
    line = data.count(b"\n", 0, place) + 1
    if _is_wide(data):
        return f"line {line}: not UTF-8 text: it seems to be UTF-16. {SAVED}"
    if _CONTROLS.search(data):
        return "not UTF-8 text: this is a binary file"
    # Only Windows-1252 has characters for these bytes.
    guess = "Windows-1252" if re.search(rb"[\x80-\x9f]", data) else "Latin-1"
    character = data[place : place + 1].decode("cp1252", "replace")
    problem = f"byte 0x{data[place]:02x} would be {character!r} in {guess}, which it seems to be"
    return f"line {line}: not UTF-8 text: {problem}. {SAVED}"


def _is_wide(data: bytes) -> bool:
    """Return whether every second byte of a text is 0, as in UTF-16 without a mark."""
    head = data[:400]
    halves = (head[::2], head[1::2])
    return len(head) > 3 and any(half.count(0) > 0.7 * len(half) for half in halves)


def format_of(text: str, suffix: str) -> str:
    """Return the format that a text seems to have that is no TOML; empty where nothing tells."""
    if _HEADER.search(text):
        return ""
    lines = [line.strip() for line in text.splitlines()]
    statements = [line for line in lines if line and not line.startswith("#")]
    start = statements[0] if statements else ""
    if start.startswith("[") and _is_json(text):
        return "JSON"
    by_line = next((name for pattern, name in _BY_LINE if pattern.match(start)), "")
    if by_line:
        return by_line
    if lines and lines[0].startswith("#!"):
        return "a shell script"
    is_prose = "=" not in start and re.match(r"[A-Z]?\w+,? \w+,? \w+", start)
    return _BY_SUFFIX.get(suffix.lower(), "a text" if is_prose else "")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


@dataclass(frozen=True, slots=True)
class Fault:
    """What `tomllib` refused, and where: line and column count from 1."""

    text: str
    reason: str
    number: int
    column: int

    @property
    def lines(self) -> list[str]:
        """The lines of the text, at least one."""
        return self.text.split("\n")

    @property
    def line(self) -> str:
        """The line of the fault."""
        return self.lines[self.number - 1]

    @property
    def preceding_text(self) -> str:
        """The text in front of the fault."""
        return "\n".join([*self.lines[: self.number - 1], self.line[: self.column - 1]])

    def moved(self, position: int, reason: str) -> Fault:
        """Return the fault with another place and in other words."""
        number = self.text.count("\n", 0, position) + 1
        return Fault(self.text, reason, number, position - self.text.rfind("\n", 0, position))

    def named(self, reason: str) -> Fault:
        """Return the fault in other words."""
        return Fault(self.text, reason, self.number, self.column)


def toml_problem(text: str, error: TOMLDecodeError) -> str:
    """Return what of a TOML text is wrong, in which line, with that line and a caret below its place."""
    text = text.replace("\r\n", "\n")
    place = _PLACE.search(str(error))
    reason = _PLACE.sub("", str(error))
    fault = Fault(text, reason, text.count("\n") + 1, len(text) - text.rfind("\n"))
    if place is not None and place[1] is not None:
        fault = Fault(text, reason, int(place[1]), int(place[2]))
    for explain in (_open_text, _repeated, _backslash, _open_bracket, _no_statement, _value):
        explained = explain(fault)
        if explained is not None:
            return f"line {explained.number}: {explained.reason}{_line_with_caret(explained.line, explained.column)}"
    problem = plain(f"{reason[:1].lower()}{reason[1:]}", LONGEST_SHOWN)
    return f"line {fault.number}: {problem}{_line_with_caret(fault.line, fault.column)}"


def _open_text(fault: Fault) -> Fault | None:
    """Return a text without its closing quote."""
    if "string" not in fault.reason and "Illegal character" not in fault.reason:
        return None
    multiline = re.search(r"\"{3}|'{3}", _masked(fault.text))
    if multiline is not None:
        return fault.moved(
            multiline.start(), f"the text that begins here has no closing {multiline[0]}"
        )
    quote = re.search("[\"']", _masked(fault.line))
    if quote is None:
        return None
    begin = len(fault.text.split("\n", fault.number - 1)[-1])
    position = len(fault.text) - begin + quote.start()
    return fault.moved(position, "the text that begins here has no closing quote")


def _repeated(fault: Fault) -> Fault | None:
    """Return a table or a key that is there already."""
    if not _REPEATED.match(fault.reason):
        return None
    head = _statement(fault.line)
    name = _name(head)
    advice = "remove one of them, or give it another name"
    for number, line in enumerate(fault.lines[: fault.number - 1], 1):
        if _name(_statement(line)) == name:
            return fault.named(f"{name} is there already, in line {number}: {advice}")
    return fault.named(f"{name} is there already: {advice}")


def _statement(line: str) -> str:
    """Return the line without its comment."""
    return line.split("#", maxsplit=1)[0].strip()


def _name(statement: str) -> str:
    """Return the header of a table, or the key in front of the equals sign."""
    if statement.startswith("["):
        return statement
    return statement.partition("=")[0].strip()


def _backslash(fault: Fault) -> Fault | None:
    if "escape" not in fault.reason.lower() and "Unescaped" not in fault.reason:
        return None
    return fault.named("a backslash in double quotes needs a second one: \\\\")


def _open_bracket(fault: Fault) -> Fault | None:
    """Return a bracket that is still open at the place of the fault."""
    opening = _opened("\n".join(fault.lines[: fault.number - 1]))
    if opening is not None and fault.text[opening] == "[" and _BEGINS.match(fault.line):
        return _unclosed(fault, opening)
    position = _opened(fault.preceding_text)
    if position is None:
        return None
    if fault.text[position] == "{" and "key part" in fault.reason:
        advice = "a table in { } stays on one line; or write it as [name] with its keys below"
        return fault.moved(position, advice)
    if not re.search("Unclosed|Expected|end of document", fault.reason):
        return None
    return _unclosed(fault, position)


def _unclosed(fault: Fault, position: int) -> Fault:
    """Return the fault at a bracket without its end."""
    bracket = fault.text[position]
    closing = "]" if bracket == "[" else "}"
    return fault.moved(position, f"the {bracket} that opens here has no closing {closing}")


def _opened(text: str) -> int | None:
    """Return the position of the last bracket that is open at the end of a text; None without one."""
    positions = []
    for position, character in enumerate(_masked(text)):
        if character in "[{":
            positions.append(position)
        elif character in "]}" and positions:
            positions.pop()
    if not positions:
        return None
    return positions[-1]


def _no_statement(fault: Fault) -> Fault | None:
    if not re.search("Invalid statement|Expected '=|Expected ']'", fault.reason):
        return None
    return fault.named("expected a table as [target], or a key as name = value")


def _value(fault: Fault) -> Fault | None:
    """Return the fault in other words, if the line is a key with a value that is no TOML, or with something behind it.

    `fault.reason` is the message of `tomllib`. None: it is none of these, and other rules may explain it.
    """
    key, equals, value = fault.line.partition("=")
    name = key.strip()
    value = value.strip()
    # The value is over, and the line goes on.
    is_behind = fault.reason.startswith("Expected newline")
    unit = _UNIT.match(value)
    date = _DATE.match(value)
    if date is not None and is_behind:
        return fault.named(f"{date[0]} is no date")
    if equals and not value:
        return fault.named(f"{name} has no value")
    if equals and unit is not None and is_behind:
        return fault.named(f"a number has no unit: write {name} = {unit[1]}{_unit_of(name)}")
    if equals and fault.reason == "Invalid value":
        return _bare_word(fault, name, value)
    if is_behind:
        return fault.named("expected the end of the line here")
    return None


def _bare_word(fault: Fault, name: str, value: str) -> Fault | None:
    """Return a word without quotes."""
    if value.lower() in {"true", "false"}:
        return fault.named(f"write {name} = {value.lower()}")
    word = _BARE.match(value)
    if word is None:
        return None
    if secret_like(name, word[0]) or _USER.search(word[0]):
        return fault.named("text needs quotes")
    return fault.named(f'text needs quotes: write {name} = "{word[0]}"')


def _unit_of(name: str) -> str:
    if name.endswith("_ms"):
        return " (milliseconds)"
    if name.endswith("_s") and not name.endswith("per_s"):
        return " (seconds)"
    return ""


def _masked(text: str) -> str:
    """Return the text with its strings and comments blanked, of the same length."""
    return _STRINGS.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _line_with_caret(line: str, column: int) -> str:
    """Return the line and a caret, on lines of their own; without a value that may be a secret."""
    tabs = line.expandtabs(1)
    clean = _without_secrets(tabs)
    if clean != tabs:
        return f"\n  {plain(clean, LONGEST_SHOWN)}"
    begin = max(0, column - LONGEST_SHOWN + 10)
    piece = re.sub(r"[^ -~\u00a1-\uffff]", "?", tabs[begin : begin + LONGEST_SHOWN])
    if not piece.strip():
        return ""
    return f"\n  {piece.rstrip()}\n  {' ' * (column - 1 - begin)}^"


def _without_secrets(line: str) -> str:
    """Return the line, cut before the first value that may be a secret."""
    for name, value in _PAIR.findall(line):
        if secret_like(name, value.strip() or "?"):
            return f"{line.partition('=')[0]}= {MARK}"
    if any(secret_like("", word) for word in re.split(r"[\s\"',={}\[\]]+", line) if word):
        return f"{line.partition('=')[0]}= {MARK}"
    return known()(_USER.sub(f"{MARK}@", line))
