"""Prompt files: each is a plan, or a refusal that names file, line and what was expected."""

from __future__ import annotations

from fuzz.targets.prices import STREAMING
from fuzz.targets.scenario import FOLDER
from scenario.defects import defect
from scenario.mutations import PROMPTS

MESSAGES = b'{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}, {"role": "user", "content": [{"type": "text", "text": "And?"}]}], "output_tokens": 4, "system": "Be short."}\n'


def corpus() -> list[bytes]:
    return [PROMPTS.encode(), MESSAGES, MESSAGES + PROMPTS.encode()]


def check(data: bytes) -> None:
    (FOLDER / "prompts.jsonl").write_bytes(data)
    _, wrong = defect(STREAMING, [("traffic.*.prompts.file", "prompts.jsonl")], FOLDER)
    assert not wrong, wrong
