"""What must never be committed: secrets, addresses of package registries, paths of one machine."""

import re
import subprocess

import pytest

# Spelt with one-letter classes, so that this file does not match itself.
REGISTRY = re.compile(
    r"pypi[.]org|pythonhosted[.]org|npmjs[.](org|com)|--(extra-)?index[-]url|--find[-]links|PIP_[I]NDEX_URL"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/([w]ork/|[h]ome/\w|[r]oot/|[t]mp/v|[o]pt/(wheels|pypi))")
SECRET = re.compile(
    r"[s]k-ant-[\w-]{24,}|\bsk-(proj-)?[A-Za-z0-9]{32,}|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE [K]EY"
)


@pytest.fixture(scope="module")
def committed(checkout) -> dict[str, str]:
    """Text of every tracked file. In an unpacked sdist, which has no history, there is nothing to look at."""
    if not (checkout / ".git").exists():
        pytest.skip("not a git checkout")
    listing = subprocess.run(
        ["git", "ls-files", "-z"],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    texts = {}
    for name in filter(None, listing.stdout.split("\0")):
        path = checkout / name
        data = path.read_bytes() if path.is_file() else b""
        if b"\0" not in data:
            texts[name] = data.decode("utf-8")
    return texts


@pytest.mark.parametrize(
    "pattern",
    [REGISTRY, MACHINE_PATH, SECRET],
    ids=["registry address", "path of one machine", "secret"],
)
def test_no_committed_file_contains_a(pattern, committed):
    found = {
        name: match.group() for name, text in committed.items() if (match := pattern.search(text))
    }

    assert found == {}


def test_generated_runs_and_reports_are_not_committed(committed):
    allowed = ("reports/README.md", "reports/example/")
    generated = [
        name
        for name in committed
        if name.startswith(("runs/", "reports/")) and not name.startswith(allowed)
    ]

    assert generated == []
