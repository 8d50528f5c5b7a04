"""Scenarios, and the files that they name, with something wrong in them: drawn from a seed, each from its own number."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

from fuzz.mutator import Mutator

from tailgauge.scenario import prices
from tailgauge.scenario.model import Scenario, _keys
from tailgauge.scenario.packaged import names, packaged

VALUES = (
    "0", "-1", "1", "2", "-0.0", "0.5", "1e-9", "1e9", "1e308", "1e999", "nan", "inf", "-inf", "9" * 19, "9" * 40, "9" * 5000,
    "-" + "9" * 30, "0x" + "F" * 40, "0x" + "F" * 6000, "0o7", "1_000", "1_0__0", "01", "true", "false", '""', '" "', '"x"',
    '"\\u0000"', '"\\ud800"', '"é\\u202e"', "'" + "y" * 3000 + "'", '"""\nx\n"""', "[]", "[[]]", "[1]", "[1, 'a']", "{}", "{ a = 1 }",
    "{ a = { b = 1 } }", "[{}]", "[" * 30 + "]" * 30, "[" * 3000 + "]" * 3000, "{ a = " * 700 + "1" + " }" * 700, "2026-11-23",
    "2026-02-30", "07:32:00", "1979-05-27T07:32:00-08:00", "'closed'", "'trace'", "'poisson'", "'anthropic'", "'openai'", "'sse'",
    "'cached'", "'fan_out'", "'hedged'", "'batch'", "'progressive'", "'structured'", "'fixed'", "'second'", "'http://127.0.0.1:8000'",
    "'http://192.0.2.1'", "'https://user:pw@example.com'", "'http://[::1]:99999'", "'file:///etc/passwd'", "'ttft p95 < 800ms'",
    "'error_rate < 1%'", "'/dev/zero'", "'.'", "'../..'", "'prompts.jsonl'", "'prices.toml'", "'none'", "'" + "a" * 300 + "'",
)  # fmt: skip
KEYS = [".".join(path) for path in _keys(Scenario)]
TABLES = sorted({key.rpartition(".")[0] for key in KEYS} - {""})
SCHEMA = json.dumps(Scenario.model_json_schema())
CHOICES = {
    key: re.findall(r'"([^"]+)"', found)
    for key, found in re.findall(r'"(\w+)": \{[^{}]*?"enum": \[([^\]]*)\]', SCHEMA)
}
PROMPTS = '{"prompt": "Why is the sky blue?", "output_tokens": 8, "name": "sky", "tags": {"tenant": "a"}}\n{"prompt_tokens": 12}\n'
BYTES = (
    Mutator.flipped,
    Mutator.cut,
    Mutator.without_a_piece,
    Mutator.other_line,
    Mutator.odd_bytes,
)
_ENTRY = re.compile(r"^(\s*[\w.\"-]+\s*=)(.*)$", re.MULTILINE)


class Mutation:
    """Files to write, by name; `mine.toml` is the scenario."""

    def __init__(self, seed: int, number: int) -> None:
        self.name = f"{seed}-{number}"
        draw = self._draw = random.Random(self.name)
        source = packaged("scenarios") / f"{draw.choice(names())}.toml"
        scenario = source.read_text(encoding="utf-8")
        self.files: dict[str, bytes] = {}
        if draw.random() < 0.15:  # a file that the scenario names is wrong
            name, text = draw.choice(self._named())
            key = {"prompts.jsonl": "traffic.*.prompts.file", "prices.toml": "guard.prices"}.get(
                name, "arrival.trace.file"
            )
            self.pairs = [(key, name), *([("arrival.process", "trace")] if "trace" in key else [])]
            self.files = {"mine.toml": (packaged("scenarios") / "streaming.toml").read_bytes()}
            self.files[name] = self._mutated(text, 0.7)
        else:
            self.pairs = []
            self.files = {
                "mine.toml": self._mutated(scenario, 0.3),
                "prompts.jsonl": PROMPTS.encode(),
            }
            self.files["prices.toml"] = prices.PACKAGED.read_bytes()
            for path in (packaged("scenarios") / "traces").iterdir():
                self.files[f"traces/{path.name}"] = path.read_bytes()

    def write(self, folder: Path) -> Path:
        """Write the files; returns the scenario's."""
        for name, data in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        return folder / "mine.toml"

    def _named(self) -> list[tuple[str, str]]:
        traces = [
            (path.name, path.read_text()) for path in (packaged("scenarios") / "traces").iterdir()
        ]
        return [("prompts.jsonl", PROMPTS), ("prices.toml", prices.PACKAGED.read_text()), *traces]

    def _mutated(self, text: str, coarse: float) -> bytes:
        """One to three changes of keys and values, and, with the probability `coarse`, one of the bytes."""
        changes: tuple[Callable[[str], str], ...] = (
            self._value,
            self._value,
            self._scaled,
            self._scaled,
            self._chosen,
            self._chosen,
            self._added,
            self._key,
        )
        for _ in range(self._draw.choice((1, 1, 1, 2, 3))):
            text = self._draw.choice(changes)(text)
        data = text.encode("utf-8", "surrogatepass")
        if self._draw.random() >= coarse:
            return data
        return self._draw.choice(BYTES)(Mutator([data]), self._draw, data)

    def _value(self, text: str) -> str:
        """Another value of a key."""
        found = list(_ENTRY.finditer(text))
        if not found:
            return text
        one = self._draw.choice(found)
        return f"{text[: one.start()]}{one[1]} {self._draw.choice(VALUES)}{text[one.end() :]}"

    def _added(self, text: str) -> str:
        """A key that the scenario did not have, in front, where it is a key of the root."""
        key = self._draw.choice(KEYS).replace(
            "NAME", self._draw.choice(("chat", "main", "x", "0", '"a.b"', '""'))
        )
        return f"{key} = {self._draw.choice(VALUES)}\n{text}"

    def _chosen(self, text: str) -> str:
        """Another of the values that a key allows, in a table that has it."""
        key = self._draw.choice(sorted(CHOICES))
        entry = f"{key} = '{self._draw.choice(CHOICES[key])}'"
        found = re.search(rf"^{key}\s*=.*$", text, re.MULTILINE)
        if found:
            return text[: found.start()] + entry + text[found.end() :]
        headers = list(re.finditer(r"^\[.*\]$", text, re.MULTILINE))
        at = self._draw.choice(headers).end() if headers else 0
        return f"{text[:at]}\n{entry}\n{text[at:]}"

    def _scaled(self, text: str) -> str:
        """A number that is much larger or smaller."""
        found = list(re.finditer(r"(?<=[= ,\[])\d{1,15}(?:\.\d{1,15})?\b", text))
        if not found:
            return text
        one = self._draw.choice(found)
        number = float(one[0]) * self._draw.choice((0, 1e-6, 0.01, 0.5, 2, 10, 1e3, 1e6))
        new = str(number if "." in one[0] else round(number))
        return text[: one.start()] + new + text[one.end() :]

    def _key(self, text: str) -> str:
        """Another name of a key or table."""
        found = list(re.finditer(r"^\s*\[?([\w.\"-]+)", text, re.MULTILINE))
        if not found:
            return text
        one = self._draw.choice(found)
        name = one[1]
        at = self._draw.randrange(len(name))
        new = self._draw.choice(
            (
                name[:at] + name[at + 1 :],
                name[:at] + "x" + name[at:],
                self._draw.choice(KEYS),
                self._draw.choice(TABLES),
                "a." * self._draw.choice((9, 60, 9000)) + "b",
            )
        )
        return text[: one.start(1)] + new + text[one.end(1) :]
