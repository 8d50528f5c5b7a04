"""docs/how-to/many-machines.md and code agree: its waits and sizes, and every variable of docker-compose.yml."""

import ast
import re

import pytest


@pytest.fixture(scope="module")
def page(checkout) -> str:
    return (checkout / "docs" / "how-to" / "many-machines.md").read_text(encoding="utf-8")


# Read, not imported: what imports Locust patches the process.
NUMBERS = (
    ("locust_app/launch", "ANSWER_S", 1, "a worker waits {} s for the master"),
    ("locust_app/launch", "REMOTE_S", 1, "the master waits {} s for its workers"),
    ("locust_app/launch", "PRINT_EVERY_S", 1, "prints every {} s how many are connected"),
    ("locust_app/launch", "MASTER_S", 1, "has lost its master for {} s"),
    ("locust_app/launch", "MASTER_S", 1, "after {} s of silence the workers close open requests"),
    ("master/workers", "SILENT_S", 1, "after {} s of silence it gets no more slices"),
    ("master/workers", "CROWD", 1, "With more than {} workers each of them sends less often"),
    ("master/leases", "SLICE_NS", 10**9, "leased in slices of {} s"),
    ("channel/auth", "LEAST", 1, "{} characters or more"),
    ("channel/clock_offset", "EVERY_S", 1, "one every {} s during the run"),
    ("worker/housekeeping", "FLUSH_EVERY", 1, "a part of each table about every {} s"),
)


@pytest.mark.parametrize(("module", "name", "unit", "sentence"), NUMBERS)
def test_a_number_of_the_page_is_that_of_the_code(module, name, unit, sentence, page, checkout):
    tree = ast.parse((checkout / "src" / "tailgauge" / f"{module}.py").read_text(encoding="utf-8"))
    values = {
        ast.unparse(node.targets[0]): ast.unparse(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
    }
    number = 1.0
    for factor in values[name].split(" * "):
        number *= ast.literal_eval(factor)

    assert sentence.format(f"{number / unit:g}") in page


def test_every_variable_of_docker_compose_is_in_the_table(page, checkout):
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
