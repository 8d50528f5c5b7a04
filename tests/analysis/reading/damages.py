"""Run folders with something wrong in them: drawn from a seed, each from its own number."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

VALUES = (
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**62, 2**63, -(2**63), 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ", "x",
    "4", "nan", "\x00", "\x1b[31m", "\ud800", "é\u202e", "../../x", "/dev/zero", "y" * 100_000, "<script>alert(1)</script>", [], [None],
    [[]], [{}], [1, "a"], {}, {"": None}, {"a": {"b": [1]}}, ["x"] * 5000, "running", "complete", "lost", "2026-11-23T00:00:00.000Z", "9999-99-99",
)  # fmt: skip
RAW = (
    "9" * 5000,
    "-" + "9" * 19,
    "1e999",
    "NaN",
    "[" * 90_000,
    '{"a":' * 500 + "1" + "}" * 500,
    "[" * 39 + "]" * 39,
    '"\\ud800"',
    "",
    "}",
    "01",
    '"\\u0000"',
)
BILLS = (  # as `iterations`, `phases`, `tool_ready` and others have them
    '[{"type": "message", "model": "x", "input_tokens": -9223372036854775808, "output_tokens": 9223372036854775807}]',
    '[{"type": "message", "input_tokens": 1e308, "output_tokens": -0.5, "cache_read_input_tokens": "x"}, 5, null, []]',
    '{"a": 9223372036854775807, "b": -9223372036854775808, "c": 1e308, "d": -1e308}',
    '{"x-ratelimit-limit-requests": "1e308", "x-ratelimit-remaining-requests": "-1", "x-ratelimit-reset-requests": "1e30d"}',
)
EVIL = (
    "<script>alert(1)</script><img src=x> | `a` [l](javascript:alert(1)) \x1b[31m\u202e"
    + "y" * 3000
)
JUNK = (  # in the place of any value of a record
    None, "x", EVIL, 0, -1, 10**30, 10**400, 1.5, 1e308, float("nan"), float("inf"), float("-inf"), True, [], [None], [{}], {},
    {"": None}, {"": -3}, {"requests": None},
)  # fmt: skip
NAMES = (
    b"part-0-\xff.parquet",
    b"\xff\xfe",
    b"part-0-99999999999.parquet",
    "part-٣-0.parquet".encode(),
    b"part-999999-0.parquet",
    b"a\nb",
    b"\x1b[31m.tmp",
    b"part-0-0.parquet.tmp",
    b"-rf",
    b"x" * 250,
)


def change_parts(folder: Path, table: str, changed: Callable[[pa.Table], pa.Table]) -> None:
    """Write the parts of a table again with changed rows."""
    for path in (folder / table).glob("part-*.parquet"):
        rows = pq.read_table(path)
        pq.write_table(changed(rows).replace_schema_metadata(rows.schema.metadata), path)


def set_cells(name: str, value: Any, every: int) -> Callable[[pa.Table], pa.Table]:
    """A change of the first row of a column and of each so manieth one after it."""

    def changed(rows: pa.Table) -> pa.Table:
        at = rows.column_names.index(name)
        cells = rows.column(at).to_pylist()
        cells[::every] = [value] * len(cells[::every])
        field = pa.field(name, rows.schema.field(at).type)
        return rows.set_column(at, field, pa.array(cells, field.type))

    return changed


class Damage:
    """What is done to a copy of a run; `other` is a sound run. `done` says what, in words."""

    def __init__(self, seed: int, number: int) -> None:
        self.name = f"{seed}-{number}"
        self._draw = random.Random(self.name)
        self.done: list[str] = []

    def apply(self, folder: Path, other: Path) -> None:
        """One to three kinds of damage."""
        self._folder, self._other = folder, other
        kinds: tuple[Callable[[Path], str], ...] = (
            self._cut, self._cut, self._flip, self._flip, self._gone, self._swap, self._odd, self._odd, self._stray, self._locked,
            self._columns, self._columns, self._cells, self._cells, self._rows, self._marks, self._json, self._json, self._json, self._raw,
        )  # fmt: skip
        for _ in range(self._draw.choice((1, 1, 2, 3))):
            files = sorted(
                path
                for path in folder.rglob("*")
                if path.is_file() and path.suffix in {".parquet", ".json"}
            )
            if not files:
                return
            kind, path = self._draw.choice(kinds), self._draw.choice(files)
            if kind in (self._columns, self._cells, self._rows, self._marks):
                path = self._draw.choice(
                    [one for one in files if one.suffix == ".parquet"] or [path]
                )
            elif kind in (self._json, self._raw):
                path = self._draw.choice([one for one in files if one.suffix == ".json"] or [path])
            with suppress(
                pa.ArrowException, OSError, ValueError, KeyError, TypeError
            ):  # of a file that is damaged already
                self.done.append(
                    f"{path.relative_to(folder)}: {kind.__name__.strip('_')} {kind(path)}"
                )

    def _cut(self, path: Path) -> str:
        data = path.read_bytes()
        at = self._draw.choice(
            (0, 1, 4, 8, len(data) // 2, len(data) - 1, self._draw.randrange(len(data) + 1))
        )
        more = self._draw.choice((b"", b"", b"\0" * 999, b"no table at all\n" * 50))
        path.write_bytes(data[:at] + more)
        return f"at {at}"

    def _flip(self, path: Path) -> str:
        data = bytearray(path.read_bytes())
        last = len(data) if self._draw.random() < 0.5 else min(len(data), 3000)
        for _ in range(
            self._draw.choice((1, 5, 50)) if data else 0
        ):  # often in the footer, at the end
            data[-1 - self._draw.randrange(last)] ^= 1 << self._draw.randrange(8)
        path.write_bytes(bytes(data))
        return ""

    def _gone(self, path: Path) -> str:
        if self._draw.random() < 0.3 and path.parent != self._folder:
            shutil.rmtree(path.parent)
            return "with its folder"
        path.unlink()
        return ""

    def _swap(self, path: Path) -> str:
        name = path.relative_to(self._folder)
        files = sorted(one for one in self._other.rglob("*") if one.suffix == path.suffix)
        source = (
            self._other / name
            if self._draw.random() < 0.6 and (self._other / name).exists()
            else self._draw.choice(files)
        )
        target = (
            path
            if self._draw.random() < 0.7
            else path.with_name(f"part-{self._draw.randrange(9)}-7.parquet")
        )
        shutil.copy(source, target)
        return f"by {source.relative_to(self._other)} as {target.name}"

    def _odd(self, path: Path) -> str:
        """Something else in a file's or a folder's place."""
        if self._draw.random() < 0.2 and path.parent != self._folder:
            path = path.parent
            shutil.rmtree(path)
        else:
            path.unlink()
        kind = self._draw.choice(
            ("fifo", "zero", "circle", "gone", "folder", "socket", "file", "endless", "elsewhere")
        )
        if kind == "fifo":
            os.mkfifo(path)
        elif kind in {"zero", "circle", "gone", "elsewhere"}:
            path.symlink_to(
                {
                    "zero": "/dev/zero",
                    "circle": path.name,
                    "gone": "none",
                    "elsewhere": "/etc/passwd",
                }[kind]
            )
        elif kind == "folder":
            (path / "part-0-0.parquet").mkdir(parents=True)
        elif kind == "socket":
            with socket.socket(socket.AF_UNIX) as bound:
                bound.bind(
                    f"/proc/self/fd/{(place := os.open(path.parent, os.O_PATH))}/{path.name}"
                )
                os.close(place)
        else:
            path.touch()
            os.truncate(path, 1 << 42 if kind == "endless" else 0)
        return kind

    def _stray(self, path: Path) -> str:
        name = self._draw.choice(NAMES)
        data = path.read_bytes() if self._draw.random() < 0.5 else b"x"
        Path(os.fsdecode(os.fsencode(path.parent) + b"/" + name)).write_bytes(data)
        return repr(name)

    def _locked(self, path: Path) -> str:
        """Without permissions, which do not bind root."""
        target = self._draw.choice((path, path.parent))
        target.chmod(0 if target == path else 0o500)
        return target.name

    def _rewrite(self, path: Path, rows: pa.Table, metadata: dict[bytes, bytes] | None) -> None:
        pq.write_table(
            rows.replace_schema_metadata(metadata),
            path,
            row_group_size=self._draw.choice((7, 10_000)),
        )

    def _columns(self, path: Path) -> str:
        rows = pq.read_table(path)
        at = self._draw.randrange(rows.num_columns)
        name, column = rows.column_names[at], rows.column(at)
        kind = self._draw.choice(
            ("gone", "text", "real", "list", "bytes", "doubled", "other", "all")
        )
        n = rows.num_rows
        made = {
            "text": lambda: column.cast(pa.string(), safe=False), "real": lambda: pa.array([1e300] * n), "list": lambda: pa.array([[1]] * n),
            "bytes": lambda: pa.array([b"\xff\x00"] * n), "other": lambda: pa.array([{"a": 1}] * n), "all": lambda: pa.nulls(n, column.type),
        }  # fmt: skip
        if kind == "gone":
            changed = rows.remove_column(at)
        elif kind == "doubled":
            changed = rows.append_column(name, column)
        else:
            changed = rows.set_column(at, name, made[kind]())
        self._rewrite(path, changed, rows.schema.metadata)
        return f"{name} {kind}"

    def _cells(self, path: Path) -> str:
        """Wrong values in some rows of a column or two."""
        rows, messages = pq.read_table(path), []
        metadata = rows.schema.metadata
        for _ in range(self._draw.choice((1, 2))):
            at = self._draw.randrange(rows.num_columns)
            name, kind = rows.column_names[at], rows.column(at).type
            cells = rows.column(at).to_pylist()
            wrong = self._wrong(kind)
            every = self._draw.choice((1, 2, 17))
            for i in range(0, len(cells), every):
                cells[i] = wrong
            rows = rows.set_column(at, pa.field(name, kind), pa.array(cells, kind))
            messages.append(f"{name}={str(wrong)[:30]} in one of {every}")
        self._rewrite(path, rows, metadata)
        return ", ".join(messages)

    def _wrong(self, kind: pa.DataType) -> Any:
        if pa.types.is_integer(kind):
            most = 2 ** (kind.bit_width - 1)
            huge = (min(most - 1, 2**53 + 1), min(most - 1, 10**15), min(most - 1, 2**40))
            return self._draw.choice(
                (None, 0, -1, 1, most - 1, -most, most // 2, -most // 2, *huge)
            )
        if pa.types.is_floating(kind):
            return self._draw.choice(
                (None, float("nan"), float("inf"), float("-inf"), -1.0, 1e308, 5e-324)
            )
        if pa.types.is_string(kind):
            return self._draw.choice(
                (
                    None,
                    "",
                    "x",
                    "{",
                    "\x1b[31m\x00\u202e",
                    "y" * 200_000,
                    "<img src=x>",
                    "[" * 5000,
                    '{"a": ' + "9" * 5000 + "}",
                    *BILLS,
                )
            )
        if pa.types.is_list(kind):
            return self._draw.choice((None, [], [-1], [2**63 - 1, -(2**63)], [5] * 3000))
        return self._draw.choice((None, True, False))

    def _rows(self, path: Path) -> str:
        rows = pq.read_table(path)
        kind = self._draw.choice(("none", "doubled", "reversed", "few", "many"))
        order = {
            "none": [],
            "few": [0] if rows.num_rows else [],
            "reversed": list(range(rows.num_rows))[::-1],
        }
        changed = (
            rows.take(pa.array(order[kind], pa.int64()))
            if kind in order
            else pa.concat_tables([rows] * (2 if kind == "doubled" else 30))
        )
        self._rewrite(path, changed, rows.schema.metadata)
        return kind

    def _marks(self, path: Path) -> str:
        rows = pq.read_table(path)
        version = self._draw.choice(
            (b"0", b"-1", b"4", b"4.0", b"", b"x", b"\xff", b" 4", b"9" * 5000, b"1_0", None)
        )
        replaced = self._draw.choice(
            (b"", path.name.encode(), b"part-0-0.parquet,part-1-0.parquet", b"\xff,,," * 999)
        )
        metadata = {b"tailgauge.replaces": replaced} | (
            {b"tailgauge.schema_version": version} if version is not None else {}
        )
        self._rewrite(path, rows, metadata)
        return f"{str(version)[:20]} {replaced[:20]!r}"

    def _json(self, path: Path) -> str:
        """A value anywhere in the file, or a key, is another."""
        tree = json.loads(path.read_text())
        nodes: list[Any] = [tree]
        for node in nodes:
            nodes += [
                one
                for one in (node.values() if isinstance(node, dict) else node)
                if isinstance(one, dict | list) and one
            ]
        node = self._draw.choice(nodes) if self._draw.random() < 0.5 else tree
        key = self._draw.choice(list(node) if isinstance(node, dict) else range(len(node)))
        kind = self._draw.choice(("value", "value", "value", "gone", "nested"))
        value = self._draw.choice(VALUES)
        if kind == "gone":
            del node[key]
        else:
            node[key] = value if kind == "value" else {"x": [node[key]] * 3}
        path.write_text(json.dumps(tree))
        return f"{key} {kind} {str(value)[:30]!r}"

    def _raw(self, path: Path) -> str:
        """A text that Python's own encoder would not write."""
        text, raw = path.read_text(), self._draw.choice(RAW)
        entries = [at for at in range(len(text)) if text[at : at + 2] == ": "]
        at = self._draw.choice(entries) if entries and self._draw.random() < 0.8 else 0
        end = text.find("\n", at) if at else len(text)
        data = (text[: at + 2] + raw + "," + text[end:] if at else raw).encode(
            "utf-8", "surrogatepass"
        )
        path.write_bytes(
            self._draw.choice((data, data, b"\xef\xbb\xbf" + text.encode(), text.encode("utf-16")))
        )
        return raw[:20]
