"""The words that Tailgauge does not use, what it says instead, and where a tree uses them all the same.

Identifiers, file names, columns, JSON keys, options and headings are split at `_`, `-`, `.` and capitals; each part is
compared with WORDS. Prose (docs, names of tests, help, report texts, messages, docstrings, comments) is searched for PHRASES.
"""

from __future__ import annotations

import ast
import io
import json
import keyword
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Inflections, and what to write instead.
WORDS: dict[str, str] = {
    "told tell tells telling retold untold": "text, summary, render, report, message",
    "said say says saying": "text, summary, message",
    "spoken speak speaks spoke speaking": "text, message",
    "hear hears heard hearing": "receive, received",
    "ask asks asking": "request",
    "words wording": "text (as data flow)",
    "owner owners owned": "master",
    "crew crews": "workers",
    "hands member members": "worker, workers",
    "home homes brought": "delivered, transferred to the master",
    "stood stand stands standing": "stalled, client stall",
    "borne": "allowed, tolerated",
    "ail ails ailing ailment disease diseases": "bottleneck, problem",
    "rehearsal rehearsals rehearse rehearses rehearsed rehearsing virtual virtually": "dry run",
    "law laws": "distribution, latency model",
    "arm arms armed arming": "variant; crossover blocks",
    "truth truths true": "ground truth, server log",
    "room rooms house houses arrow arrows": "package, folder, capacity, dependency",
    "quiet ring rings rang alarm alarms alarmed": "alert fires, alert would not fire; timer",
    "undecided": "inconclusive",
    "own owns": "self-hosted, custom, user-defined",
    "handover handovers": "receive lag",
    "way ways": "yield; path",
    "winding": "drain",
    "joining": "late join",
    "opener openers": "http_get",
    "fate fates": "outcome, outcomes",
    "filler fillers": "prompts",
    "foreign": "sanitize; unknown",
    "breach breaches breached": "protocol violations",
    "outlet outlets": "proxy writer",
    "presence": "in flight",
    "likeness": "comparability",
    "shelf shelves": "store",
    "trial trials": "calibration run",
    "uncut": "survival quantiles",
    "twice": "dedup",
}
BANNED = {word: instead for group, instead in WORDS.items() for word in group.split()}

# Whole class names: the thing itself instead (LiveVerdict, ProbeResult, RateLimitKind, Estimate, TrafficSpec ...).
CLASSES = {"SoFar", "Looks", "Look", "Seen", "Made", "Both", "Held", "Kind", "Kinds", "About", "Asked", "Use", "Line", "Lines", "Level", "Levels"}  # fmt: skip

# Prose. Each is a regular expression, in any case.
PHRASES: dict[str, str] = {
    r"\bthe owner\b|\bowners?'s?\b|\bits owner\b|\bowner of (a|the) run\b": "the master",
    r"\bcrews?\b": "workers",
    r"\b(brought|brings?|bring|on (its|their|the) way|comes?|came|went|goes|go|all|are|is) home\b": "delivered, transferred to the master",
    r"\bstood still\b|\bstands? still\b|\bstanding still\b|\bheld up\b|\bholds? up\b(?! to\b)|\bholding up\b": "stalled",
    r"\bborne\b|\bis bearable\b": "allowed",
    r"\bails?\b|\bdiseases?\b": "bottleneck, problem",
    r"\brehears(al|als|e|es|ed|ing)\b": "dry run",
    r"\bvirtual (run|time|clock|target|worker)s?\b|\bin virtual\b": "dry run, simulated clock",
    r"\blaws? of (latency|time)\b|\blatency laws?\b|\ba law\b|\bthe law\b|\bby (a|its|their) law\b": "distribution, latency model",
    r"\barms?\b": "variant A / variant B; crossover blocks",
    r"\b(take|takes|took|taking) turns\b|\bin turns\b": "alternating blocks",
    r"\bthe truth\b|\btruth log\b|\bits truth\b|(?<!ground )\btruths\b": "ground truth, server log",
    r"\brooms? below\b|\bthe rooms?\b|\bof the house\b|\bin the house\b|\bhouse rules?\b|\bengine room\b": "package, folder, layout",
    r"\bsurely quiet\b|\balarms?\b|\b(would |will )?rings?\b|\brang\b": "alert fires, alert would not fire",
    r"\bundecided\b|\b(could|can|cannot|can) (not )?be told\b|\bis told\b|\bare told\b|\bwas told\b|\bwere told\b|\bnothing is said\b|\bis said\b|\bare said\b": "inconclusive; say what was reported",
    r"\bone['’]s own\b|\b(engine|target|endpoint|metric|pattern|model)s? of (its|their|your) own\b": "self-hosted, custom, user-defined",
    r"\btr(y|ies) a call\b|\btries per call\b|\blegs a request\b|\btokens a chunk\b|\bcalls a request\b|\brequests a second\b|\ba call\b(?= \d)": "attempts per call, legs per request, tokens per chunk",
    r"\bhand-?over\b|\bhanded over\b": "receive lag; pass",
    r"\bg(ives?|iving|ave) way\b": "yield",
    r"\bw(inds?|inding|ound) up\b": "drain",
    r"\bfates?\b": "outcome",
    r"\bfillers?\b": "prompts",
    r"\bforeign (text|file|certificate|rows?|words?)\b": "sanitized text; of another run",
    r"\bbreach(es|ed)?\b": "protocol violations",
    r"\blikeness\b": "comparability",
    r"\bshel(f|ves)\b": "store",
    r"\btrials?\b": "calibration run",
    r"\buncut\b": "survival quantiles",
    r"\bto people\b|\bas people read\b(?! them)": "in reports",
    r"\bhad nobody left\b|\bnobody had left\b": "estimate without abandonment (Kaplan-Meier)",
    r"\bworth naming\b": "to report",
    r"\blets? (it|them) go\b": "release",
    r"\blook(s|ed)? an? \w+ over\b": "diagnose",
    r"\bin the words of\b": "as defined by",
    r"\bwhat (load does|was asked, what happened|moved together)\b": "latency under load; requests; correlated factors",
    r"\bfast enough for what\b": "fit by use case",
    r"\bcame in a bunch\b|\bin a bunch\b": "buffered",
    r"\bhardly varied\b": "not estimated (no variation)",
    r"\btokens' worth\b": "token equivalents",
    r"\bso far as it did not\b|\bas things stand\b": "(delete)",
}  # fmt: skip
PATTERNS = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in PHRASES.items()]

SUFFIXES = {".py", ".md", ".jinja", ".html", ".toml", ".js", ".css", ".yml"}
SPLIT = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
IDENTIFIER = re.compile(r"-{0,2}[A-Za-z_][A-Za-z0-9_]*([.-][A-Za-z0-9_]+)*")
SCRIPT = re.compile(r"<(script|style)\b([^>]*)>(.*?)</\1>", re.DOTALL)  # of a page
HEADING = re.compile(
    r"^\s*#{1,6} +(.+)$|<(?:h[1-6]|caption|summary|th)\b[^>]*>(.+?)<", re.MULTILINE
)


# What is right in its place: word or whole name, path (regular expressions), reason.
EXCEPTIONS: list[tuple[str, str, str]] = [
    (r".*", r"tests/project/(test_)?words\.py", "the table itself and its tests"),
    (
        r"words",
        r"tests/(project/test_report_texts|end_to_end/test_every_scenario|experiments/test_calibrate)\.py",
        "the module of the table",
    ),
    (
        r"words",
        r"(src/tailgauge|tests)/(channel|prompts|plan|dry_run|simulator|worker|master|real_engine)/.*",
        "the words that generated prompts are made of, and how many make a token",
    ),
    (
        r"HOME",
        r"tests/(gateways/litellm_proxy|starting/shell)\.py",
        "the variable of the environment",
    ),
    (r"presence_penalty", r"src/tailgauge/plan/input_bound\.py", "a parameter of APIs"),
    (r"owned_by", r"tests/end_to_end/test_other_shapes\.py", "a field of a list of models"),
    (r"arrow", r".*", "pyarrow"),
    (
        r"store_true|break_long_words|build_opener|OpenerDirector|tell|--quiet",
        r".*",
        "the standard library and pip",
    ),
    (
        r"owned_by|presence_penalty|owned",
        r"(src|tests|src/tailgauge)/simulator/.*|src/tailgauge/protocols/additions\.py|tests/end_to_end/recorder\.py",
        "fields of the OpenAI protocol",
    ),
]


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One use of a word: where it stands, the name or sentence, the word in it, what to write instead."""

    path: str
    line: int
    text: str
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.word!r}; write: {self.instead}"


def parts(name: str) -> list[str]:
    """Words of a name, in lower case: `RateLimitKind` and `rate_limit_kind` are three."""
    return [part.lower() for part in SPLIT.findall(name)]


def in_name(name: str) -> Iterator[tuple[str, str]]:
    """Banned words of a name, each with what to write instead; `ground_truth` is allowed."""
    if name in {"true", "True"}:
        return
    found = parts(name)
    for before, word in zip(["", *found], found, strict=False):
        if word in BANNED and (before, word) not in {("ground", "truth"), ("ground", "truths")}:
            yield word, BANNED[word]


def in_prose(text: str) -> Iterator[tuple[int, str, str]]:
    """Phrases of the list: the line of each within the text, what stands there, what to write instead."""
    for pattern, instead in PATTERNS:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()), match[0], instead


def scan(root: Path, path: Path) -> Iterator[Finding]:
    """Every finding in one file: its name, then what it holds."""
    name = path.relative_to(root).as_posix()
    for word, instead in in_name(path.stem):
        yield Finding(name, 0, path.name, word, instead)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _python(name, text)
    else:
        yield from in_document(name, text)


def _python(name: str, text: str) -> Iterator[Finding]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        line = token.start[0]
        if token.type == tokenize.NAME and token.string.startswith(
            "test_"
        ):  # a sentence, not a name
            for _, phrase, instead in in_prose(token.string.replace("_", " ")):
                yield Finding(name, line, token.string, phrase, instead)
        elif token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            for word, instead in in_name(token.string):
                yield Finding(name, line, token.string, word, instead)
        elif token.type == tokenize.COMMENT:
            for extra, phrase, instead in in_prose(token.string):
                yield Finding(name, line + extra, token.string[:80], phrase, instead)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name.strip("_") in CLASSES:
            yield Finding(name, node.lineno, node.name, node.name, "the thing itself")
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _string(name, node.lineno, node.value)


def _string(name: str, line: int, value: str) -> Iterator[Finding]:
    if IDENTIFIER.fullmatch(value):
        for word, instead in in_name(value):
            yield Finding(name, line, value, word, instead)
    else:
        for extra, phrase, instead in in_prose(value):
            shown = value.split("\n")[extra].strip()[:100]
            yield Finding(name, line + extra, shown, phrase, instead)


def in_document(name: str, text: str) -> Iterator[Finding]:
    """Findings in the text of a page, a report or a help text, by the suffix of its name."""
    for match in HEADING.finditer(text) if name.endswith((".md", ".html", ".jinja")) else ():
        heading = match[1] or match[2] or ""
        for word, instead in in_name(re.sub(r"`[^`]*`|\{\{.*?\}\}|<[^>]*>", "", heading)):
            yield Finding(name, text.count("\n", 0, match.start()) + 1, heading, word, instead)
    lines = text.split("\n")
    for line, phrase, instead in in_prose(text):
        yield Finding(name, line + 1, lines[line].strip()[:100], phrase, instead)


def in_report(folder: Path, terminal: str) -> list[str]:
    """Findings in what a user sees of one report: page, texts of its figures, Markdown, report.json, terminal."""
    page, text, data = (
        (folder / f"report.{suffix}").read_text(encoding="utf-8")
        for suffix in ("html", "md", "json")
    )
    figures = [json.loads(one[3]) for one in SCRIPT.finditer(page) if "application/json" in one[2]]
    documents = {
        "report.html": SCRIPT.sub("", page),
        "figures": "\n".join(_texts(figures)),
        "report.md": text,
        "report.json": "\n".join(_texts(json.loads(data))),
        "terminal": terminal,
    }
    short = [
        name for name, content in documents.items() if len(content) < 100 and name != "figures"
    ]
    assert not short, short  # else nothing would be searched
    return sorted(
        {str(one) for name, content in documents.items() for one in in_document(name, content)}
    )


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def is_excepted(finding: Finding, exceptions: list[tuple[str, str, str]] = EXCEPTIONS) -> bool:
    """Whether one of the exceptions covers a finding: its word or its whole name, and its path, match."""
    return any(
        re.fullmatch(path, finding.path)
        and any(re.fullmatch(name, one, re.IGNORECASE) for one in (finding.word, finding.text))
        for name, path, _ in exceptions
    )


def scan_tree(root: Path, *places: str) -> list[Finding]:
    """Every finding in the files below `places` that git tracks; `*.min.js` is the code of others."""
    line = ["git", "ls-files", "-z", "--", *places]
    names = subprocess.run(line, cwd=root, check=True, capture_output=True, text=True).stdout.split(
        "\0"
    )
    files = [
        root / name
        for name in names
        if Path(name).suffix in SUFFIXES
        and not name.endswith(".min.js")
        and (root / name).is_file()
    ]
    return sorted({finding for file in files for finding in scan(root, file)})


if __name__ == "__main__":
    for one in scan_tree(Path.cwd(), *(sys.argv[1:] or ["."])):
        if not is_excepted(one):
            print(one)
