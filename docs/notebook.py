"""A notebook as Markdown: its cells, run one after the other, and what each shows.

    .venv/bin/python docs/notebook.py NOTEBOOK [--no-run]

A frame becomes a table, a figure of plotly a figure, any other value its text, as in Jupyter.
"""

from __future__ import annotations

import ast
import contextlib
import html
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLOTLY = '<script src="../plotly.js"></script>'


def markdown(notebook: dict[str, Any], *, run: bool) -> Iterator[str]:
    """The cells and their outputs, as parts of a page."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield f"```python\n{source}\n```"
        if run and (output := execute(source, names)):
            yield f'<div class="output">{output}</div>'


def execute(source: str, names: dict[str, Any]) -> str:
    """Run a cell; return what it prints and its last value as HTML."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - the notebook is ours
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    text = printed.getvalue().replace(f"{Path.cwd()}/", "")
    output = f"<pre>{html.escape(text)}</pre>" if text else ""
    return output + ("" if value is None else shown(value))


def shown(value: Any) -> str:
    """A value as Jupyter shows it."""
    if hasattr(value, "to_plotly_json"):
        figure = value.to_html(full_html=False, include_plotlyjs=False, default_height=360)
        return PLOTLY + "".join(figure.splitlines())
    if hasattr(value, "_repr_html_"):
        return "".join(line.strip() for line in value._repr_html_().splitlines())
    return f"<pre>{html.escape(repr(value))}</pre>"


def main(arguments: list[str]) -> int:
    """Print the page of a notebook."""
    run = "--no-run" not in arguments
    notebook = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    page = "\n\n".join(markdown(notebook, run=run))
    print(page)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
