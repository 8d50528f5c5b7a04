"""One section of the report per file or folder. In: a `Run`. Out: a dataclass, which is its part of report.json, and a `Section`.

A section that needs another's result asks `run.result(other.compute)`. It knows no format (HTML, Markdown, terminal) and no
other run.
"""
