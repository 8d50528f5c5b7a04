"""Prompts from a file, a row per request: JSONL, a JSON array, or CSV.

    {"prompt": "Why is the sky blue?", "output_tokens": 80, "name": "sky", "tags": {"tenant": "a"}}
    {"prompt_tokens": 1200}
    {"messages": [{"role": "user", "content": "Why?"}], "system": "Be brief.", "tools": []}
    {"conversations": [{"from": "human", "value": "Why?"}, {"from": "gpt", "value": "Because."}]}

The whole file is read and checked before any traffic; errors name file, line and key. A worker gets rows with its
slices of the schedule, so only the master has the file. Checked rows wait in a temporary file; memory holds a few numbers of each.

Rows of ShareGPT files that cannot be asked are left out and counted, see sharegpt.py. A bad row of another file is an
error.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, ValidationError

from tailgauge.call import SYSTEM
from tailgauge.errors import ScenarioError, UsageError
from tailgauge.protocols.protocol import WireProtocol
from tailgauge.rows.disk import advice
from tailgauge.rows.schema import TURNS
from tailgauge.rows.text_file import (
    LARGEST_TABLE,
    MEBI,
    as_object,
    json_tree,
    no_number,
    table_values,
)
from tailgauge.schedule.settings import MAX_TOKENS
from tailgauge.schedule.sharegpt import (
    NO_CONVERSATIONS,
    NO_OBJECT,
    DroppedRows,
    OddRowError,
    conversation,
)
from tailgauge.table import Table, Tokens

CHARACTERS_PER_TOKEN = 4  # of ordinary English; only the size in the schedule rests on it
MEDIA = {
    "image": 1600,
    "image_url": 1600,
    "document": 3000,
    "file": 3000,
    "container_upload": 3000,
    "input_audio": 300,
    "audio_url": 300,
    "video_url": 3000,
}
AT_LEAST = 8  # rows of a user of a closed loop, where there are more users than rows
# text or messages, system?, tools?; prompt_tokens, output_tokens?, name?, tags?, later?
PromptRow = dict[str, Any]


def _not_blank(value: str) -> str:
    if not value.strip():
        raise ValueError
    value.encode()
    return value


_Text = Annotated[str, AfterValidator(_not_blank)]
_Objects = list[dict[str, Any]]
_TOKENS = f"a whole number from 1 to {MAX_TOKENS:,}"
_HOW = (
    "expected either prompt (text) or prompt_tokens (a size), or messages, or conversations; "
    "prompts.columns says which column is which"
)


class _Given(Table):
    """A row; `description` is what an error expects."""

    prompt: _Text | None = Field(None, description="some text")
    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    name: _Text | None = Field(None, description="some text")
    tags: Mapping[str, str] | None = Field(None, description="an object of texts")
    messages: _Objects | None = Field(None, description="a list of objects")
    system: _Text | _Objects | None = Field(None, description="some text or a list of blocks")
    tools: _Objects | None = Field(None, description="a list of objects")
    conversations: list[Any] | None = Field(None, description="a list of objects")


# What a row may ask; one without any of these asks nothing.
_CONTENTS = {"prompt", "prompt_tokens", "messages", "conversations"}


@dataclass(frozen=True)
class RowRules:
    """What becomes of a file's rows. `columns`: key and name in the file. `protocols` must be able to send them.

    `sessions`: a conversation is a session, else only its first question is asked; where they `grow`, each turn is one text.
    A `bounded` run needs to know the size of each picture.
    """

    columns: tuple[tuple[str, str], ...] = ()
    protocols: tuple[type[WireProtocol], ...] = ()
    sessions: bool = False
    grows: bool = False
    bounded: bool = False


class PromptRows:
    """The rows of a file by number, and their sizes: the mean of its turns, where a row has several."""

    def __init__(self, path: Path, rules: RowRules) -> None:
        """Read and check the whole file, and keep its rows in a temporary file. Raises ScenarioError and UsageError."""
        self.prompt_tokens = array("i")
        self.output_tokens = array("i")
        self.turns = array("i")
        self.dropped = DroppedRows()
        self._ends = array("q", [0])  # of the rows in the temporary file
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the rows
        weakref.finalize(self, self._file.close)
        try:
            for row, data in _read(path, rules, self.dropped):
                self._keep(row, data)
            self._file.flush()
        except OSError as error:
            raise UsageError(
                f"{path}: its rows: {advice(error, Path(tempfile.gettempdir()))}"
            ) from error
        if not len(self) and self.dropped.total:
            reason = f"none of its {self.dropped.total:,} rows can be sent: {self.dropped}"
            expected = "Expected a question from human or user in each conversation"
            raise ScenarioError(f"{path}: {reason}. {expected}")
        if not len(self):
            raise ScenarioError(f"{path}: has no rows with a question")

    def _keep(self, row: PromptRow, data: bytes) -> None:
        """Keep a checked row: its sizes here, and `data`, the row as JSON, in the temporary file.

        Of a conversation the sizes are means of its turns, rounded up; 0 output tokens: the row states
        none. UsageError if the rows are too large in all.
        """
        turns = [row, *row.get("later", ())]
        prompt_tokens = 0
        output_tokens = 0
        outputs = 0
        for turn in turns:
            prompt_tokens += turn["prompt_tokens"]
            if "output_tokens" in turn:
                output_tokens += turn["output_tokens"]
                outputs += 1
        self.prompt_tokens.append(math.ceil(prompt_tokens / len(turns)))
        self.output_tokens.append(math.ceil(output_tokens / max(1, outputs)))
        self.turns.append(len(turns))
        self._ends.append(self._ends[-1] + self._file.write(data))
        if self._ends[-1] > LARGEST_TABLE:
            raise UsageError(
                f"a prompt file with more than {LARGEST_TABLE // MEBI:,} MiB of prompts"
            )

    def __len__(self) -> int:
        return len(self.turns)

    def facts(self) -> dict[str, Any]:
        """Return what became of the file's rows, for run.json; of each reason the first rows by number."""
        return {
            "rows_read": len(self) + self.dropped.total,
            "usable": len(self),
            "dropped": dict(self.dropped.counts),
            "dropped_rows": {reason: list(rows) for reason, rows in self.dropped.rows.items()},
        }

    def __getitem__(self, number: int) -> PromptRow:
        begin = self._ends[number]
        end = self._ends[number + 1]
        row: PromptRow = json.loads(os.pread(self._file.fileno(), end - begin, begin))
        return row


def read_prompts(path: Path, rules: RowRules) -> PromptRows:
    """Return a prompt file, checked; raises ScenarioError with file and line. One that did not change is read once."""
    state = path.stat()
    return _cached_rows(path, rules, (state.st_ino, state.st_size, state.st_mtime_ns))


@lru_cache(maxsize=4)
def _cached_rows(path: Path, rules: RowRules, _: tuple[int, ...]) -> PromptRows:
    return PromptRows(path, rules)


def _read(path: Path, rules: RowRules, dropped: DroppedRows) -> Iterator[tuple[PromptRow, bytes]]:
    """Yield rows that can be sent, each also as JSON; those of a ShareGPT file that cannot are added to `dropped`.

    A ShareGPT file is one whose first row has conversations. ScenarioError with file and line for a bad row
    of another file.
    """
    columns = dict(rules.columns)
    is_csv = path.name.removesuffix(".gz").endswith(".csv")
    is_sharegpt = False
    for row_number, (line, value) in enumerate(table_values(path, is_json=not is_csv), 1):
        try:
            tree: dict[str, Any] = {}
            if isinstance(value, dict):
                tree = _keys(value, columns, is_csv=is_csv)
            if row_number == 1:
                is_sharegpt = "conversations" in tree
            # A row of a ShareGPT file with nothing in it that could be sent.
            if is_sharegpt and not _CONTENTS & tree.keys():
                dropped.add(NO_CONVERSATIONS if isinstance(value, dict) else NO_OBJECT, row_number)
                continue
            # Raises for a row that is no object.
            as_object(path, line, value, json.dumps(value, ensure_ascii=False))
            row = row_of(tree, rules, columns)
            yield row, json.dumps(row, ensure_ascii=False).encode()
        except OddRowError as odd:
            dropped.add(str(odd), row_number)
        except UnicodeEncodeError:  # JSON can hold lone surrogates, UTF-8 cannot
            raise ScenarioError(f"{path}:{line}: half of a surrogate pair is not text") from None
        except ValueError as error:
            raise ScenarioError(f"{path}:{line}: {error}") from None


def _keys(tree: dict[str, Any], columns: Mapping[str, str], *, is_csv: bool) -> dict[str, Any]:
    """Return the row under our keys."""
    row = {} if columns else tree
    for key, name in columns.items():
        if name in tree:
            row[key] = tree[name]
        elif is_csv:
            raise ValueError(f"column {name}: missing, but prompts.columns names it")
    if not is_csv:
        return row
    return _values(row)


def _values(cells: dict[str, str]) -> dict[str, Any]:
    """Return what the cells of a CSV file stand for; an empty one is no value."""
    out: dict[str, Any] = {}
    for key, cell in cells.items():
        if not cell.strip():
            continue
        is_size = key.endswith("_tokens") and cell.strip().isascii() and cell.strip().isdecimal()
        is_json = key not in {"prompt", "name"} and cell.lstrip()[:1] in {"[", "{"}
        if is_size:
            out[key] = int(cell)
        elif is_json:
            out[key] = json_tree(cell, no_number)
        else:
            out[key] = cell
    return out


def row_of(tree: dict[str, Any], rules: RowRules, columns: Mapping[str, str]) -> PromptRow:
    """Return a row as it is kept, under our keys; OddRowError where a conversation cannot be sent, else ValueError.

    `tree`: the row as it was read; `columns`: names in the file by key, for messages. A row has one of a
    prompt, messages, a conversation, or a size alone.
    """
    is_conversation = "conversations" in tree
    if is_conversation:
        tree = _with_known_keys(tree)
    try:
        fields = _Given.model_validate(tree).model_dump(exclude_none=True)
    except ValidationError as error:
        problem = error.errors()[0]
        if is_conversation:
            raise OddRowError(_odd_key(str(problem["loc"][0]))) from None
        raise ValueError(_explain(problem, columns)) from None
    contents = fields.keys() & {"prompt", "messages", "conversations"}
    # Beside messages a size is only a bound.
    is_sized = "prompt_tokens" in fields and contents != {"messages"}
    if is_conversation and not contents:
        raise OddRowError(NO_CONVERSATIONS)
    if len(contents) + is_sized != 1 or (is_sized and fields.keys() & {"system", "tools"}):
        raise ValueError(_HOW)
    row = _conversation(fields, rules) if "conversations" in fields else _sized(fields)
    for protocol in rules.protocols:
        if reason := protocol.refuses_content(row):
            raise ValueError(reason)
    if rules.grows and "messages" in fields:
        reason = "a turn of a session is one prompt"
        raise ValueError(f"messages: {reason}: set session.grow = false, or use prompt")
    if rules.bounded and "prompt_tokens" not in fields and _has_media(fields.get("messages", ())):
        reason = "because [guard] cannot bound a picture or a document"
        raise ValueError(f"prompt_tokens: expected a size, {reason}")
    return row


def _with_known_keys(tree: dict[str, Any]) -> dict[str, Any]:
    """Return a ShareGPT row with the keys that are known here: such files have an id and empty columns."""
    row = {}
    for key, value in tree.items():
        is_empty = value in _EMPTY_VALUES and key != "conversations"
        if key in _Given.model_fields and not is_empty:
            row[key] = value
    return row


_EMPTY_VALUES: tuple[Any, ...] = (None, "", "[]", [], {})


def _odd_key(key: str) -> str:
    """Return the reason of a ShareGPT row with a value that is not what the key expects."""
    expected = _Given.model_fields[key].description or _TOKENS
    verb = "are" if key.endswith("s") else "is"
    return f"whose {key} {verb} not {expected}"


def _conversation(fields: dict[str, Any], rules: RowRules) -> PromptRow:
    """Its questions; the size of an answer is that of the recorded one."""
    recorded = conversation(fields.pop("conversations"), whole=rules.sessions)
    if recorded.system is not None:
        fields.setdefault("system", recorded.system)
    rows = []
    for question in recorded.questions:
        turn: dict[str, Any] = {"prompt": question.text}
        if question.answer is not None:
            turn["output_tokens"] = _tokens(question.answer)
        rows.append(_sized({**turn, **fields}))
    if len(rows) == 1:
        return rows[0]
    return {**rows[0], "later": rows[1:]}


def _sized(fields: dict[str, Any]) -> PromptRow:
    """Return a row with its size; a system message in front becomes its system prompt.

    Without a stated size its tokens are estimated from the text. Raises ValueError for messages, a system
    prompt or tools that are not of their form.
    """
    row = {}
    for key, value in fields.items():
        name = "text" if key == "prompt" else key
        row[name] = value
    messages = row.get("messages")
    if messages is not None:
        _check_messages(messages)
        if messages[0]["role"] == SYSTEM and len(messages) > 1 and "system" not in row:
            row["system"], row["messages"] = messages[0]["content"], messages[1:]
    if "system" in row:
        _check_content("system", row["system"])
    for i, tool in enumerate(row.get("tools", ())):
        if not tool_name(tool):
            raise _unexpected("the name of a tool", f"tools[{i}].name", tool)
    if "prompt_tokens" not in row:
        pieces = [row.get("text"), row.get("system"), row.get("messages"), row.get("tools")]
        row["prompt_tokens"] = max(1, min(MAX_TOKENS, sum(map(_tokens, pieces))))
    return row


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool in a protocol's own form; empty without one."""
    function = tool.get("function")
    name = (function if isinstance(function, dict) else tool).get("name")
    return name if isinstance(name, str) else ""


def _check_messages(messages: list[dict[str, Any]]) -> None:
    if not messages:
        raise ValueError("messages: expected at least one message")
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise _unexpected("a role", f"messages[{i}].role", message.get("role"))
        if message.get("content") is not None or message.keys() <= {"role", "content"}:
            _check_content(f"messages[{i}].content", message.get("content"))


def _check_content(place: str, content: Any) -> None:
    if isinstance(content, str) and content.strip():
        return
    if not isinstance(content, list) or not content:
        raise _unexpected("some text or a list of blocks", place, content)
    for i, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise _unexpected("the type of a content block", f"{place}[{i}].type", block)
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            raise _unexpected("some text", f"{place}[{i}].text", block.get("text"))


def _unexpected(expected: str, place: str, value: Any, width: int = 80) -> ValueError:
    return ValueError(f"{place}: expected {expected}, got {str(value)[:width]!r}")


def _tokens(value: Any) -> int:
    """About how many tokens a text, a block, or a list of such has."""
    if isinstance(value, str):
        return math.ceil(len(value) / CHARACTERS_PER_TOKEN)
    if isinstance(value, dict):
        parts = [part for key, part in value.items() if key != "type"]
        return MEDIA.get(str(value.get("type"))) or _tokens(parts)
    if not isinstance(value, list):
        return 0
    return sum(map(_tokens, value))


def _has_media(value: Any) -> bool:
    if isinstance(value, dict):
        return value.get("type") in MEDIA or any(map(_has_media, value.values()))
    return isinstance(value, list) and any(map(_has_media, value))


def _explain(error: Any, columns: Mapping[str, str]) -> str:
    key = str(error["loc"][0])
    if error["type"] == "extra_forbidden":
        keys = ", ".join(_Given.model_fields)
        return f"unknown key {key[:80]!r}. Expected one of: {keys}; prompts.columns says which column is which"
    name = columns.get(key, key)
    if isinstance(error.get("ctx", {}).get("error"), UnicodeEncodeError):
        return f"{name}: half of a surrogate pair is not text"
    return str(_unexpected(_Given.model_fields[key].description or _TOKENS, name, error["input"]))


@dataclass(frozen=True, slots=True)
class DealtRows:
    """Which rows of a file each arrival of one traffic table gets."""

    rows: PromptRows
    first: Any  # by arrival: place of its first row
    order: Any  # row at each place
    stride: int  # from one turn to the next
    # Rows of a user of a closed loop, whose turns have no end; then from its first again.
    share: int

    def source(self, arrival: int, turns: int) -> PromptRow:
        """Return the row of the first turn; under `later` those of the turns after it, where there are any."""
        count = len(self.order)
        start = int(self.first[arrival])
        row = self.rows[self.order[start]]
        if "later" in row:
            return row
        different = count // math.gcd(self.stride, count)  # rows until the first comes round again
        turns = min(different, turns or self.share)
        later = []
        for turn in range(1, turns):
            place = (start + turn * self.stride) % count
            later.append(self.rows[self.order[place]])
        if not later:
            return row
        return {**row, "later": later}


def deal(rows: PromptRows, order: Any, is_of_table: Any, turns: Any) -> tuple[DealtRows, Any]:
    """Deal a file's rows to the arrivals that `is_of_table` marks: a row a turn, in their order, from the top again at the end.

    A conversation is a row of as many turns; `turns` becomes theirs. Also returned: arrivals for which the rows do not suffice
    without repeating. Users of a closed loop (no turns) begin with a row each and go on with those that the others leave; what
    is sent with a user stays small, however many users and rows there are.
    """
    count = len(rows)
    arrivals = int(is_of_table.sum())
    closed = not turns.any()
    in_one = max(rows.turns) > 1
    row_counts = is_of_table.astype(np.int64) * (1 if closed or in_one else turns)
    ends = np.cumsum(row_counts)
    starts = (ends - row_counts) % count
    if in_one:
        turns[is_of_table] = np.minimum(
            np.array(rows.turns, np.int32)[order[starts[is_of_table]]], TURNS
        )
    stride = arrivals if closed and arrivals < count else 1
    share = max(math.ceil(count / max(1, arrivals)), AT_LEAST)
    return DealtRows(rows, starts, order, stride, share), is_of_table & (ends > count)
