"""What differs by traffic pattern or by wire protocol is in its own file: nothing else compares with its name."""

import ast

import pytest

from tailgauge.patterns.table import PATTERNS
from tailgauge.protocols.table import PROTOCOLS

# Files that compare with the same word for another thing.
OTHERS = {
    "src/tailgauge/experiments/checkup/plan.py": "fan_out is a probe of a checkup",
    "analysis/tailgauge_analysis/sections/fan_out/section.py": "fan_out is a key of the scenario",
}


def compared(tree: ast.AST) -> set[str]:
    """Texts that a module compares something with, looks for in a list, or matches."""
    found: set[str] = set()
    for node in ast.walk(tree):
        sides = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            sides = [node.value]
        for side in sides:
            inner = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            found |= {
                one.value
                for one in inner
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            }
    return found


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (PATTERNS, ("src/tailgauge/patterns/",)),
        (PROTOCOLS, ("src/tailgauge/protocols/", "src/tailgauge/simulator/protocols/")),
    ],
    ids=["patterns", "protocols"],
)
def test_no_other_file_compares_with_a_name(checkout, names, folders):
    files = [
        path for root in ("src", "analysis") for path in sorted((checkout / root).rglob("*.py"))
    ]
    hits = {}
    for path in files:
        name = path.relative_to(checkout).as_posix()
        if not name.startswith(folders) and name not in OTHERS:
            found = compared(ast.parse(path.read_text(encoding="utf-8"))) & set(names)
            if found:
                hits[name] = found

    assert len(files) > 100
    assert hits == {}
