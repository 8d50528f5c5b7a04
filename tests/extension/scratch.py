"""A scratch copy of the product, in which a test adds something as a contributor would, and counts the files it changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOK_PLACE = {
    0,
    3,
    5,
}  # exit codes of a short real run: beside other tests its measurement may be INVALID
COPIED = ("src", "analysis", "scenarios", "locustfiles")


class Scratch:
    """A copy of the product under `root`; every change goes through `write` or `insert`, so that `changed` knows it.

    What is compiled is copied too, but for what is just being written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.changed: set[str] = set()
        for folder in COPIED:
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("*.pyc.*"))

    def write(self, path: str, text: str) -> None:
        """Add a file."""
        target = self.root / path
        assert not target.exists(), f"{path} is there already"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        self.changed.add(path)

    def insert(self, path: str, after: str, text: str) -> None:
        """Put `text` behind the only place of a file that reads `after`."""
        target = self.root / path
        before = target.read_text(encoding="utf-8")
        assert before.count(after) == 1, (
            f"{path} has {before.count(after)} places that read {after!r}, not one"
        )
        target.write_text(before.replace(after, after + text), encoding="utf-8")
        self.changed.add(path)

    def run(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run Python on the copy: `run("-m", "tailgauge", ...)` or `run("-c", CODE)`; the working folder is the copy's."""
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(self.root / "src"), str(self.root / "analysis")]
        )
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env=environment, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
