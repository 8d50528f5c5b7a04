"""docs/many-machines.md says what the code does: its waits and sizes, and every variable of docker-compose.yml."""

import ast
import re

import pytest

from tailgauge.errors import Exit


@pytest.fixture(scope="module")
def page(checkout) -> str:
    return (checkout / "docs" / "many-machines.md").read_text(encoding="utf-8")


# Read, not imported: what imports Locust patches the process.
NUMBERS = (
    ("launch", "ANSWER_S", 1, "a worker waits {} s for an owner that does not answer yet"),
    ("launch", "ELSEWHERE_S", 1, "the owner {} s for its workers"),
    ("launch", "TELL_S", 1, "saying every {} s how many are there"),
    ("launch", "OWNER_S", 1, "nothing was heard of the owner for {} s"),
    ("launch", "OWNER_S", 1, "after {} s of silence the workers close what is open"),
    ("crew", "SILENT_S", 1, "after {} s of silence it gets no more slices"),
    ("crew", "CROWD", 1, "With more than {} workers each of them speaks less often"),
    ("handout", "SLICE_NS", 10**9, "handed out in slices of {} s"),
    ("seal", "LEAST", 1, "{} characters or more"),
    ("offsets", "EVERY_S", 1, "one every {} s during the run"),
    ("task", "FLUSH_EVERY", 1, "a part of each table about every {} s"),
    ("shipping", "PIECE", 1024, "in pieces of at most {} KiB"),
    ("shipping", "WINDOW", 1, "of which at most {} are under way"),
)


@pytest.mark.parametrize(("module", "name", "unit", "words"), NUMBERS)
def test_a_number_of_the_page_is_that_of_the_code(module, name, unit, words, page, checkout):
    tree = ast.parse((checkout / "src" / "tailgauge" / f"{module}.py").read_text(encoding="utf-8"))
    values = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    number = 1.0
    for factor in values[name].split(" * "):
        number *= ast.literal_eval(factor)

    assert words.format(f"{number / unit:g}") in page


def test_every_variable_of_docker_compose_stands_in_the_table(page, checkout):
    text = (checkout / "docker-compose.yml").read_text(encoding="utf-8")
    used = set(re.findall(r"\$\{(\w+):", text)) | set(
        re.findall(r"^  +([A-Z_]+):(?:$|\s+[#$])", text, re.MULTILINE)
    )
    listed = {
        name
        for row in re.findall(r"^\| (`[A-Z_]+`.*?) \|", page, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }

    assert {"WORKERS", "ANTHROPIC_API_KEY", "RUN_ID"} <= used
    assert listed == used


def test_a_workers_codes_are_those_of_its_help(page, command):
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    shown = command(["tailgauge", "worker", "--help"]).stdout.partition("Exit codes:")[2]

    assert told == {int(code) for code in re.findall(r"^\s+(\d+) ", shown, re.MULTILINE)}
    assert told <= {int(code) for code in Exit}
